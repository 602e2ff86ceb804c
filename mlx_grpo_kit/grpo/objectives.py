"""The objectives and the token weights of the GRPO family, and `LOSS_TYPES`, the table that combines them.

A loss of your own is one more row. Pass it to the trainer as `loss=`:

    def objective(tokens, config):
        return tokens.ratio * tokens.advantages, {}

    GRPOTrainer(config, params, tokenizer, task, args, loss=LossType(objective, mean_over_batch_tokens, adds_up=True))

`xp` is the framework of the arrays: MLX, torch or JAX (`arrays.py`). Each of them differentiates these lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig

# SAPO's gate is a little sharper for bad completions; VESPO's (k, lambda) shape its Gamma weighting. All are the
# papers' values and TRL's defaults.
SAPO_TEMPERATURE_POSITIVE, SAPO_TEMPERATURE_NEGATIVE = 1.0, 1.05
VESPO_POSITIVE, VESPO_NEGATIVE = (2.0, 3.0), (3.0, 2.0)


class TokenBatch(NamedTuple):
    """The arguments of an objective. An array has T columns, or one if the tokens of a completion share a value.

    Attributes:
        logps: [B, T], log-probabilities under the trained policy; 0 where masked.
        log_ratio: [B, T], `logps` minus the log-probabilities of the sampling policy; 0 where masked.
        ratio: exp(log_ratio) [B, T], or [B, 1] with importance_sampling_level "sequence". It may be infinite.
        advantages: [B, 1] or [B, T].
        mask: bool [B, T], the tokens that the loss counts.
        correction: the weights for a sampler that computes otherwise than the learner (`importance_weights`), [B, T] or
            [B, 1]; None without `importance_sampling_correction`. They multiply every objective but those that apply
            them themselves.
        kept: bool [B, T], the tokens whose objective reaches the loss. The others are masked, or dropped by
            `top_entropy_quantile`, `off_policy_mask_threshold` or a `correction` of 0. None: all tokens of the mask.
        one_advantage: True if the tokens of a completion share its advantage.
    """

    logps: Array
    log_ratio: Array
    ratio: Array
    advantages: Array
    mask: Array
    correction: Array | None = None
    kept: Array | None = None
    one_advantage: bool = True


class OfCompletions(NamedTuple):
    """A metric of completions, [B, 1], whose mean is over completions. Of any other metric the mean is over tokens."""

    values: Array


Metrics = dict[str, "Array | OfCompletions"]
Objective = Callable[[TokenBatch, "GRPOLossConfig"], tuple[Array, Metrics]]
"""A function that returns the quantity to maximize and metrics by name, each [B, T], or [B, 1] if tokens share it."""

TokenWeight = Callable[[Array, "GRPOLossConfig", "int | Array | None"], "Array | float"]
"""(mask [B, T] of 0.0 and 1.0, config, num_items_in_batch) -> the weight of one token in the loss, [] or [B, 1],
in the dtype of the mask."""


@dataclass(frozen=True)
class LossType:
    """A row of `LOSS_TYPES`: the loss is the sum over completion tokens of weight * (beta * KL - objective).

    Attributes:
        objective: the quantity to maximize.
        weight: the weight of one token in the loss.
        adds_up: True if the weight counts all tokens of the batch. Then the losses of micro-batches are added;
            otherwise they are averaged.
        zero_without_advantage: True if a completion with advantage 0 has no gradient. Then the trainer skips groups
            in which all advantages are 0.
        applies_correction: True if the objective uses `TokenBatch.correction` itself.
    """

    objective: Objective
    weight: TokenWeight
    adds_up: bool = False
    zero_without_advantage: bool = False
    applies_correction: bool = False


# The objectives


def clipped(batch: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A). PPO, https://arxiv.org/abs/1707.06347, equation 7."""
    ratio = _ratio(batch, config, *_flat_above(batch, config))
    return _clipped(ratio, batch, config, config.importance_sampling_level)


