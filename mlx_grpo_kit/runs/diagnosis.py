"""The diagnosis of a training run in words: the symptom, why it matters, and the setting that helps.

    for words in diagnose(steps):
        print(words)

`steps` are the records of a GRPO run: the steps that `GRPOTrainer.train` yields, or the lines of its `metrics.jsonl`. A
healthy run gives an empty list. Only the latest steps and a few earlier ones are examined, so a call takes as little
time late in a long run as at its beginning. Pure Python, without MLX or NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from mlx_grpo_kit.runs import symptoms_of_rewards as rewards
from mlx_grpo_kit.runs import symptoms_of_sampling as sampling
from mlx_grpo_kit.runs import symptoms_of_updates as updates
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

ALONE = (updates.no_number, rewards.nothing_scored)
"""Symptoms that are reported alone, because they make the other numbers meaningless."""

LOOKS = (
    rewards.reward_fails, sampling.scored_otherwise, updates.bonus_pays, rewards.paid_for_something_else,
    sampling.too_random, updates.reward_fell, sampling.truncated, rewards.collapse, rewards.one_full_one_empty,
    rewards.no_exploration, rewards.tied, updates.zero_gradient, sampling.entropy_gone, sampling.entropy_runs_away,
    sampling.length_runs_away, updates.clipped_away, updates.kl_runs_away, updates.reference_moves, updates.held_still,
    updates.nothing_moves,
)  # fmt: skip
"""All other symptoms, with causes before their consequences."""

FOLLOWS_FROM = {
    "reward_fell": {"bonus_pays"},
    "truncated": {"bonus_pays", "paid_for_something_else", "too_random"},
    "collapse": {"paid_for_something_else"},
    "tied": {"truncated", "collapse", "too_random", "no_exploration", "paid_for_something_else"},
    "zero_gradient": {"truncated", "collapse", "tied", "no_exploration"},
    "entropy_gone": {"collapse", "tied", "no_exploration"},
    "entropy_runs_away": {"bonus_pays", "paid_for_something_else"},
    "length_runs_away": {"truncated", "paid_for_something_else"},
    "clipped_away": {"scored_otherwise"},
    "nothing_moves": {
        "reward_fails", "scored_otherwise", "too_random", "truncated", "no_exploration", "tied", "clipped_away",
        "reference_moves", "held_still",
    },
}  # fmt: skip
"""A symptom is not reported if one of these causes is reported."""

KEPT_OF_A_COMPLETION = ("group", "prompt", "completion", "correct")

FOLLOWS_WITHIN = 100
"""The maximum number of steps between a change and a symptom that it causes."""


class Finding(NamedTuple):
    """One problem: a short name that stays the same while it lasts, and a message with the current numbers."""

    name: str
    words: str


def diagnose(steps: Iterable[Any]) -> list[str]:
    """Return the problems of a run in words, with causes before their consequences; an empty list if there are none.

    If the run was healthy until a setting was changed, that change comes first.

    Args:
        steps: in order, objects with `.step`, `.metrics` and, optionally, `.completions` and `.changes`; or
            dictionaries with "step", the metrics and, optionally, "changes" (lines of metrics.jsonl) and "completions".
            Steps without a reward are skipped. A completion needs `.prompt` and `.completion` (or these keys).
    """
    return [finding.words for finding in findings(steps)]


def findings(steps: Iterable[Any]) -> list[Finding]:
    """Diagnose a run, with a name for each finding, by which a display recognizes findings that it has shown."""
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
        if words and not found.keys() & FOLLOWS_FROM.get(look.__name__, set()):
            found[look.__name__] = words
    return [Finding(*each) for each in found.items()]


def _changed_before(records: Sequence[Any], found: Sequence[Finding]) -> Finding | None:
    """Return the latest change of a setting after which one of these symptoms began; None if no change fits."""
    names = {finding.name for finding in found}
    for i in range(len(records) - 1, 0, -1):
        changes = {name: new for name, new in (field_of(records[i], "changes") or {}).items() if name != "rewound_from"}
        if not changes:
            continue
        if names & {finding.name for finding in _symptoms(records[:i])}:
            continue  # it was already sick
        if not names & {finding.name for finding in _symptoms(records[: i + FOLLOWS_WITHIN])}:
            return None
        step, before = step_of(records[i]), metrics_of(records[i - 1])
        settings = " and ".join(_changed(name, new, before) for name, new in changes.items())
        return Finding(
            "changed",
            f"Before step {step} you changed {settings}, and the trouble began after that. Rewind to step "
            f"{step_of(records[i - 1])}, and make a smaller change, or none.",
        )
    return None


def _changed(name: str, new: Any, before: Mapping[str, Any]) -> str:
    """Describe the change of one setting; `before` are the metrics of the previous step."""
    if name == "reward_funcs":
        return f"the reward functions (now {', '.join(map(str, new))})"
    old = before.get(name)
    return f"{name} " + (f"to {new}" if old is None or old == new else f"from {old:.3g} to {new}")


class Monitor:
    """The part of a run's history that `diagnose` needs, which is a few hundred of 100,000 steps.

    A display calls `add` for each step, and `findings()` for each frame that it draws.
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
        """Record a step, and the settings that were changed right before it, with their new values.

        Completions are kept for the first and the latest steps only: their group, prompt, text, right answer and
        verdict.
        """
        kept = [
            SimpleNamespace(answer=answer_of(c), **{name: field_of(c, name) for name in KEPT_OF_A_COMPLETION})
            for c in completions
        ]
        self._records.append(SimpleNamespace(step=step, metrics=dict(metrics), completions=kept, changes=changes))
        if len(self._records) > SOON + NEIGHBOURS:
            self._records[-SOON - 1].completions = []
        most = 4 * PLACES * NEIGHBOURS
        if len(self._records) > most + RECENT:  # drop every second stretch of the past
            past = self._records[:most]
            past = [record for i, record in enumerate(past) if i // NEIGHBOURS % 2 == 0 or record.changes]
            self._records = past + self._records[most:]

    def findings(self) -> list[Finding]:
        """Return the current problems of the run."""
        return findings(self._records)
