"""The GRPO loss and its relatives.

Every loss type answers two questions, and `LOSS_TYPES` below is the table of the answers:

* the objective: what should become large, token by token. The classic is PPO's min(r A, clip(r) A), where A is the
  completion's advantage and r = exp(logp - old_logp) says how much likelier the token is now than when it was sampled;
* the weight: what share of the loss one token has. That is where length bias hides.

The loss is the sum over completion tokens of weight * (beta * KL - objective). The formulas, the names and the edge
cases are TRL 1.16's.

`xp` stands for the framework that the arrays are of, MLX, torch or JAX (`arrays.py`): each differentiates these very
lines.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array

IMPORTANCE_SAMPLING_LEVELS = ("token", "sequence")

# SAPO's gate is a little sharper for bad completions; VESPO's (k, lambda) are the shape of its Gamma weighting.
# Both are the papers' values and TRL's defaults.
SAPO_TEMPERATURE_POSITIVE, SAPO_TEMPERATURE_NEGATIVE = 1.0, 1.05
VESPO_POSITIVE, VESPO_NEGATIVE = (2.0, 3.0), (3.0, 2.0)


@dataclass(frozen=True)
class GRPOLossConfig:
    """What the loss looks like; the names and, but for two, the defaults are TRL's.

    Attributes:
        loss_type: a row of `LOSS_TYPES`.
        epsilon: the ratio may fall to 1 - epsilon before a bad completion's token is clipped.
        epsilon_high: the ratio may rise to 1 + epsilon_high before a good completion's token is clipped; None means
            epsilon. DAPO recommends 0.28. For "cispo" it is the largest weight itself (about 5), and must be given.
        delta: cap of the ratio also where PPO's minimum does not clip it, in tokens of bad completions (INTELLECT-2,
            https://arxiv.org/abs/2505.07291). Recommended: more than 1 + epsilon_high.
        beta: weight of the KL penalty that keeps the policy near the reference.
        importance_sampling_level: "token": one ratio a token; "sequence": one ratio a completion, the geometric mean of
            its tokens' ratios (GSPO, https://arxiv.org/abs/2507.18071).
        max_completion_length: the constant length that "dr_grpo" divides by. No default (TRL: 512), because a wrong
            constant looks like a wrong learning rate.
        use_bias_correction_kl: multiply the KL penalty by the ratio (DeepSeek-V3.2, https://arxiv.org/abs/2512.02556).
            False is the plain k3 estimator; TRL 1.16's default is True.
        entropy_coef: weight of the entropy bonus, the mean entropy of the distributions that tokens were drawn from: a
            policy is paid for staying undecided. It is that mean whatever the loss type.
        top_entropy_quantile: the share of tokens that have a policy loss, those whose distribution had the highest
            entropy ("Beyond the 80/20 Rule", https://arxiv.org/abs/2506.01939, recommends 0.2). The others keep their
            place in what is divided by, and their KL penalty. 1 keeps all; 0 the one with the highest.

    Raises:
        ValueError: a setting that is unknown, out of range, or missing for the loss type.
    """

    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    importance_sampling_level: str = "token"
    max_completion_length: int | None = None
    use_bias_correction_kl: bool = False
    entropy_coef: float = 0.0
    top_entropy_quantile: float = 1.0

    def __post_init__(self):
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

    @property
    def clip_range(self) -> tuple[float, float]:
        """(lowest, highest) ratio that the clipped objective rewards."""
        return 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)

    @property
    def needs_entropies(self) -> bool:
        """Whether the loss looks at the entropies of the distributions that tokens were drawn from."""
        return self.entropy_coef != 0 or self.top_entropy_quantile < 1

    @property
    def micro_batches_add_up(self) -> bool:
        """Accumulate by adding losses that were given the batch's num_items_in_batch; else by averaging losses."""
        return LOSS_TYPES[self.loss_type][1] is _mean_over_batch_tokens


def compute_grpo_loss(
    logps: Array,
    old_logps: Array | None,
    advantages: Array,
    completion_mask: Array,
    *,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    beta: float = 0.0,
    ref_logps: Array | None = None,
    loss_type: str = "dapo",
    importance_sampling_level: str = "token",
    max_completion_length: int | None = None,
    num_items_in_batch: int | Array | None = None,
    use_bias_correction_kl: bool = False,
    entropies: Array | None = None,
    entropy_coef: float = 0.0,
    top_entropy_quantile: float = 1.0,
) -> Array:
    """The GRPO loss of B completions of up to T tokens: a scalar to minimise, differentiable in `logps`.

    Equation 3 of https://arxiv.org/abs/2402.03300 with loss_type="grpo"; the default is DAPO's, equation 8 of
    https://arxiv.org/abs/2503.14476. The arrays and what is raised are described at `grpo_loss_and_metrics`, the
    settings at `GRPOLossConfig`.
    """
    config = GRPOLossConfig(
        loss_type=loss_type,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        delta=delta,
        beta=beta,
        importance_sampling_level=importance_sampling_level,
        max_completion_length=max_completion_length,
        use_bias_correction_kl=use_bias_correction_kl,
        entropy_coef=entropy_coef,
        top_entropy_quantile=top_entropy_quantile,
    )
    loss, _ = grpo_loss_and_metrics(
        config,
        logps,
        old_logps,
        advantages,
        completion_mask,
        ref_logps=ref_logps,
        entropies=entropies,
        num_items_in_batch=num_items_in_batch,
    )
    return loss


class Part(NamedTuple):
    """What completions weigh that are part of a larger batch: the losses and metrics of all its parts add up.

    Attributes:
        token_weight: [B, 1], the share of the loss that one token of each completion has (`token_weights`).
        metric_weight: [B, 1], the share that it has in a metric which is a mean over tokens.
        num_completions: completions of the whole batch, for metrics which are a mean over completions.
        policy_mask: bool [B, T], the tokens that `top_entropy_quantile` keeps.
        entropy_weight: [B, 1], the share that one token of those has in the entropy bonus.
    """

    token_weight: Array
    metric_weight: Array
    num_completions: int
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
    num_items_in_batch: int | Array | None = None,
    part: Part | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The loss, and what TRL logs about it.

    The arrays are MLX's, torch's or JAX's, as `logps` is. The metrics come from the same forward pass, so
    `mx.value_and_grad` of this function gives all three; MLX's are lazy until they are evaluated with the loss.

    Args:
        config: what the loss looks like.
        logps: [B, T] log-probabilities of the sampled tokens under the policy that is trained, at the temperature they
            were sampled with. Half precision is computed in float32.
        old_logps: [B, T] the same under the policy that sampled. None means it is this very policy: every ratio is 1,
            and the gradient is the policy gradient all the same. No gradient flows into it, nor into ref_logps, so
            passing logps itself is safe.
        advantages: [B], from `compute_advantages`.
        completion_mask: [B, T], 1 or True for the tokens that the policy chose, up to and including the first EOS. What
            stands at the other places, NaN and infinities too, has no influence on the loss or the gradient.
        ref_logps: [B, T] log-probabilities under the reference policy. Needed when beta > 0; with beta 0 it only
            adds the metric.
        entropies: [B, T] of the distributions under the policy that is trained. Needed with entropy_coef, which needs
            their gradient too (`score` leaves it out unless asked), or top_entropy_quantile.
        num_items_in_batch: completion tokens in the whole batch of one optimizer step, for "dapo", "cispo", "vespo" and
            "reinforce". Then the gradients of its micro-batches add up to that of the batch. None counts this batch's
            tokens. The others are means over their micro-batch: average those (see
            `GRPOLossConfig.micro_batches_add_up`).
        part: what these completions weigh in a larger batch, if they are not to be weighed among themselves; then
            num_items_in_batch is not looked at.

    Returns:
        The loss, a scalar, and the metrics, scalars by name: "kl" when ref_logps is given (times the ratio with
        use_bias_correction_kl, as TRL logs it); "clip_ratio/low_mean", "clip_ratio/high_mean" and
        "clip_ratio/region_mean", the share of completion tokens (of completions, at level "sequence") whose gradient is
        clipped away because the token fell too far (low), rose too far (high), or either; for cispo "cispo_clip_ratio";
        for vespo "vespo/phi_seq_mean"; with entropy_coef "policy_loss", the loss without the bonus.

    Raises:
        ValueError: an array whose shape does not fit, beta without ref_logps, entropies that are missing.
    """
    tokens = token_losses(
        config,
        logps,
        old_logps,
        advantages,
        completion_mask,
        ref_logps=ref_logps,
        entropies=entropies,
        num_items_in_batch=num_items_in_batch,
        part=part,
    )
    loss = (tokens.mask * tokens.weights * tokens.losses).sum()
    metrics = {name: token_mean(xp.stop_gradient(values), tokens.mask, part) for name, values in tokens.events.items()}
    if config.entropy_coef:
        metrics["policy_loss"] = xp.stop_gradient(loss)
        kept = tokens.policy_mask
        weight = 1 / xp.maximum(kept.sum(), 1) if part is None else part.entropy_weight
        loss = loss - config.entropy_coef * (weight * xp.where(kept, xp.as_floats(entropies, logps), 0.0)).sum()
    return loss, metrics


class TokenLosses(NamedTuple):
    """A loss before its tokens are added up: it is sum(mask * weights * losses).

    Attributes:
        losses: [B, T], or [B, 1] where every token of a completion shares the value.
        weights: the share of the loss that one token has: [], [B, 1] or [B, T].
        events: by the name of the metric that is its mean, what became of each token: [B, T] or [B, 1].
        mask: [B, T] bool.
        policy_mask: [B, T] bool, those of them that `top_entropy_quantile` keeps, on which the entropy bonus acts too.
    """

    losses: Array
    weights: Array | float
    events: dict[str, Array]
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
    num_items_in_batch: int | Array | None = None,
    part: Part | None = None,
) -> TokenLosses:
    """What `grpo_loss_and_metrics` adds up, token by token; its arguments, and what it raises."""
    logps = xp.as_floats(logps, logps)
    if logps.ndim != 2 or 0 in logps.shape:
        raise ValueError(f"logps has shape {logps.shape}; expected (B, T): one row a completion, one column a token.")
    if config.beta != 0 and ref_logps is None:
        raise ValueError(f"beta is {config.beta}, so ref_logps is needed: the reference's log-probabilities, [B, T].")
    if config.needs_entropies and entropies is None:
        raise ValueError(
            f"entropy_coef is {config.entropy_coef} and top_entropy_quantile {config.top_entropy_quantile}, so "
            "entropies are needed: those of the distributions that the tokens were drawn from, [B, T]."
        )
    if entropies is not None:
        _check_same_shape("entropies", xp.as_floats(entropies, logps), logps)
    advantages = xp.as_floats(advantages, logps)
    if advantages.shape != logps.shape[:1]:
        raise ValueError(
            f"advantages has shape {advantages.shape}; expected {logps.shape[:1]}: one for each of the completions in "
            f"logps, whose shape is {logps.shape}."
        )
    mask = xp.as_bools(completion_mask, logps)
    _check_same_shape("completion_mask", mask, logps)

    # The one place where the mask meets the log-probabilities. A masked position becomes 0 in each of them, so its
    # ratio is 1 and its KL 0. Masking only the finished loss would be too late: by then exp may have overflowed, and
    # the gradient of 0 * inf is NaN under a loss that looks fine.
    def at_completion_tokens(name: str, values: Array) -> Array:
        _check_same_shape(name, values, logps)
        return xp.where(mask, values, 0.0)

    current = at_completion_tokens("logps", logps)
    old = current if old_logps is None else at_completion_tokens("old_logps", xp.as_floats(old_logps, logps))
    log_ratio = current - xp.stop_gradient(old)
    batch = _Batch(
        logps=current,
        log_ratio=log_ratio,
        ratio=_importance_ratio(log_ratio, mask, config.importance_sampling_level),
        advantages=xp.stop_gradient(advantages)[:, None],
        mask=mask,
    )

    objective, token_weight = LOSS_TYPES[config.loss_type]
    per_token_objective, events = objective(batch, config)
    per_token_loss = -per_token_objective
    policy_mask = mask
    if config.top_entropy_quantile < 1:
        quantile = config.top_entropy_quantile
        policy_mask = high_entropy_mask(entropies, mask, quantile) if part is None else part.policy_mask
        per_token_loss = per_token_loss * policy_mask
    if ref_logps is not None:
        reference = xp.stop_gradient(at_completion_tokens("ref_logps", xp.as_floats(ref_logps, logps)))
        kl = _k3(reference - current)
        if config.use_bias_correction_kl:
            kl = kl * batch.ratio
        events["kl"] = kl
        if config.beta != 0:
            per_token_loss = per_token_loss + config.beta * kl

    weight = token_weight(mask, config, num_items_in_batch) if part is None else part.token_weight
    return TokenLosses(per_token_loss, weight, events, mask, policy_mask)


def high_entropy_mask(entropies: Array, completion_mask: Array, top_entropy_quantile: float) -> Array:
    """Which completion tokens of a batch are among the `top_entropy_quantile` with the highest entropy: bool [B, T].

    Those at or above the quantile 1 - top_entropy_quantile of all of them, which stands between two of them where it
    falls there, as `torch.quantile` has it. "Beyond the 80/20 Rule", https://arxiv.org/abs/2506.01939, equation 7.
    """
    entropies = xp.as_floats(entropies, entropies)
    mask = xp.as_bools(completion_mask, entropies)
    entropies = xp.where(mask, xp.stop_gradient(entropies), math.inf)
    in_order = xp.sort(entropies.reshape(-1))
    place = (1 - top_entropy_quantile) * xp.maximum(mask.sum() - 1, 0)
    low, high = (xp.at(in_order, round_to(place)) for round_to in (xp.floor, xp.ceil))
    return mask & (entropies >= xp.where(high > low, low + (high - low) * (place - xp.floor(place)), low))


class _Batch(NamedTuple):
    """What an objective may look at. Columns: T, or 1 where every token of a completion shares the value."""

    logps: Array  # [B, T], 0 where masked
    log_ratio: Array  # [B, T], 0 where masked
    ratio: Array  # [B, T] at level "token", [B, 1] at level "sequence"
    advantages: Array  # [B, 1]
    mask: Array  # [B, T] bool


def _importance_ratio(log_ratio: Array, mask: Array, level: str) -> Array:
    if level == "sequence":
        log_ratio = log_ratio.sum(axis=1, keepdims=True) / _lengths(mask)
    return xp.exp(log_ratio)


def _k3(log_ratio: Array) -> Array:
    """exp(d) - d - 1, where d = log(reference / policy).

    It is never negative, and its mean over the policy's own samples is KL(policy || reference): the estimator k3 of
    Schulman, http://joschu.net/blog/kl-approx.html.
    """
    return xp.exp(log_ratio) - log_ratio - 1


# The objectives: (batch, config) -> (objective [B, T] or [B, 1], {metric name: value or event of each token}).

_Objective = Callable[[_Batch, GRPOLossConfig], tuple[Array, dict[str, Array]]]


def _clipped(batch: _Batch, config: GRPOLossConfig) -> tuple[Array, dict[str, Array]]:
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A). PPO, https://arxiv.org/abs/1707.06347, equation 7."""
    low, high = config.clip_range
    ratio, advantages = batch.ratio, batch.advantages
    clipped_ratio = _clamp(ratio, low, high)
    if config.delta is not None:
        ratio = _clamp(ratio, -math.inf, config.delta)
    too_low = (ratio < low) & (advantages < 0)
    too_high = (ratio > high) & (advantages > 0)
    events = {
        "clip_ratio/low_mean": too_low,
        "clip_ratio/high_mean": too_high,
        "clip_ratio/region_mean": too_low | too_high,
    }
    return xp.minimum(ratio * advantages, clipped_ratio * advantages), events


def _reinforce(batch: _Batch, config: GRPOLossConfig) -> tuple[Array, dict[str, Array]]:
    """A logp, without a ratio: right for one update from each batch, and blind to how far the policy has gone since.

    Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    return batch.advantages * batch.logps, {}


def _rloo(batch: _Batch, config: GRPOLossConfig) -> tuple[Array, dict[str, Array]]:
    """PPO's clip of the whole completion's ratio, the product over its tokens: one action, as RLOO sees it.

    Shared out evenly among its tokens, whose sum it is. TRL's `RLOOTrainer`; https://arxiv.org/abs/2402.14740.
    """
    ratio = xp.exp(batch.log_ratio.sum(axis=1, keepdims=True))
    objective, events = _clipped(batch._replace(ratio=ratio), config)
    return objective / _lengths(batch.mask), events


def _cispo(batch: _Batch, config: GRPOLossConfig) -> tuple[Array, dict[str, Array]]:
    """stop_gradient(min(r, epsilon_high)) A logp: a far-off token weighs less, but none loses its gradient.

    CISPO, MiniMax-M1, https://arxiv.org/abs/2506.13585.
    """
    weight = xp.stop_gradient(xp.minimum(batch.ratio, config.epsilon_high))
    events = {"cispo_clip_ratio": (batch.ratio > config.epsilon_high) & (batch.advantages > 0)}
    return weight * batch.advantages * batch.logps, events


def _sapo(batch: _Batch, config: GRPOLossConfig) -> tuple[Array, dict[str, Array]]:
    """sigmoid(tau (r - 1)) * (4 / tau) * A: a clip without edges. Its slope at r = 1 is A, as for the clip.

    SAPO, https://arxiv.org/abs/2511.20347.
    """
    tau = xp.where(batch.advantages > 0, SAPO_TEMPERATURE_POSITIVE, SAPO_TEMPERATURE_NEGATIVE)
    return xp.sigmoid(tau * (batch.ratio - 1)) * (4 / tau) * batch.advantages, {}


def _vespo(batch: _Batch, config: GRPOLossConfig) -> tuple[Array, dict[str, Array]]:
    """stop_gradient(phi) A logp, where phi = exp(lambda + k log w - lambda w) and w is the whole completion's ratio.

    phi is 1 on-policy and goes smoothly to 0 where w does and where w grows. w is a product over tokens, whatever the
    importance sampling level, so its logarithm is bounded before exp. VESPO, https://arxiv.org/abs/2602.10693.
    """
    log_w = xp.clip(batch.log_ratio, -20, 20).sum(axis=1, keepdims=True)
    log_w = xp.clip(log_w, math.log(1e-8), 20)
    good = batch.advantages >= 0
    k = xp.where(good, VESPO_POSITIVE[0], VESPO_NEGATIVE[0])
    lam = xp.where(good, VESPO_POSITIVE[1], VESPO_NEGATIVE[1])
    phi = xp.stop_gradient(xp.exp(lam + k * log_w - lam * xp.exp(log_w)))
    return phi * batch.advantages * batch.logps, {"vespo/phi_seq_mean": phi}


# The weights: (mask, config, num_items_in_batch) -> the share of the loss one completion token has, [] or [B, 1].

_TokenWeight = Callable[[Array, GRPOLossConfig, int | Array | None], Array | float]


def _mean_of_completion_means(mask, config, num_items_in_batch):
    """Completions count alike, so a token of a short one weighs more: brief good and long bad answers are favoured."""
    return 1 / (mask.shape[0] * _lengths(mask))


def _mean_of_completion_sums(mask, config, num_items_in_batch):
    """Tokens count alike, whatever the length. LUSPO, https://arxiv.org/abs/2602.05261."""
    return 1 / mask.shape[0]


def _constant_length(mask, config, num_items_in_batch):
    """As if every completion were of full length. Dr. GRPO, https://arxiv.org/abs/2503.20783."""
    return 1 / (mask.shape[0] * config.max_completion_length)


def _mean_over_these_tokens(mask, config, num_items_in_batch):
    """Tokens of this micro-batch count alike, but a token among fewer weighs more."""
    return 1 / xp.maximum(mask.sum(), 1)


def _mean_over_batch_tokens(mask, config, num_items_in_batch):
    """Tokens of the optimizer step's whole batch count alike. DAPO, https://arxiv.org/abs/2503.14476."""
    return 1 / xp.maximum(mask.sum() if num_items_in_batch is None else num_items_in_batch, 1)


LOSS_TYPES: dict[str, tuple[_Objective, _TokenWeight]] = {
    "grpo": (_clipped, _mean_of_completion_means),
    "bnpo": (_clipped, _mean_over_these_tokens),
    "dr_grpo": (_clipped, _constant_length),
    "dapo": (_clipped, _mean_over_batch_tokens),
    "luspo": (_clipped, _mean_of_completion_sums),
    "cispo": (_cispo, _mean_over_batch_tokens),
    "sapo": (_sapo, _mean_of_completion_means),
    "vespo": (_vespo, _mean_over_batch_tokens),
    "reinforce": (_reinforce, _mean_over_batch_tokens),
    "rloo": (_rloo, _mean_of_completion_sums),
}


def metric_names(config: GRPOLossConfig) -> list[str]:
    """The metrics that a loss has, with "kl" where it pulls towards a reference."""
    one = mx.zeros((1, 1))
    _, metrics = grpo_loss_and_metrics(
        config, one, None, mx.zeros(1), one == 0, ref_logps=one if config.beta else None, entropies=one
    )
    return list(metrics)


def token_weights(
    config: GRPOLossConfig, completion_mask: Array, num_items_in_batch: int | Array | None = None
) -> Array:
    """The share that each token has in the loss: [B, T] float32, 0 where completion_mask is."""
    mask = xp.as_bools(completion_mask, completion_mask)
    _, token_weight = LOSS_TYPES[config.loss_type]
    return mask * token_weight(mask, config, num_items_in_batch)


def _clamp(values: Array, low: float, high: float) -> Array:
    """torch.clamp: a value exactly on an edge keeps its gradient. `mx.clip` would take it away."""
    return xp.where(values < low, low, xp.where(values > high, high, values))


def _lengths(mask: Array) -> Array:
    """[B, T] -> [B, 1] completion tokens; 1 for a completion without any, which divides zeros."""
    return xp.maximum(mask.sum(axis=1, keepdims=True), 1)


def token_mean(values: Array, mask: Array, part: Part | None = None) -> Array:
    """Mean over completion tokens; over completions where a whole completion shares one value. Of a part: its share."""
    if values.shape != mask.shape:
        return xp.float32(values).sum() / (part.num_completions if part else mask.shape[0])
    return (mask * values * (part.metric_weight if part else 1 / xp.maximum(mask.sum(), 1))).sum()


def _check_same_shape(name: str, values: Array, logps: Array) -> None:
    if values.shape != logps.shape:
        raise ValueError(f"{name} has shape {values.shape}; expected {logps.shape}, the shape of logps.")


def _check_choice(name: str, value: str, known) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}.")
