"""From logits to the next token: filters, temperature, a random draw, and its log-probability.

The filters take log-probabilities [..., V] and return them with excluded tokens set to -inf. Their order in
`sample_token` is top-k, min-p, top-p, then temperature. Other libraries use another order, and so keep other tokens if
the temperature is not 1: transformers and TRL apply the temperature first, mlx-lm runs top-p, min-p, top-k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from mlx_grpo_kit.qwen3.kernels import exp
from mlx_grpo_kit.runtime import mx

MIN_TEMPERATURE = 1e-6
"""The smallest temperature. Below it, sampling equals temperature 0 for any two different float32 logits."""

LARGEST_UNIFORM = 1 - 2**-22
"""The largest random number of a draw: times a sum of probabilities it stays below the sum."""


@dataclass(frozen=True)
class SamplingConfig:
    """Settings for sampling tokens. With the defaults, tokens come from the unfiltered policy.

    Attributes:
        max_new_tokens: a completion without an end token is cut off here.
        temperature: the divisor of the logits, at least 1e-6; or 0, which takes the likeliest token.
        top_k: keep the k likeliest tokens; None, 0, or a k larger than the vocabulary keeps all.
        top_p: keep the likeliest tokens that together reach this probability (nucleus, Holtzman et al. 2020).
        min_p: keep tokens at least this fraction as likely as the likeliest (Nguyen et al. 2024); None or 0: all.

    Raises:
        ValueError: a number is out of range.
        TypeError: a setting is not a number, or is a fraction although only whole numbers make sense.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float | None = None

    def __post_init__(self):
        check_whole("max_new_tokens", self.max_new_tokens)
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; expected at least 1.")
        _check_sampling(self.temperature, self.top_k, self.top_p, self.min_p)


