"""YaRN: rotary embeddings slowed down, so that a model can read longer texts than in training (Peng et al. 2023)."""

from __future__ import annotations

import math
from functools import lru_cache

from mlx_grpo_kit.qwen3.config import YarnScaling


def yarn_attention_factor(yarn: YarnScaling) -> float:
    """The factor for queries and keys that keeps attention sharp over more tokens (equation 15)."""
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    log_factor = math.log(yarn.factor)
    if yarn.mscale is None or yarn.mscale_all_dim is None:
        return 0.1 * log_factor + 1
    return (0.1 * yarn.mscale * log_factor + 1) / (0.1 * yarn.mscale_all_dim * log_factor + 1)


@lru_cache
def yarn_wavelengths(yarn: YarnScaling, head_dim: int, theta: float) -> tuple[float, ...]:
    """The number of positions in which each of the head_dim / 2 pairs of numbers rotates by one radian."""

    def pair_that_turns(rounds: float) -> float:
        radians = 2 * math.pi * rounds
        return head_dim * math.log(yarn.original_max_position_embeddings / radians) / (2 * math.log(theta))

    first, last = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    wavelengths = []
    for pair in range(head_dim // 2):
        slowed = min(max((pair - first) / width, 0.0), 1.0)
        frequency = theta ** (-2 * pair / head_dim)
        wavelengths.append(1 / (slowed * frequency / yarn.factor + (1 - slowed) * frequency))
    return tuple(wavelengths)
