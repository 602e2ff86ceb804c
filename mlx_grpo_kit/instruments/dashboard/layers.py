"""Gradient norms by layer, from the norms of single parameters that `GRPOConfig(gradient_statistics=True)` records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache

PARAMETER = re.compile(r"gradients/(?:layers\.(\d+)\.)?(\w+).*/norm")


def layers_in(metrics: Iterable[str]) -> list[str]:
    """List the layers whose norms a run has, in the order of the model: "embedding", "layer 0" and so on."""
    found = dict.fromkeys(layer for name in metrics if (layer := _layer_of(name)) is not None)
    before = [name for name in found if name.startswith("embedding")]
    layers = sorted((name for name in found if name.startswith("layer ")), key=lambda name: int(name.split()[1]))
    return [*before, *layers, *(name for name in found if name not in (*before, *layers))]


def layer_norms(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the norm of each layer's gradient: the root of the sum of its parameters' squared norms."""
    squares: dict[str, float] = {}
    for name, value in metrics.items():
        if (layer := _layer_of(name)) is not None:
            squares[layer] = squares.get(layer, 0.0) + value * value
    return {layer: math.sqrt(square) for layer, square in squares.items()}


@cache
def _layer_of(metric: str) -> str | None:
    found = PARAMETER.fullmatch(metric)
    if found is None:
        return None
    return f"layer {found[1]}" if found[1] else found[2].replace("_", " ")