def apply_top_k(logprobs: mx.array, top_k: int) -> mx.array:
    """Keep the `top_k` likeliest of [..., V]; V or more keeps all.

    Raises:
        ValueError: `top_k` is below 1.
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; expected at least 1, or None in sample_token to keep all tokens.")
    if top_k >= logprobs.shape[-1]:
        return logprobs
    out = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, out, mx.array(-math.inf, logprobs.dtype), axis=-1)


def apply_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """Keep the fewest tokens of [..., V] whose probabilities reach `top_p`; the likeliest always stays.

    Raises:
        ValueError: `top_p` is not above 0 and at most 1.
    """
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; expected more than 0 and at most 1.")
    if top_p == 1:
        return logprobs
    logprobs = logprobs.astype(mx.float32)  # a bfloat16 sum stops growing long before it reaches 1
    probs = mx.softmax(logprobs, axis=-1)  # renormalize after earlier filters
    order = mx.argsort(-logprobs, axis=-1)
    ordered = mx.take_along_axis(probs, order, axis=-1)
    likelier = mx.cumsum(ordered, axis=-1) - ordered  # the probability of all likelier tokens
    # In float32 a tiny top_p would be 0, and would exclude even the likeliest token, whose preceding sum is 0.
    out = mx.put_along_axis(mx.zeros_like(likelier), order, likelier, axis=-1) >= max(top_p, 1e-30)
    return mx.where(out, -math.inf, logprobs)


def apply_min_p(logprobs: mx.array, min_p: float) -> mx.array:
    """Keep tokens of [..., V] whose probability is at least `min_p` times the largest.

    Raises:
        ValueError: `min_p` is not above 0 and at most 1.
    """
    if not 0 < min_p <= 1:
        raise ValueError(
            f"min_p is {min_p}; expected more than 0 and at most 1, or None in sample_token to keep all tokens."
        )
    threshold = logprobs.max(axis=-1, keepdims=True) + math.log(min_p)
    return mx.where(logprobs < threshold, -math.inf, logprobs)


def categorical_sampling(logits: mx.array, temperature: float, key: mx.array | None = None) -> mx.array:
    """Sample from softmax(logits / temperature), [..., V] -> int [...]; argmax at temperature 0.

    `key` makes it repeatable.
    """
    return draw(logits, temperature, mx.random.uniform(shape=logits.shape[:-1], key=key))


def draw(logits: mx.array, temperature: float, uniform: mx.array) -> mx.array:
    """The token at which the sum of probabilities passes `uniform`, a number in [0, 1): [..., V] and [...] -> [...].

    This is inverse transform sampling. It needs one random number per row; Gumbel's trick needs V of them and two
    logarithms each.
    """
    if temperature == 0:
        return mx.argmax(logits, axis=-1)
    powers = exp(shifted(logits, temperature))
    sums = mx.cumsum(powers, axis=-1)
    # Rounding must not raise the bound to the total, and must not select a token of probability 0.
    bound = mx.minimum(uniform, LARGEST_UNIFORM)[..., None] * sums[..., -1:]
    return mx.argmax((sums > bound) & (powers > 0), axis=-1)


def shifted(logits: mx.array, temperature: float) -> mx.array:
    """logits / temperature in float32, shifted so that the largest is 0; temperature 0 counts as 1.

    Softmax does not change if all logits are shifted by the same amount, so the shift has no gradient.
    """
    logits = logits.astype(mx.float32)
    return (logits - mx.stop_gradient(logits.max(axis=-1, keepdims=True))) * (1 / (temperature or 1.0))


def sample_token(
    logits: mx.array,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    min_p: float | None = None,
    key: mx.array | None = None,
) -> mx.array:
    """The next token for each row of logits, [..., V] -> [...]. Settings and errors are those of `SamplingConfig`."""
    _check_sampling(temperature, top_k, top_p, min_p)
    return categorical_sampling(filtered(logits, top_p, top_k, min_p), temperature, key)


def filtered(logits: mx.array, top_p: float, top_k: int | None, min_p: float | None) -> mx.array:
    """Logits [..., V], with those of excluded tokens set to -inf."""
    if top_k:
        logits = apply_top_k(logits, top_k)
    if min_p:
        logits = apply_min_p(logits, min_p)
    return apply_top_p(logits, top_p) if top_p < 1 else logits


def token_logps(
    logits: mx.array,
    token_ids: mx.array,
    temperature: float = 1.0,
    with_entropy: bool = False,
    entropy_gradient: bool = False,
) -> mx.array | tuple[mx.array, mx.array]:
    """log softmax(logits / temperature) of the given tokens, float32: [..., V] and [...] -> [...].

    With temperature 0, where sampling is no longer random, the log-probabilities are those of temperature 1.
    `with_entropy` adds the entropy of the same distribution in nats, [...], which has a gradient only with
    `entropy_gradient`. The [..., V] table of log-probabilities is never built: one gather minus one logsumexp is
    enough.
    """
    scaled = shifted(logits, temperature)
    powers = exp(scaled)
    total = powers.sum(axis=-1)
    log_total = mx.log(total)
    logps = mx.take_along_axis(scaled, token_ids[..., None], axis=-1)[..., 0] - log_total
    if not with_entropy:
        return logps
    # A token of probability 0 has logit -inf and adds 0 to the entropy, not 0 * inf.
    weighted = mx.where(powers > 0, powers * scaled, 0.0).sum(axis=-1)
    entropy = log_total - weighted / total
    return logps, entropy if entropy_gradient else mx.stop_gradient(entropy)


def _check_sampling(temperature: float, top_k: int | None, top_p: float, min_p: float | None) -> None:
    for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        if not isinstance(value, Real) and (name, value) != ("min_p", None):
            raise TypeError(f"{name} is {value!r}; expected a number.")
    if top_k is not None:
        check_whole("top_k", top_k)
    if temperature != 0 and not MIN_TEMPERATURE <= temperature < math.inf:
        raise ValueError(
            f"temperature is {temperature}; expected 0 (always the likeliest token) or at least {MIN_TEMPERATURE}."
        )
    if top_k is not None and top_k < 0:
        raise ValueError(f"top_k is {top_k}; expected 1 or more, or None to keep all tokens.")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; expected more than 0 and at most 1.")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p is {min_p}; expected 0 to 1, or None to keep all tokens.")


def check_whole(name: str, value: int) -> None:
    """Raise TypeError for anything that is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}; expected a whole number.")
