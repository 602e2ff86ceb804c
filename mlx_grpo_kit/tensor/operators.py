"""Methods and operators of Tensor: `a + b` is add(a, b), `x.exp()` is exp(x)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mlx_grpo_kit.tensor.graph import AutogradError
from mlx_grpo_kit.tensor.modes import mode
from mlx_grpo_kit.tensor.rules import elementwise, products, reductions, shapes
from mlx_grpo_kit.tensor.tensor import Tensor

BINARY = {
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "truediv": elementwise.div,
    "pow": elementwise.pow,
    "matmul": products.matmul,
}
IN_PLACE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide}
COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
UFUNCS = {
    np.add: elementwise.add,
    np.subtract: elementwise.sub,
    np.multiply: elementwise.mul,
    np.true_divide: elementwise.div,
    np.power: elementwise.pow,
    np.matmul: products.matmul,
}
METHODS = [
    elementwise.exp,
    elementwise.log,
    elementwise.log2,
    elementwise.log10,
    elementwise.sqrt,
    elementwise.abs,
    elementwise.sin,
    elementwise.cos,
    elementwise.tanh,
    elementwise.sigmoid,
    elementwise.relu,
    elementwise.clip,
    elementwise.sign,
    elementwise.floor,
    elementwise.ceil,
    elementwise.round,
    elementwise.trunc,
    reductions.sum,
    reductions.mean,
    reductions.var,
    reductions.max,
    reductions.min,
    reductions.prod,
    reductions.logsumexp,
    reductions.softmax,
    reductions.log_softmax,
    products.matmul,
    products.dot,
    shapes.swapaxes,
    shapes.broadcast_to,
]


def _numbers(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


def _reflected(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, other: operation(other, self)


def _comparison(compare: np.ufunc) -> Callable[..., np.ndarray]:
    """A comparison has no gradient: it answers with an array of booleans."""
    return lambda self, other: compare(self.data, _numbers(other))


def _recorded(*values: Any) -> bool:
    return mode.recording and any(isinstance(value, Tensor) and value.requires_grad for value in values)


def _in_place(operation: Callable[..., Tensor], ufunc: np.ufunc) -> Callable[..., Tensor]:
    """x += y. Where it has to be recorded it is x = x + y, elsewhere (a step of training) it changes x's numbers."""

    def method(self: Tensor, other: Any) -> Tensor:
        if not _recorded(self, other):
            self.data = ufunc(self.data, _numbers(other), out=self.data, casting="same_kind")
            return self
        if self.is_leaf and self.requires_grad:
            raise AutogradError(
                f"{self._name} is a leaf that requires grad and is being used in an in-place operation."
                " Write x = x + y for a new tensor, or change it inside no_grad()."
            )
        return operation(self, other)

    return method


def _setitem(self: Tensor, index: Any, value: Any) -> None:
    if _recorded(self, value):
        raise AutogradError(
            f"x[index] = value on {self._name} of shape {self.shape}: an assignment is not recorded. "
            "T.where(condition, a, b) makes a new tensor; inside no_grad() x[index] = value works."
        )
    array = self.data
    array[_index(index)] = _numbers(value)
    self.data = array


def _index(index: Any) -> Any:
    return tuple(_numbers(i) for i in index) if isinstance(index, tuple) else _numbers(index)


def _iter(self: Tensor) -> Iterator[Tensor]:
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return (self[i] for i in range(len(self)))


def _array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    if self.requires_grad:
        raise AutogradError(
            f"{self._name} of shape {self.shape} requires grad and was about to become a NumPy array, "
            "which forgets its history. Use T.exp, T.stack ... instead of NumPy's functions; if you "
            "only want the numbers, .data."
        )
    return np.array(self.data, dtype=dtype) if copy else np.asarray(self.data, dtype=dtype)


def _array_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
    """NumPy's side of `array + tensor` and `array < tensor`."""
    if method == "__call__" and not settings and ufunc in UFUNCS:
        return UFUNCS[ufunc](*inputs)
    if method == "__call__" and not settings and ufunc in COMPARISONS.values():
        return ufunc(*map(_numbers, inputs))
    raise TypeError(
        f"np.{ufunc.__name__} got a Tensor, and computes with arrays, which have no history. Use this "
        "package's operation (T.exp, not np.exp), or tensor.data if you only want the numbers."
    )


def _item(self: Tensor) -> float:
    """The one number of a tensor that holds one."""
    if self.data.size != 1:
        raise ValueError(
            f"a Tensor with {self.data.size} elements cannot be converted to a number; its shape is {self.shape}."
        )
    return self.data.item()


def _repr(self: Tensor) -> str:
    parts = [np.array2string(self.data, separator=", ", precision=4, threshold=100, prefix="Tensor(")]
    if self.dtype != np.float64:
        parts.append(f"dtype={self.dtype}")
    if self.requires_grad:
        parts.append("requires_grad=True" if self.is_leaf else f"grad_fn=<{self.grad_fn.name()}>")
    return f"Tensor({', '.join(parts)})"


def _shape_arguments(arguments: tuple) -> Any:
    """x.reshape(2, 3) and x.reshape((2, 3)) are the same."""
    return arguments[0] if len(arguments) == 1 and not isinstance(arguments[0], int) else arguments


def _methods() -> dict[str, Any]:
    methods = {operation.__name__: operation for operation in METHODS}
    for name, operation in BINARY.items():
        methods |= {f"__{name}__": operation, f"__r{name}__": _reflected(operation)}
    for name, ufunc in IN_PLACE.items():
        methods[f"__i{name}__"] = _in_place(BINARY[name], ufunc)
    for name, compare in COMPARISONS.items():
        methods[f"__{name}__"] = _comparison(compare)
    return methods | {
        "__neg__": elementwise.neg,
        "__abs__": elementwise.abs,
        "__repr__": _repr,
        "__array__": _array,
        "__array_ufunc__": _array_ufunc,
        "__getitem__": lambda self, index: shapes.getitem(self, _index(index)),
        "__setitem__": _setitem,
        "__len__": lambda self: len(self.data),
        "__iter__": _iter,
        "item": _item,
        "__bool__": lambda self: bool(self.item()),
        "__float__": lambda self: float(self.item()),
        "__format__": lambda self, spec: format(self.item(), spec) if spec else repr(self),
        "reshape": lambda self, *shape: shapes.reshape(self, _shape_arguments(shape)),
        "transpose": lambda self, *axes: shapes.transpose(self, _shape_arguments(axes) if axes else None),
        "T": property(shapes.transpose),
        "ndim": property(lambda self: self.data.ndim),
        "size": property(lambda self: self.data.size),
        "argmax": lambda self, axis=None: self.data.argmax(axis),
    }


for _name, _method in _methods().items():
    setattr(Tensor, _name, _method)
