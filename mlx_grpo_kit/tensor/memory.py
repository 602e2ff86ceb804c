"""Whose memory an array looks at, and how often it was changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np


class Version:
    """How often the memory of an array was changed in place. Tensors that share memory share the count."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def owner(array: np.ndarray) -> Any:
    """The object whose memory a view looks at; the array itself if it has its own."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array
