"""The GRPO loss and its relatives.

Every loss type answers two questions, and `LOSS_TYPES` in `objectives.py` is the table of the answers:

* the objective: the quantity to maximize, token by token. The classic is PPO's min(r A, clip(r) A), where A is the
  completion's advantage and r = exp(logp - old_logp) is how much likelier the token is now than when it was sampled;
* the weight: the share of one token in the loss. Length bias hides here.

The loss is the sum over completion tokens of weight * (beta * KL - objective). The formulas, the names and the edge
cases are TRL 1.16's.

`xp` is the framework of the arrays, MLX, torch or JAX (`arrays.py`). Each of them differentiates these lines.
"""

import math
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array
from mlx_grpo_kit.grpo.checks import check_numbers
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.grpo.objectives import OfCompletions, TokenBatch, bounded_exp, log_ratio_at
from mlx_grpo_kit.grpo.off_policy import importance_weights, on_policy_enough
from mlx_grpo_kit.grpo.settings import with_settings
from mlx_grpo_kit.runtime import mx


def compute_grpo_loss(
    logps: Array,
    old_logps: Array | None,
    advantages: Array,
    completion_mask: Array,
    *,
    ref_logps: Array | None = None,
    entropies: Array | None = None,
    sampling_logps: Array | None = None,
    num_items_in_batch: int | Array | None = None,
    **settings: Any,
) -> Array:
    """The GRPO loss of B completions of up to T tokens: a scalar to minimise, differentiable in `logps`.

    Equation 3 of https://arxiv.org/abs/2402.03300 with loss_type="grpo"; the default is DAPO's, equation 8 of
    https://arxiv.org/abs/2503.14476. The arrays and errors are described in `grpo_loss_and_metrics`, and the settings
    in `GRPOLossConfig`. Unless a compiler traces the call, this function also checks values. It raises ValueError for
    log-probabilities above 0, for a mask with numbers other than 0 and 1, and for num_items_in_batch below 1.
    """
    others = {"old_logps": old_logps, "ref_logps": ref_logps, "sampling_logps": sampling_logps}
    arrays = {**others, "advantages": advantages, "completion_mask": completion_mask, "entropies": entropies}
    config = GRPOLossConfig(**settings)
    loss, _ = grpo_loss_and_metrics(config, logps, **arrays, num_items_in_batch=num_items_in_batch)
    check_numbers(completion_mask, num_items_in_batch, logps=logps, **others)
    return loss


compute_grpo_loss.__signature__ = with_settings(compute_grpo_loss, GRPOLossConfig)

LARGEST_EXPONENT = 80.0
"""e to this power is finite in float32, with room for factors."""


class BatchWeights(NamedTuple):
    """The weights that completions of a micro-batch have in the whole batch, so that losses and metrics add up to its.

    Attributes:
        token_weight: [B, 1], the share of one token of each completion in the loss (`token_weights`).
        metric_weight: [B, 1], its share in metrics that are means over tokens.
        completion_weight: [B, 1], its share in metrics that are means over completions.
        policy_mask: bool [B, T], the tokens that `top_entropy_quantile` keeps.
        entropy_weight: [B, 1], the share of one such token in the entropy bonus.
    """

    token_weight: Array
    metric_weight: Array
    completion_weight: Array
    policy_mask: Array
    entropy_weight: Array


