"""The operations of a training backend, for any framework."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mlx_grpo_kit.backends.future import TrainFuture


@runtime_checkable
class TrainingBackend(Protocol):
    """One model in training, in one framework. Every method submits an operation, and they are done one by one.

    Operations are done strictly in the order in which they were submitted, one at a time, from any thread. The backend
    keeps gradients between forward_backward and optim_step; those of several forward_backward add up.

    Attributes:
        weight_version: the number of times that weights were saved. It increases when a checkpoint is complete. (slime,
            the source of the idea, counts transfers of weights to the inference engines.)
        current_step: the number of optimizer steps done.
    """

    weight_version: int
    current_step: int

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[dict[str, Any]]:
        """Compute the loss of a batch and add its gradient to the sum: {"loss", "grad_norm", ...}."""
        ...

    def optim_step(self) -> TrainFuture[dict[str, float]]:
        """Take a step with the sum of gradients, and clear it: {"lr", "step", "grad_norm"}."""
        ...

    def get_weights(self) -> TrainFuture[dict[str, Any]]:
        """Copies of the weights, by name."""
        ...

    def load_weights(self, weights: Mapping[str, Any]) -> TrainFuture[None]:
        """Replace the weights."""
        ...

    def save_checkpoint(self, step: int, metrics: Mapping[str, Any] | None = None) -> TrainFuture[Path]:
        """Write everything that is needed to continue from here, and increase weight_version."""
        ...

    def load_checkpoint(self, checkpoint_path: str | os.PathLike) -> TrainFuture[dict[str, Any]]:
        """Restore a checkpoint; returns its metadata."""
        ...
