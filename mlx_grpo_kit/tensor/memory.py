"""The owner of an array's memory, and the number of its in-place changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def mapped(change: Callable[[np.ndarray], Any], value: Any) -> Any:
    """Change an array, or every array in a list, tuple or dictionary, which are copied; return the rest as it is."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, dict):
        copied = copy.copy(value)  # of its own class
        copied.update({key: mapped(change, part) for key, part in value.items()})
        return copied
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*[mapped(change, part) for part in value])
    return type(value)([mapped(change, part) for part in value]) if type(value) in (list, tuple) else value


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yield an array, or every array in a list, tuple or dictionary."""
    found: list[np.ndarray] = []
    mapped(found.append, value)
    yield from found


def readonly(array: np.ndarray) -> np.ndarray:
    """Return a view that nobody can write into. Functions get such views, because arrays are shared."""
    view = array.view()
    view.flags.writeable = False
    return view


def writeable(array: np.ndarray) -> np.ndarray:
    """Return a view that can be written into, if its owner can and no two elements share memory (broadcasting)."""
    if array.flags.writeable or 0 in array.strides or not getattr(owner(array), "flags", array.flags).writeable:
        return array
    view = array.view()
    view.flags.writeable = True
    return view


def writes_into_shared(error: Exception) -> bool:
    """True for NumPy's error about writing into a read-only array."""
    return isinstance(error, ValueError) and "read-only" in str(error)


SHARED = (
    "writes into an array that other operations use too, so it is read-only. Write g = g * 2 instead of g *= 2, or "
    "change a copy: g = g.copy()."
)


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
