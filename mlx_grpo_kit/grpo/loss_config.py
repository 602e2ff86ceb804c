"""The settings of the GRPO loss and of its advantages, under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.grpo.settings import check_settings, declares_settings, setting

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.objectives import LossType


@dataclass(frozen=True)
class AdvantageSettings:
    """The settings that `compute_advantages` and `GRPOConfig` share. ValueError if two of them cannot be combined."""

    # fmt: off
    scale_rewards: str = setting(
        "group", "the standard deviation that rewards are divided by, or none. As in `compute_advantages`.",
        choices=("group", "batch", "none"), elsewhere={"True": "group", "False": "none"}, also=("reward_scaling",))
    advantage_estimator: str = setting(
        "grpo", "compare with the group's mean, or with the mean of the others (rloo).", choices=("grpo", "rloo"))
    multi_objective_aggregation: str = setting(
        "sum_then_normalize", "how several rewards are combined; normalize_then_sum is GDPO.",
        choices=("sum_then_normalize", "normalize_then_sum"))
    # fmt: on

    def __post_init__(self):
        check_settings(self)
        if self.advantage_estimator == "rloo" and self.scale_rewards == "group":
            raise ValueError(
                "advantage_estimator is 'rloo' and scale_rewards is 'group'. Divided by the group's standard "
                "deviation, leave-one-out advantages are just those of 'grpo' times n / (n - 1). Set "
                "scale_rewards='none', which is RLOO, or 'batch'."
            )
        others = (self.scale_rewards, self.advantage_estimator)
        if self.multi_objective_aggregation == "normalize_then_sum" and others != ("group", "grpo"):
            raise ValueError(
                "multi_objective_aggregation 'normalize_then_sum' divides every function's rewards by the standard "
                f"deviation of their group, so scale_rewards={others[0]!r} with advantage_estimator={others[1]!r} has "
                "no effect. Leave both at their defaults, or set 'sum_then_normalize'."
            )


@dataclass(frozen=True)
class LossSettings:
    """The settings of the loss that `GRPOLossConfig` and `GRPOConfig` share."""

    # fmt: off
    loss_type: str | LossType = setting(
        "dapo", "the objective and the weight of a token. In Python also a `LossType` of your own.",
        choices=("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo", "reinforce", "rloo"),
        also=("grpo_loss_type",))
    epsilon: float = setting(
        0.2, "the ratio may fall to 1 - epsilon before a bad completion's token is clipped.", least=0,
        also=("epsilon_low", "clip_range", "cliprange"))
    epsilon_high: float | None = setting(
        None, "the ratio may rise to 1 + epsilon_high before a good completion's token is clipped (default: epsilon). "
        'DAPO recommends 0.28. For "cispo" it is the largest weight itself (about 5), and must be given.', least=0)
    delta: float | None = setting(
        None, "an upper bound on the ratios of tokens in bad completions, which PPO's minimum does not clip. "
        "INTELLECT-2, https://arxiv.org/abs/2505.07291.", above=1,
        hint=", or None. It caps the ratio, which starts at 1, so a smaller cap leaves good completions without a "
        "gradient. Recommended: more than 1 + epsilon_high.")
    beta: float = setting(
        0.0, "weight of the KL penalty against the reference, the policy that training started from.", least=0,
        also=("kl_coef", "kl_beta"))
    importance_sampling_level: str = setting(
        "token", "one ratio per token, or per completion. The ratio of a completion is the geometric mean of its "
        "tokens' ratios (GSPO, https://arxiv.org/abs/2507.18071).", choices=("token", "sequence"))
    use_bias_correction_kl: bool = setting(
        False, "multiply the KL penalty by the ratio. DeepSeek-V3.2, https://arxiv.org/abs/2512.02556. False is the "
        "plain k3 estimator; TRL 1.16's default is True.")
    entropy_coef: float = setting(
        0.0, "weight of the entropy bonus, usually 0.001 to 0.01. It is the mean entropy of the distributions that "
        "tokens were sampled from: the policy is rewarded for staying undecided. The mean is the same for every loss "
        "type.")
    top_entropy_quantile: float = setting(
        1.0, "the share of tokens that have a policy loss: those whose distribution had the highest entropy. The "
        'paper, "Beyond the 80/20 Rule" (https://arxiv.org/abs/2506.01939), recommends 0.2. The other tokens still '
        "count in the denominator and keep their KL penalty; 0 keeps only the one with the highest entropy. The "
        "trainer chooses tokens once for all `num_iterations`, by the policy that sampled (TRL measures again).",
        least=0, most=1, hint=", where 1 keeps all.")
    off_policy_mask_threshold: float | None = setting(
        None, "drop bad completions from which the policy has moved further than this. A completion with a negative "
        "advantage has no policy loss once its mean log-probability has fallen by more since it was sampled "
        "(`on_policy_enough`; DeepSeek-V3.2, equation 9).", above=0,
        hint=", such as 0.5, or None to keep all completions.")
    importance_sampling_correction: str | None = setting(
        None, "weight the policy loss by exp(learner's - sampler's log-probability). For a sampler in another "
        "framework or dtype (`importance_weights`). None applies no weights (TRL: 'sequence_mask' with vLLM, as "
        "`vllm_importance_sampling_mode`).",
        choices=("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
        also=("vllm_importance_sampling_correction", "vllm_importance_sampling_mode"))
    importance_sampling_clip_min: float | None = setting(
        None, "the smallest of these weights (default: no bound).", least=0, hint=", or None for no bound.",
        also=("vllm_importance_sampling_clip_min",))
    importance_sampling_clip_max: float | None = setting(
        3.0, "the largest of these weights.", least=0, hint=", or None for no bound.",
        also=("vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"))
    # fmt: on


@declares_settings
@dataclass(frozen=True)
class GRPOLossConfig(LossSettings):
    """Settings of the loss; the names and, with two exceptions, the defaults are TRL's.

    `extra` has settings of your own objective, by name. The trainer puts the fields there that a subclass of
    `GRPOConfig` adds.

    Raises:
        TypeError: an unknown setting.
        ValueError: a setting that is out of range, or missing for the loss type.
    """

    max_completion_length: int | None = setting(
        None,
        'the constant length that "dr_grpo" divides by. There is no default (TRL: 512), because a wrong '
        "constant looks like a wrong learning rate.",
        least=1,
    )
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        check_settings(self)
        if not math.isfinite(self.entropy_coef):
            raise ValueError(f"entropy_coef is {self.entropy_coef}; expected a number, usually 0.001 to 0.01.")
        self._check_correction()
        if self.loss_type == "dr_grpo" and self.max_completion_length is None:
            raise ValueError(
                "loss_type 'dr_grpo' divides by a constant length: set max_completion_length to the number of tokens "
                "that a completion may have."
            )
        if self.loss_type == "cispo" and self.epsilon_high is None:
            raise ValueError(
                "loss_type 'cispo' caps the ratio at epsilon_high itself, not at 1 + epsilon_high: set epsilon_high, "
                "for example to 5.0."
            )

    def _check_correction(self) -> None:
        mode, low, high = (
            getattr(self, f"importance_sampling_{end}") for end in ("correction", "clip_min", "clip_max")
        )
        if mode is None:
            return
        if low is None and high is None and mode.endswith("truncate"):
            raise ValueError(
                f"importance_sampling_correction {mode!r} needs a bound; set importance_sampling_clip_max, for example "
                "to 3.0, or importance_sampling_clip_min."
            )
        if low is not None and high is not None and not low < high:
            raise ValueError(f"importance_sampling_clip_min is {low}; expected less than the largest weight, {high}.")
        if self.type.applies_correction and mode.startswith("sequence"):
            raise ValueError(
                f"importance_sampling_correction is {mode!r}, and loss_type {self.loss_type!r} already weighs whole "
                "completions. Choose 'token_truncate' or 'token_mask'."
            )

    @property
    def clip_range(self) -> tuple[float, float]:
        """(lowest, highest) ratio that the clipped objective rewards."""
        return 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)

    @property
    def kl_has_ratio(self) -> bool:
        """True if the KL penalty is multiplied by the ratio, of which it is then a function everywhere."""
        return self.beta != 0 and self.use_bias_correction_kl

    @property
    def needs_entropies(self) -> bool:
        """True if the loss uses the entropies of the distributions that tokens were sampled from."""
        return self.entropy_coef != 0 or self.top_entropy_quantile < 1

    @property
    def type(self) -> LossType:
        """The row of `LOSS_TYPES`, or your own `LossType`."""
        from mlx_grpo_kit.grpo.objectives import LOSS_TYPES  # loads MLX, which the settings and their checks do not

        return LOSS_TYPES[self.loss_type] if isinstance(self.loss_type, str) else self.loss_type

    @property
    def micro_batches_add_up(self) -> bool:
        """True if the losses of micro-batches, given the batch's num_items_in_batch, are added; False if averaged."""
        return self.type.adds_up
