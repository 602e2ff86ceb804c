"""The owner of an array's memory, and the number of in-place changes."""

from __future__ import annotations

from typing import Any

import numpy as np

CONTAINERS = (np.ndarray, list, tuple)  # a tuple may contain arrays, for example an index


def copied(value: Any) -> Any:
    """A copy of an array, and of the arrays within lists and tuples; anything else unchanged."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return type(value)(map(copied, value)) if type(value) in CONTAINERS else value


class Version:
    """The number of in-place changes of an array's memory. Tensors that share memory share the count."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


BORROWED = Version()  # for memory of the caller, whose changes are not counted


def owner(array: np.ndarray) -> Any:
    """The object that owns a view's memory; the array itself if it owns its memory."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array
