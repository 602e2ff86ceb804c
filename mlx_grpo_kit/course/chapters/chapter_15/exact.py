"""Exact mean and variance of a group's gradient estimate, by enumerating all possible draws."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np


def group_moments(probs: np.ndarray, rewards: np.ndarray, size: int, baseline: str | float) -> tuple[np.ndarray, float]:
    """The mean [V] and the variance, summed over the components, of a group's estimate of the logits' gradient.

    The estimate is the mean over the group of (reward - baseline) * (one-hot - probs). It depends on how often each
    arm was drawn and not on the order, so there are few different groups: 2,145 for 64 draws of 3 arms.

    Args:
        probs, rewards: [V], one per arm.
        size: the number of draws in a group.
        baseline: a constant, "group mean", or "leave-one-out", which needs at least two draws.

    Raises:
        ValueError: an unknown baseline.
    """
    counts, ways = _counts(len(probs), size)
    total = (counts @ rewards)[:, None]
    if baseline == "group mean":
        compared = rewards - total / size
    elif baseline == "leave-one-out":
        compared = rewards - (total - rewards) / (size - 1)
    elif isinstance(baseline, str):
        raise ValueError(f"baseline {baseline!r}: expected a number, 'group mean' or 'leave-one-out'")
    else:
        compared = rewards - baseline
    says = counts * compared  # the sum over all draws of each arm
    estimates = (says - says.sum(axis=1, keepdims=True) * probs) / size
    chances = ways * np.prod(probs**counts, axis=1)
    mean = chances @ estimates
    return mean, float(max(0.0, chances @ ((estimates - mean) ** 2).sum(axis=1)))


def leave_one_out_variance(probs: np.ndarray, rewards: np.ndarray, scores: np.ndarray, size: int) -> float:
    """The variance, summed over components, of a group's estimate with leave-one-out, for any scores [V, P].

    The estimate is the mean of (score_i - score_j) (reward_i - reward_j) / 2 over all pairs, a U-statistic: its
    variance for any size follows from two moments of one pair (Hoeffding, 1948).
    """
    earned = probs @ rewards
    mean = probs @ scores
    # For one draw, the mean over its partner; for a pair, the mean squared length, with the squares multiplied out.
    seen = scores * (rewards - earned)[:, None] - mean * rewards[:, None] + probs @ (scores * rewards[:, None])
    gradient = probs @ (scores * (rewards - earned)[:, None])
    one = probs @ ((seen / 2) ** 2).sum(axis=1) - gradient @ gradient
    products = scores @ scores.T
    lengths = products.diagonal()
    apart = lengths[:, None] + lengths[None] - 2 * products
    two = probs @ (apart * (rewards[:, None] - rewards[None]) ** 2 / 4) @ probs - gradient @ gradient
    return float((4 * (size - 2) * one + 2 * two) / (size * (size - 1)))


@functools.cache
def _counts(arms: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """All possible counts of the arms in `size` draws, [K, arms], and the number of orders of each, [K]."""
    bars = itertools.combinations(range(size + arms - 1), arms - 1)
    counts = np.array([np.diff([-1, *each, size + arms - 1]) - 1 for each in bars])
    ways = [math.factorial(size) / math.prod(map(math.factorial, row)) for row in counts.tolist()]
    return counts, np.array(ways)
