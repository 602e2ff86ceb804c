"""Saving a policy that processes share: the first process decides and writes, and the others send it their parts."""

from __future__ import annotations

import os

import numpy as np

from mlx_grpo_kit.grpo import GRPOTrainer

OVER, CHECKPOINT, POLICY = range(3)


class Saver:
    """The first process's saves. If the policy is shared, it announces each one to the others."""

    def __init__(self, trainer: GRPOTrainer):
        self._trainer = trainer

    @property
    def step(self) -> int:
        """Steps done."""
        return self._trainer.step

    def save_checkpoint(self, folder: str | os.PathLike) -> None:
        """`GRPOTrainer.save_checkpoint` in all processes that share the policy."""
        self._announce(CHECKPOINT)
        self._trainer.save_checkpoint(folder)

    def save_pretrained(self, folder: str | os.PathLike, base: str | os.PathLike | None = None) -> None:
        """`GRPOTrainer.save_pretrained` in all processes that share the policy."""
        self._announce(POLICY)
        self._trainer.save_pretrained(folder, base)

    def over(self) -> None:
        """Let the other processes continue."""
        self._announce(OVER)

    def _announce(self, what: int) -> None:
        if self._trainer.world.sharded:
            self._trainer.world.gather(np.array([what]))


def take_part(trainer: GRPOTrainer) -> None:
    """In the other processes: take part in each save until the first process has no more."""
    while trainer.world.sharded and (what := trainer.world.gather(np.array([OVER]))[0]) != OVER:
        save = trainer.save_checkpoint if what == CHECKPOINT else trainer.save_pretrained
        save(os.devnull)  # only the first process writes
