"""The diagnosis of a training run in words: the symptom, why it matters, and the setting that helps.

    for words in diagnose(steps):
        print(words)

`steps` are the records of a GRPO run: what `GRPOTrainer.train` yields, or the lines of its `metrics.jsonl`. A healthy
run gives an empty list. Only the latest steps and a few places of the past are looked at, so asking at every frame of
a long run costs no more than at its beginning. Pure Python: no MLX, no NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from mlx_grpo_kit.runs.history import (
    NEIGHBOURS,
    PLACES,
    RECENT,
    SOON,
    History,
    answer_of,
    field_of,
    metrics_of,
    step_of,
)
from mlx_grpo_kit.runs.symptoms import ALONE, FOLLOWS_FROM, LOOKS

KEPT_OF_A_COMPLETION = ("group", "prompt", "completion", "correct")

FOLLOWS_WITHIN = 100
"""Steps within which a symptom follows from a change."""


class Finding(NamedTuple):
    """One thing that is wrong: a short name that stays the same while it lasts, and the words with today's numbers."""

    name: str
    words: str


def diagnose(steps: Iterable[Any]) -> list[str]:
    """The problems of a run in words, the causes before their consequences; an empty list if there are none.

    If the run was well until a setting was changed, that change comes first.

    Args:
        steps: in order, objects with `.step`, `.metrics` and, if there are any, `.completions` and `.changes`, or
            dictionaries with "step", the metrics and "changes" (lines of metrics.jsonl), and maybe "completions".
            Steps without a reward are passed over. A completion needs `.prompt` and `.completion` (or these keys).
    """
    return [finding.words for finding in findings(steps)]


def findings(steps: Iterable[Any]) -> list[Finding]:
    """`diagnose` with a name for each finding, by which a display knows whether it has been said before."""
    records = steps if isinstance(steps, Sequence) else list(steps)
    found = _symptoms(records)
    cause = _changed_before(records, found) if found else None
    return [cause, *found] if cause else found


def _symptoms(records: Sequence[Any]) -> list[Finding]:
    run = History(records)
    if not run.records or (math.isnan(run.now("reward")) and not run.has("frac_reward_zero_std")):
        return []
    found: dict[str, str] = {}
    for look in ALONE:
        if words := look(run):
            return [Finding(look.__name__, words)]
    for look in LOOKS:
        words = look(run)
        if words and not found.keys() & FOLLOWS_FROM.get(look, set()):
            found[look.__name__] = words
    return [Finding(*each) for each in found.items()]


def _changed_before(records: Sequence[Any], found: Sequence[Finding]) -> Finding | None:
    """The last change of a setting after which one of these symptoms began, while there was none before it."""
    names = {finding.name for finding in found}
    for i in range(len(records) - 1, 0, -1):
        changes = {name: new for name, new in (field_of(records[i], "changes") or {}).items() if name != "rewound_from"}
        if not changes:
            continue
        if names & {finding.name for finding in _symptoms(records[:i])}:
            continue  # it was ill by then
        if not names & {finding.name for finding in _symptoms(records[: i + FOLLOWS_WITHIN])}:
            return None
        step, before = step_of(records[i]), metrics_of(records[i - 1])
        settings = " and ".join(_changed(name, new, before) for name, new in changes.items())
        return Finding(
            "changed",
            f"Before step {step} you changed {settings}, and the trouble began after that. "
            f"Rewind to step {step_of(records[i - 1])}, and take a smaller change, or none.",
        )
    return None


def _changed(name: str, new: Any, before: Mapping[str, Any]) -> str:
    """The words for one setting that was changed; `before` are the metrics of the step before."""
    if name == "reward_funcs":
        return f"the reward functions (now {', '.join(map(str, new))})"
    old = before.get(name)
    return f"{name} " + (f"to {new}" if old is None or old == new else f"from {old:.3g} to {new}")


class Monitor:
    """Remembers of a run that goes on what `diagnose` looks at, and no more: of 100,000 steps a few hundred.

    For a display that is fed step by step: `add` each, and ask for `findings()` whenever a frame is drawn.
    """

    def __init__(self):
        self._records: list[SimpleNamespace] = []

    def add(
        self,
        step: int,
        metrics: Mapping[str, float],
        completions: Iterable[Any] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Take in a step, and the settings that were changed right before it, with their new values.

        Of its completions only group, prompt, text, right answer and verdict are kept, and only those of the first and
        the latest steps.
        """
        kept = [
            SimpleNamespace(answer=answer_of(c), **{name: field_of(c, name) for name in KEPT_OF_A_COMPLETION})
            for c in completions
        ]
        self._records.append(SimpleNamespace(step=step, metrics=dict(metrics), completions=kept, changes=changes))
        if len(self._records) > SOON + NEIGHBOURS:
            self._records[-SOON - 1].completions = []
        most = 4 * PLACES * NEIGHBOURS
        if len(self._records) > most + RECENT:  # forget every second stretch of the past
            past = self._records[:most]
            past = [record for i, record in enumerate(past) if i // NEIGHBOURS % 2 == 0 or record.changes]
            self._records = past + self._records[most:]

    def findings(self) -> list[Finding]:
        """The problems of the run at this moment."""
        return findings(self._records)
