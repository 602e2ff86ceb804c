"""The learning rate of an optimizer of optax or torchopt, for which neither library has a function.

Both build an optimizer from functions with their settings in closures. One of them scales the update, by minus the rate
(`step_size`) or by a schedule (`step_size_fn`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def reported_rate(given: float | Callable[[int], float] | None, optimizer: Any, step: int) -> float:
    """The rate of update number `step`: the one that is given, a number or a schedule, or else the optimizer's own."""
    if given is None:
        return rate_in(optimizer, step)
    return given(step) if callable(given) else given


def rate_in(optimizer: Any, step: int) -> float:
    """The rate of update number `step`, from 0; NaN unless the optimizer has exactly one scale apart from 1 and -1."""
    scales = [scale(step) if callable(scale) else scale for scale in _scales(optimizer.update, set())]
    others = [float(scale) for scale in scales if abs(float(scale)) != 1]
    if not scales or len(others) > 1:
        return math.nan
    return abs(math.prod(others))


def _scales(part: Any, seen: set[int]) -> list[float | Callable[[int], Any]]:
    if id(part) in seen:
        return []
    seen.add(id(part))
    if isinstance(part, tuple | list):
        return [scale for each in part for scale in _scales(each, seen)]
    found = []
    for name, cell in zip(_names(part), getattr(part, "__closure__", None) or (), strict=False):
        try:
            content = cell.cell_contents
        except ValueError:  # not yet set
            continue
        if name in ("step_size", "step_size_fn"):
            found.append(content)
        else:
            found += _scales(content, seen)
    return found


def _names(function: Any) -> tuple[str, ...]:
    return getattr(getattr(function, "__code__", None), "co_freevars", ())
