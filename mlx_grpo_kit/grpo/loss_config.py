"""The settings of the GRPO loss, under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_grpo_kit.grpo.objectives import LOSS_TYPES, LossType
from mlx_grpo_kit.grpo.off_policy import CORRECTIONS

IMPORTANCE_SAMPLING_LEVELS = ("token", "sequence")


@dataclass(frozen=True)
class GRPOLossConfig:
    """Settings of the loss; the names and, with two exceptions, the defaults are TRL's.

    Attributes:
        loss_type: the name of a row of `LOSS_TYPES`, or a `LossType` of your own.
        epsilon: the ratio may fall to 1 - epsilon before a bad completion's token is clipped.
        epsilon_high: the ratio may rise to 1 + epsilon_high before a good completion's token is clipped; None means
            epsilon. DAPO recommends 0.28. For "cispo" it is the largest weight itself (about 5), and must be given.
        delta: an upper bound on the ratios of tokens in bad completions, which PPO's minimum does not clip
            (INTELLECT-2, https://arxiv.org/abs/2505.07291). Recommended: more than 1 + epsilon_high.
        beta: weight of the KL penalty that keeps the policy near the reference.
        importance_sampling_level: "token": one ratio per token; "sequence": one ratio per completion, the geometric
            mean of its tokens' ratios (GSPO, https://arxiv.org/abs/2507.18071).
        max_completion_length: the constant length that "dr_grpo" divides by. There is no default (TRL: 512), because a
            wrong constant looks like a wrong learning rate.
        use_bias_correction_kl: multiply the KL penalty by the ratio (DeepSeek-V3.2, https://arxiv.org/abs/2512.02556).
            False is the plain k3 estimator; TRL 1.16's default is True.
        entropy_coef: weight of the entropy bonus, which is the mean entropy of the distributions that tokens were
            sampled from: the policy is rewarded for staying undecided. The mean is the same for every loss type.
        top_entropy_quantile: the share of tokens that have a policy loss: those whose distribution had the highest
            entropy ("Beyond the 80/20 Rule", https://arxiv.org/abs/2506.01939, recommends 0.2). The other tokens still
            count in the denominator and keep their KL penalty. 1 keeps all tokens; 0 keeps only the one with the
            highest entropy.
        off_policy_mask_threshold: a completion with a negative advantage has no policy loss once its mean
            log-probability has fallen by more than this since it was sampled (`on_policy_enough`; DeepSeek-V3.2,
            equation 9). None keeps all completions.
        importance_sampling_correction: weight the policy loss by exp(learner's - sampler's log-probability), for a
            sampler in another framework or dtype (`importance_weights`): "token_truncate", "token_mask",
            "sequence_truncate" or "sequence_mask". None, the default, applies no weights (TRL: "sequence_mask" with
            vLLM, as `vllm_importance_sampling_mode`).
        importance_sampling_clip_min, importance_sampling_clip_max: the bounds of these weights; None for no bound.
        extra: settings of your own objective, by name. The trainer puts the fields here that a subclass of `GRPOConfig`
            adds.

    Raises:
        ValueError: a setting that is unknown, out of range, or missing for the loss type.
    """

    loss_type: str | LossType = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    importance_sampling_level: str = "token"
    max_completion_length: int | None = None
    use_bias_correction_kl: bool = False
    entropy_coef: float = 0.0
    top_entropy_quantile: float = 1.0
    off_policy_mask_threshold: float | None = None
    importance_sampling_correction: str | None = None
    importance_sampling_clip_min: float | None = None
    importance_sampling_clip_max: float | None = 3.0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        if not isinstance(self.loss_type, LossType):
            _check_choice("loss_type", self.loss_type, LOSS_TYPES)
        _check_choice("importance_sampling_level", self.importance_sampling_level, IMPORTANCE_SAMPLING_LEVELS)
        for name in ("epsilon", "epsilon_high", "beta"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is {value}; expected 0 or more.")
        if not math.isfinite(self.entropy_coef):
            raise ValueError(f"entropy_coef is {self.entropy_coef}; expected a number, usually 0.001 to 0.01.")
        if not 0 <= self.top_entropy_quantile <= 1:
            raise ValueError(
                f"top_entropy_quantile is {self.top_entropy_quantile}; expected 0 to 1, where 1 keeps all."
            )
        if self.delta is not None and not self.delta > 1:
            raise ValueError(
                f"delta is {self.delta}; expected more than 1, or None. It caps the ratio, which starts at 1, so a "
                "smaller cap leaves good completions without a gradient. Recommended: more than 1 + epsilon_high."
            )
        if self.off_policy_mask_threshold is not None and not self.off_policy_mask_threshold > 0:
            raise ValueError(
                f"off_policy_mask_threshold is {self.off_policy_mask_threshold}; expected more than 0, such as 0.5, or "
                "None to keep all completions."
            )
        self._check_correction()
        if self.max_completion_length is not None and not self.max_completion_length >= 1:
            raise ValueError(f"max_completion_length is {self.max_completion_length}; expected 1 or more.")
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
        _check_choice("importance_sampling_correction", mode, CORRECTIONS)
        for name, value in (("importance_sampling_clip_min", low), ("importance_sampling_clip_max", high)):
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; expected 0 or more, or None for no bound.")
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
        return self.loss_type if isinstance(self.loss_type, LossType) else LOSS_TYPES[self.loss_type]

    @property
    def micro_batches_add_up(self) -> bool:
        """True if the losses of micro-batches, given the batch's num_items_in_batch, are added; False if averaged."""
        return self.type.adds_up


def _check_choice(name: str, value: str, known) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}.")
