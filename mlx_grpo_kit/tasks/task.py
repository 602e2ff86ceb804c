"""The protocol between a task and the trainer: problems in, completions back, rewards out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


class TaskError(ValueError):
    """A task failed, or returned what it should not; the message names the task or its reward function."""


@dataclass(frozen=True)
class Problem:
    """One prompt and what the task needs to judge an answer to it.

    Attributes:
        prompt: the text the policy reads and continues.
        answer: one right answer, for showing and for supervised training. Others may be right too.
        data: the task's own facts, such as `{"numbers": (3, 5, 8), "target": 24}`.
    """

    prompt: str
    answer: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)


RewardFunc = Callable[[Sequence[Problem], Sequence[str]], list[float | None]]
"""Scores completions, one number each. `__name__` is the metric's name (`rewards/{name}/mean`). None says that the
function does not apply to that completion; NaN is refused as a mistake. Where a task has several functions, their
values are added."""


class Task(Protocol):
    """What `GRPOTrainer` asks of a task. Any class with these members is one; there is nothing to inherit from.

    Attributes:
        name: short, for logs and file names.
        max_completion_length: tokens enough for any sensible answer and the end-of-sequence token.
        reward_funcs: one or more `RewardFunc`s.
    """

    name: str
    max_completion_length: int
    reward_funcs: Sequence[RewardFunc]

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        """`n` problems of the training split, drawn with `rng` and nothing else, so that a seed repeats them."""
        ...

    def held_out(self, n: int) -> list[Problem]:
        """The same `n` distinct problems at every call, none of which `sample` ever returns.

        Raises ValueError when the task holds fewer than `n` back.
        """
        ...

    def is_correct(self, problem: Problem, completion: str) -> bool:
        """Whether the completion solves the problem. This, not the reward, is what `eval/accuracy` counts."""
        ...
