"""What a batch of completions was like, in Python floats under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np


def sampling_metrics(
    rewards: np.ndarray,
    by_name: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    finished: np.ndarray,
    num_generations: int,
) -> dict[str, float]:
    """TRL's metrics of N completions, from what is [N] of each. One without a value (no scored completion) is NaN."""
    metrics = {"reward": mean(rewards), "reward_std": _std(rewards)}
    for name, values in by_name.items():
        metrics |= {f"rewards/{name}/mean": mean(values), f"rewards/{name}/std": _std(values)}
    # A group that no function scored has the range NaN, which is not 0: TRL does not count it either.
    groups = rewards.reshape(-1, num_generations)
    ranges = np.fmax.reduce(groups, axis=1) - np.fmin.reduce(groups, axis=1)
    metrics["frac_reward_zero_std"] = float((ranges == 0).mean())
    return metrics | {
        "completions/mean_length": mean(lengths),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": mean(finished == 0),
    }


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of the values that are not NaN; NaN where there are none."""
    values = np.asarray(values, np.float64)
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def _std(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan
