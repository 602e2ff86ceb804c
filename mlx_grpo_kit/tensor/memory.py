"""The owner of an array's memory, and the number of its in-place changes."""

from __future__ import annotations

from typing import Any

import numpy as np

CONTAINERS = (np.ndarray, list, tuple)  # a tuple may contain arrays, for example an index


def copied(value: Any) -> Any:
    """Copy an array, or the arrays inside a list or tuple; return anything else unchanged."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return type(value)(map(copied, value)) if type(value) in CONTAINERS else value


class Version:
    """The number of in-place changes of an array's memory. Tensors that share memory share the count."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


BORROWED = Version()  # for the caller's memory, whose changes are not counted


def owner(array: np.ndarray) -> Any:
    """Return the object that owns an array's memory, which is the array itself if it is not a view."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array
