"""Group relative policy optimization: rewards become advantages, advantages give a loss, and the loss gives gradients.

Each name is loaded on first use, so settings, habits and recipes do not load MLX.
"""

from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.advantages import GroupAdvantages, compute_advantages
    from mlx_grpo_kit.grpo.batch import Batch, Completion, Completions, Scores
    from mlx_grpo_kit.grpo.config import GRPOConfig
    from mlx_grpo_kit.grpo.gradients import compute_loss_and_gradients
    from mlx_grpo_kit.grpo.learners import Learner, MLXAtOnce, MLXByLayer
    from mlx_grpo_kit.grpo.logps import per_token_logps
    from mlx_grpo_kit.grpo.loss import compute_grpo_loss, grpo_loss_and_metrics, token_weights
    from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
    from mlx_grpo_kit.grpo.loss_of_logits import grpo_loss_fn
    from mlx_grpo_kit.grpo.memory import estimate_memory
    from mlx_grpo_kit.grpo.objectives import LOSS_TYPES, LossType, TokenBatch
    from mlx_grpo_kit.grpo.optimizer import Gradient, PolicyOptimizer, TrainingDivergedError
    from mlx_grpo_kit.grpo.policy import Policy
    from mlx_grpo_kit.grpo.rewards import RewardError, TaskRewards, compute_rewards
    from mlx_grpo_kit.grpo.sampler import PolicySampler
    from mlx_grpo_kit.grpo.state import Snapshot, TrainStep
    from mlx_grpo_kit.grpo.step import Parts, draw_batch, grpo_step, learn_from
    from mlx_grpo_kit.grpo.task_survey import Survey, survey
    from mlx_grpo_kit.grpo.trainer import GRPOTrainer
    from mlx_grpo_kit.grpo.variants import VARIANTS, Variant, variants_table
    from mlx_grpo_kit.runs.diagnosis import diagnose

__getattr__, __dir__, __all__ = lazy_names(__name__)
