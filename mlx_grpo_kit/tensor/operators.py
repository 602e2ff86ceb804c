"""Operators and methods of a Tensor: `a + b` is add(a, b), `x.exp()` is exp(x).

Tensor inherits its operators from this file, and operations return Tensors. To avoid a circular import, `function.py`
and `rules/rule.py` import the module `tensor` and look up its names when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.tensor.graph import AutogradError
from mlx_grpo_kit.tensor.modes import mode
from mlx_grpo_kit.tensor.rules import elementwise, products, reductions, shapes

if TYPE_CHECKING:
    from mlx_grpo_kit.tensor.tensor import Tensor


class Operators:
    """The part of Tensor that only calls operations. Tensor itself has the numbers and `backward`."""

    __slots__ = ()

    __neg__ = elementwise.neg
    __abs__ = elementwise.abs
    __add__ = elementwise.add
    __sub__ = elementwise.sub
    __mul__ = elementwise.mul
    __truediv__ = elementwise.div
    __pow__ = elementwise.pow
    __matmul__ = products.matmul

    def __radd__(self, other):
        return elementwise.add(other, self)

    def __rsub__(self, other):
        return elementwise.sub(other, self)

    def __rmul__(self, other):
        return elementwise.mul(other, self)

    def __rtruediv__(self, other):
        return elementwise.div(other, self)

    def __rpow__(self, other):
        return elementwise.pow(other, self)

    def __rmatmul__(self, other):
        return products.matmul(other, self)

    def __iadd__(self, other):
        return self._in_place(elementwise.add, np.add, other)

    def __isub__(self, other):
        return self._in_place(elementwise.sub, np.subtract, other)

    def __imul__(self, other):
        return self._in_place(elementwise.mul, np.multiply, other)

    def __itruediv__(self, other):
        return self._in_place(elementwise.div, np.true_divide, other)

    def _in_place(self, operation: Callable, ufunc: np.ufunc, other: Any) -> Tensor:
        """Compute x += y: record x = x + y if a gradient needs it, else (in a training step) change x's numbers."""
        if not _recorded(self, other):
            self.data = ufunc(self.data, _numbers(other), out=self.data, casting="same_kind")
            return self
        if self.is_leaf and self.requires_grad:
            raise AutogradError(
                f"{self._name} is a leaf that requires grad and is being used in an in-place operation."
                " Write x = x + y for a new tensor, or change it inside no_grad()."
            )
        return operation(self, other)

    # A comparison has no gradient: it returns an array of booleans.

    def __lt__(self, other):
        return np.less(self.data, _numbers(other))

    def __le__(self, other):
        return np.less_equal(self.data, _numbers(other))

    def __gt__(self, other):
        return np.greater(self.data, _numbers(other))

    def __ge__(self, other):
        return np.greater_equal(self.data, _numbers(other))

    def __eq__(self, other):
        return np.equal(self.data, _numbers(other))

    def __ne__(self, other):
        return np.not_equal(self.data, _numbers(other))

    __hash__ = object.__hash__

    # Methods.

    exp = elementwise.exp
    log = elementwise.log
    log2 = elementwise.log2
    log10 = elementwise.log10
    sqrt = elementwise.sqrt
    abs = elementwise.abs
    sin = elementwise.sin
    cos = elementwise.cos
    tanh = elementwise.tanh
    sigmoid = elementwise.sigmoid
    relu = elementwise.relu
    clip = elementwise.clip
    sign = elementwise.sign
    floor = elementwise.floor
    ceil = elementwise.ceil
    round = elementwise.round
    trunc = elementwise.trunc
    sum = reductions.sum
    mean = reductions.mean
    var = reductions.var
    max = reductions.max
    min = reductions.min
    prod = reductions.prod
    logsumexp = reductions.logsumexp
    softmax = reductions.softmax
    log_softmax = reductions.log_softmax
    matmul = products.matmul
    dot = products.dot
    swapaxes = shapes.swapaxes
    broadcast_to = shapes.broadcast_to
    astype = shapes.astype
    T = property(shapes.transpose)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the same numbers in another shape: x.reshape(2, 3) or x.reshape((2, 3))."""
        return shapes.reshape(self, _unpacked(shape))

    def transpose(self, *axes: Any) -> Tensor:
        """Reorder the axes: x.transpose(1, 0) or x.transpose((1, 0)). Without arguments, reverse them."""
        return shapes.transpose(self, _unpacked(axes) if axes else None)

    def argmax(self, axis: int | None = None) -> np.ndarray:
        """Return the positions of the largest numbers, as an array, because they have no gradient."""
        return self.data.argmax(axis)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    # Elements.

    def __getitem__(self, index):
        return shapes.getitem(self, _index(index))

    def __setitem__(self, index, value):
        if _recorded(self, value):
            raise AutogradError(
                f"x[index] = value on {self._name} of shape {self.shape}: an assignment is not recorded. "
                "T.where(condition, a, b) makes a new tensor; inside no_grad() x[index] = value works."
            )
        array = self.data
        array[_index(index)] = _numbers(value)
        self.data = array

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def item(self) -> float:
        """Return the number in a tensor of size 1. Raises ValueError for any other size."""
        if self.data.size != 1:
            raise ValueError(
                f"a Tensor with {self.data.size} elements cannot be converted to a number; its shape is {self.shape}."
            )
        return self.data.item()

    def __bool__(self):
        return bool(self.item())

    def __float__(self):
        if self.requires_grad:
            raise AutogradError(
                f"{self._name} requires grad and was about to become a plain float, which forgets its history. Use "
                "T.exp, T.log ... instead of math's functions, or .item() if you only want the number."
            )
        return float(self.item())

    # Text, and NumPy's protocols.

    def __repr__(self):
        parts = [np.array2string(self.data, separator=", ", precision=4, threshold=100, prefix="Tensor(")]
        if self.dtype != np.float64:
            parts.append(f"dtype={self.dtype}")
        if self.requires_grad:
            parts.append("requires_grad=True" if self.is_leaf else f"grad_fn=<{self.grad_fn.name()}>")
        return f"Tensor({', '.join(parts)})"

    def __format__(self, spec):
        return format(self.item(), spec) if spec else repr(self)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise AutogradError(
                f"{self._name} of shape {self.shape} requires grad and was about to become a NumPy array, "
                "which forgets its history. Use T.exp, T.stack ... instead of NumPy's functions, or .data "
                "if you only want the numbers."
            )
        return np.array(self.data, dtype=dtype) if copy else np.asarray(self.data, dtype=dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **settings):
        """Compute `array + tensor` and `array < tensor`, which NumPy passes on to this method."""
        if method == "__call__" and not settings and ufunc in UFUNCS:
            return UFUNCS[ufunc](*inputs)
        if method == "__call__" and not settings and ufunc in COMPARISONS:
            return ufunc(*map(_numbers, inputs))
        raise TypeError(
            f"np.{ufunc.__name__} got a Tensor, but it computes with arrays, which have no history. Use this "
            "package's operation (T.exp, not np.exp), or tensor.data if you only want the numbers."
        )


UFUNCS = {
    np.add: elementwise.add,
    np.subtract: elementwise.sub,
    np.multiply: elementwise.mul,
    np.true_divide: elementwise.div,
    np.power: elementwise.pow,
    np.matmul: products.matmul,
}
COMPARISONS = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}


def _numbers(x: Any) -> Any:
    return x.data if isinstance(x, Operators) else x


def _recorded(*values: Any) -> bool:
    return mode.recording and any(isinstance(value, Operators) and value.requires_grad for value in values)


def _index(index: Any) -> Any:
    return tuple(_numbers(i) for i in index) if isinstance(index, tuple) else _numbers(index)


def _unpacked(arguments: tuple) -> Any:
    """Return (2, 3) for both (2, 3) and ((2, 3),)."""
    return arguments[0] if len(arguments) == 1 and not isinstance(arguments[0], int) else arguments
