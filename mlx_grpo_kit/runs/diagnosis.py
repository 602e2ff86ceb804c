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

from mlx_grpo_kit.runs.history import NEIGHBOURS, PLACES, RECENT, SOON, History, answer_of, field_of
from mlx_grpo_kit.runs.symptoms import FOLLOWS_FROM, LOOKS, no_number, nothing_scored


class Finding(NamedTuple):
    """One thing that is wrong: a short name that stays the same while it lasts, and the words with today's numbers."""

    name: str
    words: str


def diagnose(steps: Iterable[Any]) -> list[str]:
    """The problems of a run in words, the causes before their consequences; an empty list if there are none.

    Args:
        steps: in order, objects with `.step`, `.metrics` and, if there are any, `.completions`, or dictionaries with
            "step" and the metrics beside it (lines of metrics.jsonl), "completions" too where they are at hand.
            Steps without a reward are passed over. A completion needs `.prompt` and `.completion` (or these keys).
    """
    return [finding.words for finding in findings(steps)]


def findings(steps: Iterable[Any]) -> list[Finding]:
    """`diagnose` with a name for each finding, by which a display knows whether it has been said before."""
    run = History(steps if isinstance(steps, Sequence) else list(steps))
    if not run.records or (math.isnan(run.now("reward")) and not run.has("frac_reward_zero_std")):
        return []
    found: dict[str, str] = {}
    for look in (no_number, nothing_scored):
        if words := look(run):
            return [Finding(look.__name__, words)]
    for look in LOOKS:
        words = look(run)
        if words and not found.keys() & FOLLOWS_FROM.get(look, set()):
            found[look.__name__] = words
    return [Finding(*each) for each in found.items()]


class Monitor:
    """Remembers of a run that goes on what `diagnose` looks at, and no more: of 100,000 steps a few hundred.

    For a display that is fed step by step: `add` each, and ask for `findings()` whenever a frame is drawn.
    """

    def __init__(self):
        self._records: list[SimpleNamespace] = []

    def add(self, step: int, metrics: Mapping[str, float], completions: Iterable[Any] = ()) -> None:
        """Take in a step. Of its completions only prompt, text and right answer are kept, and those not for long."""
        kept = [SimpleNamespace(prompt=field_of(c, "prompt"), completion=field_of(c, "completion"), answer=answer_of(c))
                for c in completions]  # fmt: skip
        self._records.append(SimpleNamespace(step=step, metrics=dict(metrics), completions=kept))
        if len(self._records) > SOON:
            self._records[-SOON - 1].completions = []
        most = 4 * PLACES * NEIGHBOURS
        if len(self._records) > most + RECENT:  # forget every second stretch of the past
            past = self._records[:most]
            past = [record for i, record in enumerate(past) if i // NEIGHBOURS % 2 == 0]
            self._records = past + self._records[most:]

    def findings(self) -> list[Finding]:
        """The problems of the run at this moment."""
        return findings(self._records)