def _clipped(ratio: Array, batch: TokenBatch, config: GRPOLossConfig, level: str) -> tuple[Array, Metrics]:
    (low, high), advantages = config.clip_range, batch.advantages
    clipped_ratio = clamp(ratio, low, high)
    if config.delta is not None:
        ratio = clamp(ratio, -math.inf, config.delta)
    too_low = (ratio < low) & (advantages < 0)
    too_high = (ratio > high) & (advantages > 0)
    events = {
        "clip_ratio/low_mean": too_low,
        "clip_ratio/high_mean": too_high,
        "clip_ratio/region_mean": too_low | too_high,
    }
    return xp.minimum(ratio * advantages, clipped_ratio * advantages), _metrics(events, batch, level)


def _metrics(values: dict[str, Array], batch: TokenBatch, level: str) -> Metrics:
    """Metrics of ratio and advantage: of completions, if their tokens share the ratio (at this level) and advantage."""
    shared = level == "sequence" and batch.one_advantage
    return {name: OfCompletions(each) for name, each in values.items()} if shared else values


def _reinforce(batch: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
    """A logp, without a ratio: correct for one update per batch, but it ignores how far the policy has moved since.

    Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    return batch.advantages * batch.logps, {}


def _rloo(batch: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
    """PPO's clip of a completion's ratio, the product over its tokens: for RLOO a completion is one action.

    Each token gets an equal share, so that the sum over tokens is this objective.
    TRL's `RLOOTrainer`; https://arxiv.org/abs/2402.14740.
    """
    ratio = bounded_exp(batch.log_ratio.sum(axis=1, keepdims=True), *_flat_above(batch, config))
    objective, metrics = _clipped(ratio, batch, config, "sequence")
    return objective / lengths(batch.mask), metrics


def _cispo(batch: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
    """stop_gradient(min(r, epsilon_high)) A logp: a token's weight has an upper bound, and none loses its gradient.

    CISPO, MiniMax-M1, https://arxiv.org/abs/2506.13585.
    """
    weight = xp.stop_gradient(xp.minimum(batch.ratio, config.epsilon_high))
    events = {"cispo_clip_ratio": (batch.ratio > config.epsilon_high) & (batch.advantages > 0)}
    return weight * batch.advantages * batch.logps, _metrics(events, batch, config.importance_sampling_level)


def _sapo(batch: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
    """sigmoid(tau (r - 1)) * (4 / tau) * A: a smooth clip. Its slope at r = 1 is A, as for the hard clip.

    SAPO, https://arxiv.org/abs/2511.20347.
    """
    ratio = _ratio(batch, config, 20.0, True)  # the gate is flat long before, in float64 too

    def gate(tau: float) -> Array:
        return xp.sigmoid(tau * (ratio - 1)) * (4 / tau)

    gates = xp.where(batch.advantages > 0, gate(SAPO_TEMPERATURE_POSITIVE), gate(SAPO_TEMPERATURE_NEGATIVE))
    return gates * batch.advantages, {}


def _vespo(batch: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
    """stop_gradient(phi) A logp, where phi = exp(lambda + k log w - lambda w) and w is the whole completion's ratio.

    phi is 1 on-policy, and goes smoothly to 0 when w goes to 0 and when w grows. w is a product over tokens at every
    importance sampling level, so its logarithm is bounded before exp. VESPO, https://arxiv.org/abs/2602.10693.
    """
    log_w = xp.clip(batch.log_ratio, -20, 20).sum(axis=1, keepdims=True)
    if batch.correction is not None:  # w is then learner / sampler
        log_w = log_w + xp.clip(xp.log(batch.correction), math.log(1e-8), 20).sum(axis=1, keepdims=True)
    log_w = xp.clip(log_w, math.log(1e-8), 20)
    good = batch.advantages >= 0
    k = xp.where(good, VESPO_POSITIVE[0], VESPO_NEGATIVE[0])
    lam = xp.where(good, VESPO_POSITIVE[1], VESPO_NEGATIVE[1])
    phi = xp.stop_gradient(xp.exp(lam + k * log_w - lam * xp.exp(log_w)))
    return phi * batch.advantages * batch.logps, _metrics({"vespo/phi_seq_mean": phi}, batch, "sequence")


# The token weights


def mean_of_completion_means(mask, config, num_items_in_batch):
    """Weight completions equally: a token of a short one counts more, which favours short good and long bad answers."""
    return 1 / (mask.shape[0] * lengths(mask))


def mean_of_completion_sums(mask, config, num_items_in_batch):
    """Weight all tokens equally, whatever the length. LUSPO, https://arxiv.org/abs/2602.05261."""
    return 1 / mask.shape[0]


def constant_length(mask, config, num_items_in_batch):
    """Weight tokens as if every completion had the maximum length. Dr. GRPO, https://arxiv.org/abs/2503.20783."""
    return 1 / (mask.shape[0] * config.max_completion_length)


def mean_over_these_tokens(mask, config, num_items_in_batch):
    """Weight the tokens of a micro-batch equally; a token of a micro-batch with fewer tokens counts more."""
    return 1 / xp.maximum(mask.sum(), 1)


def mean_over_batch_tokens(mask, config, num_items_in_batch):
    """Weight all tokens of the optimizer step's batch equally. DAPO, https://arxiv.org/abs/2503.14476."""
    return 1 / xp.maximum(mask.sum() if num_items_in_batch is None else xp.as_type(num_items_in_batch, mask), 1)


LOSS_TYPES: dict[str, LossType] = {
    "grpo": LossType(clipped, mean_of_completion_means, zero_without_advantage=True),
    "bnpo": LossType(clipped, mean_over_these_tokens, zero_without_advantage=True),
    "dr_grpo": LossType(clipped, constant_length, zero_without_advantage=True),
    "dapo": LossType(clipped, mean_over_batch_tokens, adds_up=True, zero_without_advantage=True),
    "luspo": LossType(clipped, mean_of_completion_sums, zero_without_advantage=True),
    "cispo": LossType(_cispo, mean_over_batch_tokens, adds_up=True, zero_without_advantage=True),
    "sapo": LossType(_sapo, mean_of_completion_means, zero_without_advantage=True),
    # phi is a metric of every completion, so none is left out
    "vespo": LossType(_vespo, mean_over_batch_tokens, adds_up=True, applies_correction=True),
    "reinforce": LossType(_reinforce, mean_over_batch_tokens, adds_up=True, zero_without_advantage=True),
    "rloo": LossType(_rloo, mean_of_completion_sums, zero_without_advantage=True),
}


# Ratios that may be large


def bounded_exp(exponents: Array, bound: float, constant: Array | bool) -> Array:
    """exp, with exponents above `bound` moved there where the loss is `constant` above it.

    There the gradient is 0. Through an infinite exp it would be 0 * inf, which is NaN.

    Args:
        exponents: [B, T], or [B, 1] if tokens share them: these move if the loss is constant for all tokens.
        constant: bool, [B, T] or [B, 1].
    """
    above = (exponents > bound) & constant
    if exponents.shape[1] == 1:
        above = above.all(axis=1, keepdims=True)
    return xp.exp(xp.where(above, bound, exponents))


def log_ratio_at(level: str, log_ratio: Array, mask: Array) -> Array:
    """The logarithms of the ratios at an `importance_sampling_level`: of tokens, [B, T], or their means, [B, 1]."""
    return log_ratio.sum(axis=1, keepdims=True) / lengths(mask) if level == "sequence" else log_ratio


def _ratio(batch: TokenBatch, config: GRPOLossConfig, bound: float, constant: Array | bool) -> Array:
    """`TokenBatch.ratio`, bounded where the objective is constant; not if a KL penalty depends on it too."""
    if config.kl_has_ratio:
        return batch.ratio
    exponents = log_ratio_at(config.importance_sampling_level, batch.log_ratio, batch.mask)
    return bounded_exp(exponents, bound, constant)


def _flat_above(batch: TokenBatch, config: GRPOLossConfig) -> tuple[float, Array]:
    """A log-ratio above all bounds of the clipped objective, and the tokens for which it is constant above that."""
    constant = (batch.advantages >= 0) | (config.delta is not None)
    if batch.kept is not None:
        constant = constant | ~batch.kept
    return math.log(max(config.clip_range[1], config.delta or 0.0)) + 1, constant


def clamp(values: Array, low: float, high: float) -> Array:
    """torch.clamp: a value exactly at a bound keeps its gradient. `mx.clip` would remove it."""
    return xp.where(values < low, low, xp.where(values > high, high, values))


def lengths(mask: Array) -> Array:
    """[B, T] -> the number of completion tokens, [B, 1]; 1 for a completion without tokens, to avoid 0 / 0."""
    return xp.maximum(mask.sum(axis=1, keepdims=True), 1)
