"""Metrics of a batch of completions, in Python floats under TRL's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mlx_grpo_kit.grpo.batch import Batch
from mlx_grpo_kit.runtime import mx

GRADIENT_METRICS = ("norm", "largest", "zeros")


def batch_metrics(batch: Batch) -> dict[str, float]:
    """TRL's metrics of N completions. One without a value (no scored completion) is NaN."""
    rewards, lengths = batch.rewards, batch.completions.drawn_lengths
    metrics = {"reward": mean(rewards), "reward_std": _std(rewards)}
    for name, values in batch.scores.by_name.items():
        metrics |= {f"rewards/{name}/mean": mean(values), f"rewards/{name}/std": _std(values)}
    # A group that no function scored has the range NaN, which is not 0: TRL does not count it either.
    groups = rewards.reshape(-1, batch.completions.num_generations)
    ranges = np.fmax.reduce(groups, axis=1) - np.fmin.reduce(groups, axis=1)
    metrics["frac_reward_zero_std"] = float((ranges == 0).mean())
    return (
        metrics
        | {
            "completions/mean_length": mean(lengths),
            "completions/min_length": float(lengths.min()),
            "completions/max_length": float(lengths.max()),
            "completions/clipped_ratio": mean(~batch.completions.finished),
        }
        | {f"rewards/{name}/failed": mean(failed) for name, failed in batch.scores.failed.items()}
        | _tool_metrics(batch)
    )


def _tool_metrics(batch: Batch) -> dict[str, float]:
    """Calls per completion, and the share of calls that failed."""
    conversations = [each for each in batch.completions.conversations if each is not None]
    if not conversations:
        return {}
    calls = sum(each.num_calls for each in conversations)
    failures = sum(each.num_failures for each in conversations)
    return {
        "tools/call_frequency": calls / len(conversations),
        "tools/failure_frequency": failures / calls if calls else 0.0,
    }


def redraw_metrics(batch: Batch) -> dict[str, float]:
    """Dynamic sampling: how many groups were drawn, and the mean reward of all of them."""
    return {
        "dynamic_sampling/groups_drawn": float(sum(map(len, batch.drawn))),
        "dynamic_sampling/reward": mean(np.concatenate(batch.drawn)),
    }


def gradient_metrics(grads: Mapping[str, mx.array]) -> dict[str, float]:
    """Three metrics per parameter's gradient: its length, largest absolute value, and share of exact zeros."""
    metrics: dict[str, float] = {}
    for name, grad in grads.items():
        length, largest = grad.square().sum().sqrt(), grad.abs().max()
        numbers = mx.stack([length, largest, (grad == 0).mean()]).tolist()
        metrics |= {f"gradients/{name}/{of}": number for of, number in zip(GRADIENT_METRICS, numbers, strict=True)}
    return metrics


def mean_metrics(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over several updates; of a smallest or largest value the extreme of them."""
    extreme = {"min": min, "max": max}
    names = dict.fromkeys(name for metrics in history for name in metrics)
    return {
        name: extreme.get(name.rpartition("/")[2], mean)([metrics[name] for metrics in history if name in metrics])
        for name in names
    }


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of the values that are not NaN; NaN where there are none."""
    values = np.asarray(values, np.float64)
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def _std(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan
