"""`Tensor`: an array that can remember how it was computed and receive a gradient.

Its operators and methods (`a + b`, `x.exp()`) come from its base class in `operators.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlx_grpo_kit.tensor.graph import AutogradError, node_of, walk_back
from mlx_grpo_kit.tensor.memory import BORROWED, Version, owner
from mlx_grpo_kit.tensor.operators import Operators


class Tensor(Operators):
    """An array that can remember how it was computed and receive the gradient of a result.

        w = Tensor([1.0, 2.0], requires_grad=True)
        loss = (w * w).sum()
        loss.backward()         # w.grad is now d(loss)/dw = array([2., 4.])

    Attributes:
        data: the numbers, a NumPy array. The constructor copies its argument and keeps the dtype.
        grad: the gradient of the tensor whose backward() was called with respect to this leaf, an array of this
            tensor's shape; None before backward().
        requires_grad: True if operations on it are recorded. A result requires a gradient if one of its inputs does.
        grad_fn: the graph's node for the operation that returned this tensor; None for a leaf, which you made yourself.
        label: an optional name for pictures and messages.

    Raises:
        TypeError: the data is not numeric, or `requires_grad` is True for data that is not floating-point.
    """

    __slots__ = ("_data", "_requires_grad", "_version", "grad", "grad_fn", "label")

    def __init__(self, data: Any, requires_grad: bool = False, label: str = "", dtype: Any = None):
        if isinstance(data, Tensor):
            raise TypeError("Tensor() got a Tensor. Use it as it is; .detach() gives its numbers without history.")
        self._set(numeric_array(np.array(data, dtype=dtype)), label)
        self.requires_grad = requires_grad

    def _set(self, array: np.ndarray, label: str = "") -> Tensor:
        self._data, self._version, self._requires_grad = array, Version(), False
        self.grad, self.grad_fn, self.label = None, None, label
        return self

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        """Replace the numbers (`x.data = array`), or change them in place (`x.data += array`), which is counted."""
        array = np.asarray(value, dtype=self._data.dtype)
        if array.shape != self._data.shape:
            raise ValueError(
                f"{self._name} has shape {self.shape} and was given data of shape {array.shape}; expected "
                "the same shape. For another shape, make a new tensor: Tensor(array)."
            )
        if owner(array) is owner(self._data):
            self._version.count += 1
        else:
            self._version = Version()
        self._data = array

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self._data.dtype.kind != "f":
            raise TypeError(
                "only Tensors of floating point dtype can require gradients; this one has dtype "
                f"{self._data.dtype}. Write 3.0 instead of 3, or Tensor(data, dtype=np.float64)."
            )
        if not value and self.grad_fn is not None:
            raise AutogradError(
                "you can only change requires_grad flags of leaf tensors; this one is the result of "
                f"{self.grad_fn.name()}. Use .detach() for a tensor without history."
            )
        self._requires_grad = bool(value)

    @property
    def is_leaf(self) -> bool:
        return self.grad_fn is None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def _name(self) -> str:
        """The tensor's name in messages."""
        return f"the tensor {self.label!r}" if self.label else "a tensor"

    def backward(self, grad: Any = None, retain_graph: bool = False) -> None:
        """Add d(self) / d(leaf) to the `.grad` of every leaf that requires a gradient.

        Args:
            grad: the gradient to start from, an array of self's shape. If self is a single number, the default is 1.
            retain_graph: True to keep the graph for another backward(); by default it is freed.

        Raises:
            AutogradError: there is nothing to differentiate, `grad` has another shape, the graph has already been
                freed, or an array that backward needs was modified.
        """
        if not self._requires_grad:
            raise AutogradError(
                f"{self._name} of shape {self.shape} does not require grad and does not have a grad_fn."
                " Give a leaf that it depends on requires_grad=True, and compute it outside no_grad()."
            )
        if grad is None:
            if self._data.size != 1:
                raise AutogradError(
                    "grad can be implicitly created only for scalar outputs; this one has shape "
                    f"{self.shape}. Reduce it first (.sum(), .mean()) or pass backward(grad)."
                )
            grad = np.ones_like(self._data)
        grad = np.asarray(grad.data if isinstance(grad, Tensor) else grad, dtype=self.dtype)
        if grad.shape != self.shape:
            raise AutogradError(
                f"Mismatch in shape: grad has a shape of {grad.shape} and the output has a shape of {self.shape}."
            )
        with np.errstate(all="ignore"):  # 1 / 0 is inf and 0 / 0 is nan, as in torch; detect_anomaly finds the place
            walk_back(node_of(self), grad, retain_graph)

    def detach(self) -> Tensor:
        """Return the same numbers without their history: a leaf that requires no gradient and shares the memory."""
        tensor = result(self._data)
        tensor._version = self._version
        return tensor

    def retain_grad(self) -> None:
        """Keep the gradient of a result in `.grad`, as for leaves.

        Raises:
            AutogradError: the tensor does not require a gradient.
        """
        if not self._requires_grad:
            raise AutogradError(f"can't retain_grad on {self._name} that has requires_grad=False.")
        if self.grad_fn is not None:
            self.grad_fn.retained_by = self


def result(array: np.ndarray) -> Tensor:
    """Wrap an array in a Tensor without copying it."""
    return Tensor.__new__(Tensor)._set(array)


def as_tensors(inputs: tuple) -> list[Tensor | None]:
    """Turn arrays and numbers into constants.

    A Python number takes the dtype of the first float, as in NumPy. Beside whole numbers it is an int64, so that
    pixels of uint8 minus 128 do not overflow.
    """
    dtype = next((x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype.kind == "f"), None)
    return [
        x
        if isinstance(x, Tensor) or x is None
        else result(np.asarray(x, dtype=dtype))
        if isinstance(x, int | float)
        else _borrowed(numeric_array(np.asarray(x)))
        for x in inputs
    ]


def _borrowed(array: np.ndarray) -> Tensor:
    """Wrap the caller's array as a constant without copying it. The graph copies it if backward needs it."""
    tensor = result(array)
    tensor._version = BORROWED
    return tensor


def numeric_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"expected numbers; got an array of dtype {array.dtype}: {array!r:.60}. To turn a list of "
            "Tensors into one Tensor, use stack()."
        )
    return array
