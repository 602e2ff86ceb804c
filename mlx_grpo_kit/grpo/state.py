"""The record of a step, and a snapshot of a trainer between two steps to rewind to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mlx_grpo_kit.grpo.batch import Completion
from mlx_grpo_kit.grpo.config import MAY_CHANGE, GRPOConfig
from mlx_grpo_kit.grpo.policy import Policy


@dataclass(frozen=True)
class TrainStep:
    """One step: its number from 1, its metrics (Python floats under TRL's names), and what it learned from.

    In a run of several processes each of them gets all completions.

    `changes` are the changes between the previous step and this one: the new value of each setting, "reward_funcs" as a
        list of their names, and "rewound_from", the step at which the trainer was before a `rewind`.
    """

    step: int
    metrics: dict[str, float]
    completions: list[Completion]
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A trainer between two steps, as `snapshot` returns it and `rewind` takes it.

    It refers to the arrays themselves. Training replaces them by others, so taking a snapshot costs nothing, but each
        snapshot that you keep holds `nbytes` of memory: with AdamW 12 bytes per parameter. For a model of billions,
        write checkpoints instead.

    `origin` is a hash of the task's name, the model's configuration and the parameters that the trainer began with.
    """

    step: int
    origin: str
    args: GRPOConfig
    reward_funcs: Sequence[Callable]
    policy: Policy
    optimizer_state: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters and the optimizer's state."""
        moments = [
            value for state in self.optimizer_state.values() if isinstance(state, dict) for value in state.values()
        ]
        return sum(value.nbytes for value in [*self.policy.trained.values(), *moments])

    def check(self, args: GRPOConfig, origin: str) -> None:
        """Raise ValueError unless this is a snapshot of a run with these settings and this origin."""
        other = [
            each.name
            for each in fields(args)
            if each.name not in MAY_CHANGE and getattr(self.args, each.name, None) != getattr(args, each.name)
        ]
        if other or self.origin != origin:
            what = "it started from another task or model"
            if other:
                what = f"{other[0]} is {getattr(self.args, other[0], None)!r}"
            raise ValueError(
                f"The snapshot of step {self.step} is from another run: {what}. Expected one that this trainer's "
                "snapshot() returned."
            )
