"""Numbers with the digits of bfloat16, in NumPy."""

from __future__ import annotations

import numpy as np


def to_bfloat16(values: np.ndarray | float) -> np.ndarray:
    """The nearest bfloat16 numbers, as float32: the upper 16 bits. A tie goes to the even number."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def small_steps(weight: float, step: float, count: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A weight that decreases by `step` each time: (master in float32, its bfloat16 copies, kept in bfloat16)."""
    exact, rounded = [np.float32(weight)], [to_bfloat16(weight)]
    for _ in range(count):
        exact.append(np.float32(exact[-1] - np.float32(step)))
        rounded.append(to_bfloat16(rounded[-1] - to_bfloat16(step)))
    return np.array(exact), to_bfloat16(np.array(exact)), np.array(rounded)


def numbers_between(low: float, high: float, most: int = 24) -> np.ndarray:
    """The bfloat16 numbers from `low` to `high`, and one beyond each end; none if there are more than `most`."""
    if low <= 0:
        return np.zeros(0, np.float32)
    first, last = (int(to_bfloat16(value).view(np.uint32)) >> 16 for value in (low, high))
    if last - first > most:
        return np.zeros(0, np.float32)
    return (np.arange(first - 1, last + 2, dtype=np.uint32) << 16).view(np.float32)
