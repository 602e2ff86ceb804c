"""Group relative policy optimization: rewards become advantages, advantages a loss, and the loss gradients."""

from mlx_grpo_kit.diagnosis import diagnose
from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.gradients import compute_loss_and_gradients
from mlx_grpo_kit.grpo.logps import per_token_logps
from mlx_grpo_kit.grpo.loss import LOSS_TYPES, GRPOLossConfig, compute_grpo_loss, grpo_loss_and_metrics, token_weights
from mlx_grpo_kit.grpo.memory import estimate_memory
from mlx_grpo_kit.grpo.rewards import RewardError, compute_rewards
from mlx_grpo_kit.grpo.trainer import Completion, GRPOTrainer, Snapshot, TrainingDivergedError, TrainStep
from mlx_grpo_kit.grpo.variants import VARIANTS, Variant, variants_table

__all__ = [
    "LOSS_TYPES",
    "VARIANTS",
    "Completion",
    "GRPOConfig",
    "GRPOLossConfig",
    "GRPOTrainer",
    "RewardError",
    "Snapshot",
    "TrainStep",
    "TrainingDivergedError",
    "Variant",
    "compute_advantages",
    "compute_grpo_loss",
    "compute_loss_and_gradients",
    "compute_rewards",
    "diagnose",
    "estimate_memory",
    "grpo_loss_and_metrics",
    "per_token_logps",
    "token_weights",
    "variants_table",
]
