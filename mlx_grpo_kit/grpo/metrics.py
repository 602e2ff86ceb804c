"""What a batch of completions was like, in Python floats under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.trainer import Completion


def sampling_metrics(
    completions: Sequence[Completion], rewards: np.ndarray, by_name: Mapping[str, np.ndarray], num_generations: int
) -> dict[str, float]:
    """TRL's metrics of a batch of completions. A metric without a value in this step (no scored completion) is NaN."""
    metrics = {"reward": mean(rewards), "reward_std": _std(rewards)}
    for name, values in by_name.items():
        metrics |= {f"rewards/{name}/mean": mean(values), f"rewards/{name}/std": _std(values)}
    # A group that no function scored has the range NaN, which is not 0: TRL does not count it either.
    groups = rewards.reshape(-1, num_generations)
    ranges = np.fmax.reduce(groups, axis=1) - np.fmin.reduce(groups, axis=1)
    metrics["frac_reward_zero_std"] = float((ranges == 0).mean())
    lengths = [len(completion.completion_ids) for completion in completions]
    metrics |= {
        "completions/mean_length": mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": mean([not completion.finished for completion in completions]),
    }
    return metrics


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of the values that are not NaN; NaN where there are none."""
    values = np.asarray(values, np.float64)
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def _std(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan
