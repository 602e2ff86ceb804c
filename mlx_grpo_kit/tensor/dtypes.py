"""The dtypes in which operations compute. They are torch's: sums in float16 would overflow or stop growing.

float16 is computed in float32, and the result is rounded once. Whole numbers beside floats take their dtype. Whole
numbers alone stay whole where the result is whole, as in a + b, and become float64 elsewhere, as in exp(a).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

HALF = np.dtype(np.float16)


def widened(array: np.ndarray) -> np.ndarray:
    """Return float16 as float32, any other array as it is."""
    return array.astype(np.float32) if array.dtype == HALF else array


def computed(forward: Callable[..., np.ndarray], arrays: list[np.ndarray | None], inputs: tuple) -> np.ndarray:
    """Call `forward` with its inputs in the dtypes above, and return its result in the dtype of the inputs.

    `inputs` are those that the user gave: a number such as 70_000 would be inf in float16.
    """
    dtypes = {array.dtype for array in arrays if array is not None}
    floats = {dtype for dtype in dtypes if dtype.kind in "fc"}  # complex for gradcheck's complex step
    if floats == dtypes and HALF not in dtypes:
        return forward(*arrays)
    if not floats:
        result = forward(*arrays)
        if result.dtype.kind != "f":  # a sum of uint8 is a uint64 in NumPy
            return result.astype(np.int64) if result.dtype == np.uint64 and result.dtype not in dtypes else result
        wide = np.dtype(np.float64)  # again, because NumPy computes exp of int8 in float16
    else:
        wide = np.result_type(np.float32, *floats)
    result = forward(
        *[
            array
            if array is None or (array.dtype in floats and array.dtype != HALF)
            else np.asarray(given if isinstance(given, int | float) else array, dtype=wide)
            for array, given in zip(arrays, inputs, strict=True)
        ]
    )
    return result.astype(HALF) if floats == {HALF} else result
