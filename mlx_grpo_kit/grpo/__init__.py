"""Group relative policy optimization: rewards become advantages, advantages a loss, and the loss gradients."""

from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.loss import LOSS_TYPES, GRPOLossConfig, compute_grpo_loss, grpo_loss_and_metrics, token_weights

__all__ = [
    "LOSS_TYPES",
    "GRPOLossConfig",
    "compute_advantages",
    "compute_grpo_loss",
    "grpo_loss_and_metrics",
    "token_weights",
]
