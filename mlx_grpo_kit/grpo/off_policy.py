"""Off-policy completions: weights that correct for their sampler, and a rule that drops the worst of them.

Sampler and policy differ for two reasons. Updates change the policy after it has sampled. And a sampler in another
framework or dtype gives slightly different log-probabilities even with the same weights.

The formulas, the names and the edge cases are TRL 1.16's. `xp` is the framework of the arrays (`arrays.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array
from mlx_grpo_kit.grpo.objectives import clamp, lengths

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
    from mlx_grpo_kit.grpo.micro_batches import MicroBatch

METRICS = {
    "sampling/sampling_logp_difference": ("mean", "max"),
    "sampling/importance_sampling_ratio": ("min", "mean", "max"),
}
"""TRL's metrics of sampler and learner: the difference of their log-probabilities, and the correction's weights."""


def importance_weights(config: GRPOLossConfig, old_logps: Array, sampling_logps: Array, mask: Array) -> Array:
    """Weights that correct the loss for a sampler whose log-probabilities differ from the learner's.

    A weight is exp(old_logps - sampling_logps): how much likelier a draw is for the learner than for the sampler,
    before any update. Weights outside [importance_sampling_clip_min, importance_sampling_clip_max] move to the bound
    ("truncate") or become 0 ("mask"). TRL's `vllm_importance_sampling_mode`.

    Args:
        config: with `importance_sampling_correction`.
        old_logps, sampling_logps: [B, T], the sampling policy's log-probabilities as learner and sampler compute them.
        mask: bool [B, T], the tokens that the loss counts.

    Returns one weight per token, [B, T] with 1 where masked, or one per completion, [B, 1] with "sequence".
    """
    level, _, bound = config.importance_sampling_correction.partition("_")
    difference = _known(old_logps - sampling_logps, mask)
    weights = xp.exp(difference.sum(axis=1, keepdims=True) if level == "sequence" else difference)
    low = -math.inf if config.importance_sampling_clip_min is None else config.importance_sampling_clip_min
    high = math.inf if config.importance_sampling_clip_max is None else config.importance_sampling_clip_max
    if bound == "truncate":
        return clamp(weights, low, high)
    return xp.where((weights < low) | (weights > high), 0.0, weights)


def on_policy_enough(threshold: float, advantages: Array, logps: Array, sampling_logps: Array, mask: Array) -> Array:
    """Mask of the completions to keep, bool [B, 1] or [B, T]: all but bad ones that the policy has moved away from.

    The policy has moved too far from a completion if the mean over its tokens of sampling_logps - logps is above
    `threshold`. Completions with an advantage of 0 or more are always kept. DeepSeek-V3.2,
    https://arxiv.org/abs/2512.02556, equation 9.
    """
    moved = _known(sampling_logps - logps, mask).sum(axis=1, keepdims=True) / lengths(mask)
    return (advantages >= 0) | (moved <= threshold)


def _known(difference: Array, mask: Array) -> Array:
    """The difference, and 0 at tokens that are masked or that the sampler has no log-probability for."""
    return xp.where(mask & (difference == difference), difference, 0.0)  # NaN is not equal to itself


def sampling_spreads(config: GRPOLossConfig, micro_batches: Sequence[MicroBatch]) -> np.ndarray:
    """[count, sum, smallest, largest] of each of `METRICS` over the tokens of these micro-batches, [2, 4].

    Completions of another policy are not counted: their sampler's log-probabilities are the only ones.
    """
    differences, weights = [np.zeros(0)], [np.zeros(0)]
    for micro in micro_batches:
        mask, old, sampling = micro.batch.completion_mask, micro.old_logps, micro.sampling_logps
        known = np.array(mask) & np.isfinite(np.array(sampling))
        if old is sampling or not known.any():
            continue
        differences.append(np.abs(np.array(old) - np.array(sampling))[known])
        if config.importance_sampling_correction is not None:
            found = np.array(importance_weights(config, old, sampling, mask))
            weights.append(found[np.array(mask)] if found.shape == mask.shape else found.ravel())
    return np.array([_spread(np.concatenate(values)) for values in (differences, weights)])


def sampling_metrics(spreads: np.ndarray) -> dict[str, float]:
    """Combine the spreads of all processes, [processes, 2, 4], to metrics; a metric without values is left out."""
    found: dict[str, float] = {}
    for (name, kinds), (count, total, low, high) in zip(METRICS.items(), spreads.transpose(1, 2, 0), strict=True):
        if count.sum():
            values = {"min": low.min(), "mean": total.sum() / count.sum(), "max": high.max()}
            found |= {f"{name}/{kind}": float(values[kind]) for kind in kinds}
    return found


def _spread(values: np.ndarray) -> list[float]:
    return [values.size, values.sum(), values.min(initial=np.inf), values.max(initial=-np.inf)]
