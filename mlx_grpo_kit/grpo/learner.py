"""Who computes log-probabilities and gradients for `GRPOTrainer`, if not MLX: torch or JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.grpo.loss import GRPOLossConfig
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.qwen3.config import Qwen3Config

LEARNERS = {"torch": "TorchLearner", "jax": "JAXLearner"}
"""By the names that GRPOConfig's `backend` has: what mlx_grpo_kit.backends has of each."""


class Learner(Protocol):
    """The learning half of a step, of parameters and batches in MLX's arrays. It keeps nothing between its calls."""

    def score(self, params: Mapping[str, mx.array], batch: PaddedBatch, temperature: float) -> mx.array:
        """Log-probabilities of the completions' tokens, [B, T]."""
        ...

    def add_gradients(
        self,
        params: Mapping[str, mx.array],
        grads: dict[str, mx.array],
        micro: MicroBatch,
        loss_config: GRPOLossConfig,
        temperature: float,
    ) -> tuple[Any, mx.array, dict[str, Any]]:
        """Add a micro-batch's gradient to `grads`; returns (loss, logps [B, T], metrics), scalars with `.item()`."""
        ...


def learner_of(backend: str, config: Qwen3Config, dtype: mx.Dtype) -> Learner | None:
    """What learns in place of MLX; None is MLX itself.

    Raises ValueError for a dtype that it does not compute in, and ImportError where the framework is missing.
    """
    if backend == "mlx":
        return None
    if dtype != mx.float32:
        raise ValueError(
            f"The parameters are {str(dtype).rpartition('.')[2]}, and backend {backend!r} computes in float32. "
            "Expected float32 parameters, as load_pretrained gives them, or backend 'mlx'."
        )
    from mlx_grpo_kit import backends  # only here: the frameworks load where they are used

    return getattr(backends, LEARNERS[backend])(config)