def grpo_loss_and_metrics(
    config: GRPOLossConfig,
    logps: Array,
    old_logps: Array | None,
    advantages: Array,
    completion_mask: Array,
    *,
    ref_logps: Array | None = None,
    entropies: Array | None = None,
    sampling_logps: Array | None = None,
    num_items_in_batch: int | Array | None = None,
    weights: BatchWeights | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Return the loss and the metrics that TRL logs about it.

    All arrays are of the same framework as `logps`: MLX, torch or JAX. The metrics come from the same forward pass, so
    `mx.value_and_grad` of this function gives loss, metrics and gradient; in MLX the metrics are lazy until they are
    evaluated with the loss.

    Args:
        config: the settings of the loss.
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, at the sampling temperature.
            Half precision is converted to float32.
        old_logps: [B, T] the same under the policy that sampled. None means that the trained policy sampled: every
            ratio is 1, and the gradient is still the policy gradient. No gradient flows into old_logps or ref_logps, so
            you can pass logps itself.
        advantages: [B], from `compute_advantages`, or one per token, [B, T].
        completion_mask: [B, T], 1 or True for the tokens that the policy chose, up to and including the first EOS.
            Values at masked positions, even NaN and infinities, have no influence on the loss or the gradient.
        ref_logps: [B, T] log-probabilities under the reference policy. Required if beta > 0; with beta 0 it only adds
            the metric.
        entropies: [B, T] entropies of the trained policy's distributions. Required with top_entropy_quantile, and with
            entropy_coef, which needs their gradient too (`batch_logps(..., entropy_gradient=True)`).
        sampling_logps: [B, T] of the sampling policy as the sampler computed them, where its numbers differ from the
            learner's; NaN for a token without any. None: old_logps. Used by off_policy_mask_threshold and
            importance_sampling_correction. No gradient flows into it.
        num_items_in_batch: completion tokens in the whole batch of one optimizer step, for "dapo", "cispo", "vespo" and
            "reinforce". Then the gradients of the micro-batches add up to that of the batch. None counts the tokens of
            these arrays. The losses of other types are means over their micro-batch: average those (see
            `GRPOLossConfig.micro_batches_add_up`).
        weights: those of these completions when they form a micro-batch of a larger batch. Then num_items_in_batch
            is ignored.

    Returns:
        The loss, a scalar, and the metrics, scalars by name: "kl" when ref_logps is given (times the ratio with
        use_bias_correction_kl, as TRL logs it); "clip_ratio/low_mean", "clip_ratio/high_mean" and
        "clip_ratio/region_mean", the share of completion tokens (of completions, at level "sequence") whose gradient is
        clipped away because the token fell too far (low), rose too far (high), or either; for cispo "cispo_clip_ratio";
        for vespo "vespo/phi_seq_mean"; with entropy_coef "policy_loss", the loss without the bonus.

    Raises:
        ValueError: an array of the wrong shape, beta > 0 without ref_logps, or missing entropies.
    """
    tokens = token_losses(
        config,
        logps,
        old_logps,
        advantages,
        completion_mask,
        ref_logps=ref_logps,
        entropies=entropies,
        sampling_logps=sampling_logps,
        num_items_in_batch=num_items_in_batch,
        weights=weights,
    )
    loss = (xp.as_type(tokens.mask, tokens.losses) * tokens.weights * tokens.losses).sum()
    metrics = {}
    for name, values in tokens.events.items():
        mean = completion_mean if name in tokens.of_completions else token_mean
        metrics[name] = mean(xp.as_type(xp.stop_gradient(values), loss), tokens.mask, weights)
    if config.entropy_coef:
        metrics["policy_loss"] = xp.stop_gradient(loss)
        kept = tokens.policy_mask
        weight = 1 / xp.maximum(xp.as_type(kept, loss).sum(), 1) if weights is None else weights.entropy_weight
        loss = loss - config.entropy_coef * (weight * xp.where(kept, xp.as_floats(entropies, logps), 0.0)).sum()
    return loss, metrics


class TokenLosses(NamedTuple):
    """The terms of a loss per token: the loss is sum(mask * weights * losses).

    Attributes:
        losses: [B, T], or [B, 1] if all tokens of a completion share the value.
        weights: the share of one token in the loss: [], [B, 1] or [B, T].
        events: by the name of a metric, its value for each token, [B, T] or [B, 1]. The metric is the mean.
        of_completions: the names of the metrics that are means over completions instead of tokens.
        mask: [B, T] bool.
        policy_mask: [B, T] bool, the tokens of the mask that `top_entropy_quantile` keeps. The entropy bonus acts on
            these.
    """

    losses: Array
    weights: Array | float
    events: dict[str, Array]
    of_completions: set[str]
    mask: Array
    policy_mask: Array


def token_losses(
    config: GRPOLossConfig,
    logps: Array,
    old_logps: Array | None,
    advantages: Array,
    completion_mask: Array,
    *,
    ref_logps: Array | None = None,
    entropies: Array | None = None,
    sampling_logps: Array | None = None,
    num_items_in_batch: int | Array | None = None,
    weights: BatchWeights | None = None,
) -> TokenLosses:
    """The terms that `grpo_loss_and_metrics` adds up, token by token, with the same arguments and errors."""
    logps = xp.as_floats(logps, logps)
    if logps.ndim != 2 or 0 in logps.shape:
        raise ValueError(
            f"logps has shape {logps.shape}; expected (B, T): one row per completion, one column per token."
        )
    if config.beta != 0 and ref_logps is None:
        raise ValueError(f"beta is {config.beta}, so ref_logps is required: the reference's log-probabilities, [B, T].")
    if config.needs_entropies and entropies is None:
        raise ValueError(
            f"entropy_coef is {config.entropy_coef} and top_entropy_quantile {config.top_entropy_quantile}, so "
            "entropies are required: those of the distributions that the tokens were sampled from, [B, T]."
        )
    if entropies is not None:
        _check_same_shape("entropies", xp.as_floats(entropies, logps), logps)
    advantages = xp.as_floats(advantages, logps)
    if advantages.shape not in (logps.shape[:1], logps.shape):
        raise ValueError(
            f"advantages has shape {advantages.shape}; expected {logps.shape[:1]}: one per completion in logps, whose "
            f"shape is {logps.shape}; or that shape: one per token."
        )
    mask = xp.as_bools(completion_mask, logps)
    _check_same_shape("completion_mask", mask, logps)

    # The mask is applied to the log-probabilities here and nowhere else. A masked position becomes 0 in each of them,
    # so its ratio is 1 and its KL 0. Masking only the finished loss would be too late: by then exp may have overflowed,
    # and the gradient of 0 * inf is NaN although the loss looks fine.
    def at_completion_tokens(name: str, values: Array) -> Array:
        _check_same_shape(name, values, logps)
        return xp.where(mask, values, 0.0)

    current = at_completion_tokens("logps", logps)
    old = current if old_logps is None else at_completion_tokens("old_logps", xp.as_floats(old_logps, logps))
    old = xp.stop_gradient(old)
    log_ratio = current - old
    sampling = old
    if sampling_logps is not None:
        sampling = xp.stop_gradient(at_completion_tokens("sampling_logps", xp.as_floats(sampling_logps, logps)))
    correction = None
    if config.importance_sampling_correction is not None:
        correction = importance_weights(config, old, sampling, mask)
    one_advantage = advantages.ndim == 1
    advantages = xp.stop_gradient(advantages[:, None] if one_advantage else xp.where(mask, advantages, 0.0))

    policy_mask, factors = mask, []  # of the objective, number by number
    if config.top_entropy_quantile < 1:
        quantile = config.top_entropy_quantile
        policy_mask = high_entropy_mask(entropies, mask, quantile) if weights is None else weights.policy_mask
        factors.append(policy_mask)
    if config.off_policy_mask_threshold is not None:
        threshold = config.off_policy_mask_threshold
        factors.append(on_policy_enough(threshold, advantages, xp.stop_gradient(current), sampling, mask))
    if correction is not None and not config.type.applies_correction:
        factors.append(correction)
    kept = reduce(and_, [mask, *(factor != 0 for factor in factors)])

    exponents = log_ratio_at(config.importance_sampling_level, log_ratio, mask)
    batch = TokenBatch(
        logps=current,
        log_ratio=log_ratio,
        ratio=bounded_exp(exponents, LARGEST_EXPONENT, False if config.kl_has_ratio else ~kept),
        advantages=advantages,
        mask=mask,
        correction=correction,
        kept=kept,
        one_advantage=one_advantage,
    )
    per_token_objective, metrics = config.type.objective(batch, config)
    of_completions = {name for name, metric in metrics.items() if isinstance(metric, OfCompletions)}
    events = {name: metric.values if name in of_completions else metric for name, metric in metrics.items()}
    per_token_loss = -per_token_objective
    for factor in factors:
        per_token_loss = per_token_loss * factor
    if ref_logps is not None:
        reference = xp.stop_gradient(at_completion_tokens("ref_logps", xp.as_floats(ref_logps, logps)))
        kl = _k3(reference - current)
        if config.use_bias_correction_kl:
            kl = kl * batch.ratio
        events["kl"] = kl
        if config.beta != 0:
            per_token_loss = per_token_loss + config.beta * kl

    # Count in the dtype of the loss: 1 divided by an integer array would be float32.
    weight = (
        weights.token_weight if weights else config.type.weight(xp.as_type(mask, logps), config, num_items_in_batch)
    )
    return TokenLosses(per_token_loss, weight, events, of_completions, mask, policy_mask)


def high_entropy_mask(entropies: Array, completion_mask: Array, top_entropy_quantile: float) -> Array:
    """The completion tokens of a batch among the `top_entropy_quantile` with the highest entropy: bool [B, T].

    These are the tokens at or above the quantile 1 - top_entropy_quantile of all entropies, interpolated like
    `torch.quantile`. "Beyond the 80/20 Rule", https://arxiv.org/abs/2506.01939, equation 7.
    """
    entropies = xp.as_floats(entropies, entropies)
    mask = xp.as_bools(completion_mask, entropies)
    entropies = xp.where(mask, xp.stop_gradient(entropies), math.inf)
    in_order = xp.sort(entropies.reshape(-1))
    place = (1 - top_entropy_quantile) * xp.maximum(xp.as_type(mask, entropies).sum() - 1, 0)
    low, high = (xp.at(in_order, round_to(place)) for round_to in (xp.floor, xp.ceil))
    return mask & (entropies >= xp.where(high > low, low + (high - low) * (place - xp.floor(place)), low))


def _k3(log_ratio: Array) -> Array:
    """exp(d) - d - 1, where d = log(reference / policy).

    It is never negative, and its mean over the policy's own samples is KL(policy || reference): the estimator k3 of
    Schulman, http://joschu.net/blog/kl-approx.html.
    """
    return xp.exp(log_ratio) - log_ratio - 1


def metric_names(config: GRPOLossConfig) -> list[str]:
    """The names of a loss's metrics, with "kl" if the loss has a KL penalty."""
    one = mx.zeros((1, 1))
    _, metrics = grpo_loss_and_metrics(
        config, one, None, mx.zeros(1), one == 0, ref_logps=one if config.beta else None, entropies=one
    )
    return list(metrics)


def token_weights(
    config: GRPOLossConfig, completion_mask: Array, num_items_in_batch: int | Array | None = None
) -> Array:
    """The share of each token in the loss: float32 [B, T], 0 where completion_mask is 0."""
    mask = xp.float32(xp.as_bools(completion_mask, completion_mask))
    return mask * config.type.weight(mask, config, num_items_in_batch)


def token_mean(values: Array, mask: Array, weights: BatchWeights | None = None) -> Array:
    """The mean over completion tokens of values [B, T] or [B, 1]. With `weights`, their share of the batch's."""
    mask = xp.as_type(mask, values)
    return (mask * values * (weights.metric_weight if weights else 1 / xp.maximum(mask.sum(), 1))).sum()


def completion_mean(values: Array, mask: Array, weights: BatchWeights | None = None) -> Array:
    """The mean over completions of values [B, 1]. With `weights`, their share of the batch's."""
    return (values * weights.completion_weight).sum() if weights else values.sum() / mask.shape[0]


def _check_same_shape(name: str, values: Array, logps: Array) -> None:
    if values.shape != logps.shape:
        raise ValueError(f"{name} has shape {values.shape}; expected {logps.shape}, the shape of logps.")
