"""Statistics of the inner values of a forward pass, and of gradients, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.qwen3.kernels import MASKED_FLOAT16
from mlx_grpo_kit.runtime import mx

OUTLIER = 6  # times the root mean square; among a million normal numbers none is expected beyond this


@dataclass(frozen=True)
class Statistics:
    """Statistics of many numbers.

    Attributes:
        size: the count of numbers.
        rms: root mean square of the finite numbers.
        largest: the largest absolute value of the finite numbers.
        zeros: the share that is exactly 0.
        outliers: the share that is more than `OUTLIER` times as large as the rms.
        not_finite: the share that is NaN or infinite; anything above 0 is a defect.
    """

    size: int
    rms: float
    largest: float
    zeros: float
    outliers: float
    not_finite: float


def describe(*values: mx.array) -> Statistics:
    """Statistics of all numbers in some arrays of any shape, taken together, in float64.

    Raises:
        ValueError: the arrays are empty.
    """
    numbers = np.concatenate([np.asarray(value.astype(mx.float32), np.float64).ravel() for value in values] or [[]])
    if not numbers.size:
        raise ValueError("There are no numbers to describe; expected arrays with at least one.")
    sizes = np.abs(numbers[np.isfinite(numbers)])
    rms = float(np.sqrt(np.mean(sizes**2))) if sizes.size else float("nan")
    return Statistics(
        size=numbers.size,
        rms=rms,
        largest=float(sizes.max(initial=0.0)) if sizes.size else float("nan"),
        zeros=float(np.mean(numbers == 0)),
        outliers=float(np.sum(sizes > OUTLIER * rms) / numbers.size),
        not_finite=1 - sizes.size / numbers.size,
    )


def value_statistics(record: Mapping[str, mx.array]) -> dict[str, Statistics]:
    """Statistics of each inner value that a `watch` has recorded, by its name.

    Masked attention scores are left out.
    """
    statistics = {}
    for name, value in record.items():
        if name.endswith(".scores"):
            scores = np.asarray(value.astype(mx.float32))
            value = mx.array(scores[scores > MASKED_FLOAT16 / 2])
        statistics[name] = describe(value)
    return statistics


def layer_statistics(values: Mapping[str, mx.array]) -> dict[str, Statistics]:
    """Statistics of parameters or gradients, with those of a layer taken together: "embedding", "layers.0", ..."""
    layers: dict[str, list[mx.array]] = {}
    for name, value in values.items():
        parts = name.split(".")
        layers.setdefault(".".join(parts[:2] if parts[0] == "layers" else parts[:1]), []).append(value)
    return {layer: describe(*of_layer) for layer, of_layer in layers.items()}
