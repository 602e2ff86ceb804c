"""Rotary embeddings slowed down, so that a model can read longer texts than in training.

A pair of numbers that makes many rotations in a text of the training length keeps its speed, one that makes few rotates
`factor` times slower, and in between the speed is a mixture. YaRN (Peng et al. 2023) and Llama 3 differ in the mixture.
"""

from __future__ import annotations

import math
from functools import lru_cache

from mlx_grpo_kit.qwen3.config import Llama3Scaling, RopeScaling, YarnScaling


def rope_attention_factor(scaling: RopeScaling) -> float:
    """The factor of queries and keys. YaRN's keeps attention sharp over more tokens (equation 15); Llama 3's is 1."""
    if isinstance(scaling, Llama3Scaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    log_factor = math.log(scaling.factor)
    if scaling.mscale is None or scaling.mscale_all_dim is None:
        return 0.1 * log_factor + 1
    return (0.1 * scaling.mscale * log_factor + 1) / (0.1 * scaling.mscale_all_dim * log_factor + 1)


@lru_cache
def rope_wavelengths(scaling: RopeScaling, head_dim: int, theta: float) -> tuple[float, ...]:
    """The number of positions in which each of the head_dim / 2 pairs of numbers rotates by one radian."""
    frequencies = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if isinstance(scaling, Llama3Scaling):
        slowed = [_slowed_by_llama3(scaling, frequency) for frequency in frequencies]
    else:
        slowed = _slowed_by_yarn(scaling, head_dim, theta)
    return tuple(
        1 / (share * frequency / scaling.factor + (1 - share) * frequency)
        for share, frequency in zip(slowed, frequencies, strict=True)
    )


def _slowed_by_llama3(scaling: Llama3Scaling, frequency: float) -> float:
    """The share of the slow speed in the mixture of one pair, by its rotations in a text of the training length."""
    rotations = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return min(max((high - rotations) / (high - low), 0.0), 1.0)


def _slowed_by_yarn(yarn: YarnScaling, head_dim: int, theta: float) -> list[float]:
    """The share of the slow speed in the mixture of each pair, which grows in a straight line from pair to pair."""

    def pair_that_turns(rounds: float) -> float:
        radians = 2 * math.pi * rounds
        return head_dim * math.log(yarn.original_max_position_embeddings / radians) / (2 * math.log(theta))

    first, last = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    return [min(max((pair - first) / width, 0.0), 1.0) for pair in range(head_dim // 2)]
