"""The operations of a training backend, in whatever framework it computes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mlx_grpo_kit.backends.future import TrainFuture


@runtime_checkable
class TrainingBackend(Protocol):
    """One model that learns, in one framework: every method submits an operation, and they are done one by one.

    Operations are done strictly in the order in which they were submitted, one at a time, whoever submitted them.
    Gradients stay with the backend between forward_backward and optim_step; several forward_backward add up.

    Attributes:
        weight_version: how often weights were saved. It is one higher once a checkpoint is in place (slime, where the
            idea is from, counts when weights are handed to the engines that generate).
        current_step: optimizer steps done.
    """

    weight_version: int
    current_step: int

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[dict[str, Any]]:
        """Compute the loss of a batch and add its gradient to what is there: {"loss", "grad_norm", ...}."""
        ...

    def optim_step(self) -> TrainFuture[dict[str, float]]:
        """Take a step with the gradient that has added up, and clear it: {"lr", "step", "grad_norm"}."""
        ...

    def get_weights(self) -> TrainFuture[dict[str, Any]]:
        """Copies of the weights, by name."""
        ...

    def load_weights(self, weights: Mapping[str, Any]) -> TrainFuture[None]:
        """Put these weights in the place of those that are there."""
        ...

    def save_checkpoint(self, step: int, metrics: Mapping[str, Any] | None = None) -> TrainFuture[Path]:
        """Write all that is needed to go on from here, and count weight_version up."""
        ...

    def load_checkpoint(self, checkpoint_path: str | os.PathLike) -> TrainFuture[dict[str, Any]]:
        """Go on from a checkpoint; returns its metadata."""
        ...
