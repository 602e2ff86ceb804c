"""The iterator that `GRPOTrainer.train` returns: it trains while it is iterated, and warns if it never was."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.state import TrainStep


class TrainingLoop(Iterator):
    """An iterator over the steps of a generator. Without a `for` loop, nothing is trained.

    Dropping a loop that was never iterated gives a RuntimeWarning. A notebook keeps the value of a cell's last line, so
    `repr` shows the same warning. `close` ends the loop, without a warning.
    """

    def __init__(self, steps: Generator[TrainStep, None, None], call: str):
        self._steps, self._call, self._is_used = steps, call, False

    def __next__(self) -> TrainStep:
        self._is_used = True
        return next(self._steps)

    def close(self) -> None:
        """End the loop; another one may continue from there."""
        self._is_used = True
        self._steps.close()

    def __repr__(self) -> str:
        return f"<{self._call}, {'begun' if self._is_used else f'not begun: {self._words}'}>"

    @property
    def _words(self) -> str:
        return f"nothing is trained until it is iterated. Write: for step in {self._call}: print(step.metrics)"

    def __del__(self, warn=warnings.warn):  # bound here: at the end of a process the module may be empty already
        if not self._is_used:
            warn(f"{self._call} was never iterated, and {self._words}", RuntimeWarning, stacklevel=2)


def warn_of_no_steps(folder: str | os.PathLike) -> None:
    """Warn that a policy is written before its first step."""
    warnings.warn(
        f"No step was made, so {os.fspath(folder)} gets the untrained policy. A call of train() is not enough: write "
        "`for step in trainer.train(max_steps=...): ...`.",
        RuntimeWarning,
        stacklevel=3,
    )
