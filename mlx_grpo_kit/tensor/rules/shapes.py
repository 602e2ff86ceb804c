"""Operations that move numbers around without changing them. Their gradients move back the other way.

Operations with `as_is` return views of their input where NumPy does, so changing one changes the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.tensor.function import Function
from mlx_grpo_kit.tensor.rules.rule import rule

if TYPE_CHECKING:
    from mlx_grpo_kit.tensor.tensor import Tensor

__all__ = [
    "astype",
    "broadcast_to",
    "concatenate",
    "embedding",
    "getitem",
    "pad",
    "reshape",
    "stack",
    "swapaxes",
    "transpose",
]


@rule(as_is=True, x=lambda g, x_shape: g.reshape(x_shape))
def reshape(x, shape):
    """Arrange the same numbers, in the same order, in another shape; one length may be -1."""
    try:
        return np.reshape(x, shape)
    except ValueError:
        raise ValueError(f"shape {shape} is invalid for input of size {x.size}.") from None


@rule(as_is=True, x=lambda g, axes: np.transpose(g, None if axes is None else np.argsort(np.mod(axes, g.ndim))))
def transpose(x, axes=None):
    """Reorder the axes; reverse them if no order is given."""
    return np.transpose(x, axes)


@rule(as_is=True, x=lambda g: g)  # the engine gives the gradient the dtype of x
def astype(x, dtype):
    """The same numbers in another dtype, without a copy if they have it already. Only floats have a gradient."""
    return x.astype(dtype, copy=False)


@rule(as_is=True, x=lambda g, axis1, axis2: np.swapaxes(g, axis1, axis2))
def swapaxes(x, axis1, axis2):
    """Exchange two axes."""
    return np.swapaxes(x, axis1, axis2)


@rule(as_is=True, x=lambda g: g)  # the engine undoes broadcasting
def broadcast_to(x, shape):
    """Repeat along new axes and axes of length 1, without a copy."""
    return np.broadcast_to(x, shape)


@rule(as_is=True, x=lambda g, x_shape, index: _scatter(g, x_shape, index))
def getitem(x, index):
    """x[index], with slices, integers, None, and arrays of integers or booleans."""
    return x[index]


def _scatter(g, shape, index):
    """Add g to zeros at the positions that were read; a position that was read twice gets both gradients."""
    out = np.zeros(shape, g.dtype)
    if any(isinstance(i, list | np.ndarray) for i in (index if isinstance(index, tuple) else (index,))):
        np.add.at(out, index, g)
    else:
        out[index] = g
    return out


@rule(weight=lambda g, weight_shape, ids: _scatter(g, weight_shape, np.asarray(ids)))
def embedding(weight, ids):
    """Look up rows of weight [V, D] by ids, integers of any shape: [...] -> [..., D].

    Raises:
        TypeError: the ids are not integers.
        IndexError: an id is not among the rows.
    """
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids have dtype {ids.dtype}; expected integers.")
    if ids.size and (ids.min() < 0 or ids.max() >= len(weight)):
        raise IndexError(
            f"index out of range: the ids are {ids.min()} to {ids.max()}, but the rows of weight are 0 to "
            f"{len(weight) - 1}."
        )
    return weight[ids]


@rule(x=lambda g, x_shape, width: g[_inside(x_shape, width)])
def pad(x, width, value=0.0):
    """Add a border of `value`. `width` is as in NumPy: a number, (before, after), or such a pair for each axis."""
    return np.pad(x, width, constant_values=value)


def _inside(shape, width):
    widths = np.broadcast_to(width, (len(shape), 2))
    return tuple(slice(before, before + size) for (before, _), size in zip(widths, shape, strict=True))


class Concatenate(Function):
    as_is = False

    @staticmethod
    def forward(ctx, *arrays, axis):
        ctx.axis = axis
        ctx.ends = np.cumsum([array.shape[axis] if array.ndim else 1 for array in arrays])[:-1]
        return np.concatenate(arrays, axis=axis)

    @staticmethod
    def backward(ctx, grad):
        return np.split(grad, ctx.ends, axis=ctx.axis)


class Stack(Function):
    as_is = False

    @staticmethod
    def forward(ctx, *arrays, axis):
        ctx.axis = axis
        return np.stack(arrays, axis=axis)

    @staticmethod
    def backward(ctx, grad):
        return list(np.moveaxis(grad, ctx.axis, 0))


def concatenate(tensors, axis=0) -> Tensor:
    """Join tensors along an existing axis."""
    return Concatenate.apply(*tensors, axis=axis)


def stack(tensors, axis=0) -> Tensor:
    """Join tensors of the same shape along a new axis."""
    return Stack.apply(*tensors, axis=axis)
