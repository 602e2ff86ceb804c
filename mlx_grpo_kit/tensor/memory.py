"""Whose memory an array looks at, and how often it was changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np

CONTAINERS = (np.ndarray, list, tuple)  # of numbers; a tuple may hold arrays, as an index does


def copied(value: Any) -> Any:
    """A copy of an array, and of the arrays within lists and tuples; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return type(value)(map(copied, value)) if type(value) in CONTAINERS else value


class Version:
    """The number of in-place changes of an array's memory. Tensors that share memory share the count."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


BORROWED = Version()  # of memory that is the caller's: nobody counts its changes


def owner(array: np.ndarray) -> Any:
    """The object whose memory a view looks at; the array itself if it has its own."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array
