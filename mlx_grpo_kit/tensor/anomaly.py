"""The checks of `detect_anomaly`, which find the origin of a nan."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = str(Path(__file__).parent)


class AnomalyError(ArithmeticError):
    """An error that names the operation that returned a nan or an inf."""


def line() -> str:
    """Return the line of the user's program that is running, from the nearest frame outside the engine."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    path = frame.f_code.co_filename
    # IPython names a cell by a checksum, which means nothing to a user, so the text of the line is shown.
    is_cell = "ipykernel_" in path or path.startswith("<ipython-input")
    text = linecache.getline(path, frame.f_lineno).strip()
    return f"{'a notebook cell' if is_cell else Path(path).name}, line {frame.f_lineno}" + (text and f" (`{text}`)")


def check_forward(function: type, arrays: list[np.ndarray | None], output: np.ndarray) -> None:
    """Raise AnomalyError if the result has a nan and no input has one.

    An inf raises no error, because it may be intended, as in a mask before softmax.
    """
    if np.isnan(output).any() and not any(np.isnan(array).any() for array in arrays if array is not None):
        index = _first(np.isnan(output))
        inputs = " and ".join(
            f"{_at(array, index, output.shape):.6g}"
            for array in arrays
            if array is not None and _lines_up(array, output)
        )
        made = f" from {inputs}" if inputs else ""
        raise AnomalyError(
            f"{function.__name__} returned a nan{made}, at index {index} of a result of shape "
            f"{output.shape}, in {line()}."
        )


def check_backward(node: Any, grad: np.ndarray, input_grads: list[np.ndarray | None]) -> None:
    """Raise AnomalyError for the first backward that turns a finite gradient into nan or inf."""
    if not np.isfinite(grad).all():
        return
    for position, input_grad in enumerate(input_grads):
        if input_grad is not None and not np.isfinite(input_grad).all():
            index = _first(~np.isfinite(input_grad))
            where = f", computed in {node.line}" if node.line else ""
            raise AnomalyError(
                f"Function '{node.name()}' returned {input_grad[index]} values in its {position}th "
                f"output: at index {index} of the gradient of input {position}, shape "
                f"{input_grad.shape}{where}. The gradient that came in was finite. T.safe_div, "
                "T.safe_sqrt and T.safe_log have finite gradients everywhere."
            )


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))


def _lines_up(array: np.ndarray, output: np.ndarray) -> bool:
    try:
        return np.broadcast_shapes(array.shape, output.shape) == output.shape
    except ValueError:
        return False


def _at(array: np.ndarray, index: tuple[int, ...], shape: tuple[int, ...]) -> float:
    return float(np.broadcast_to(array, shape)[index])
