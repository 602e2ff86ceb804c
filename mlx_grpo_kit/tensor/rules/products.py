"""Products of vectors and matrices, and their gradients, which are products too."""

from __future__ import annotations

import math

import numpy as np

from mlx_grpo_kit.tensor.rules.rule import rule

__all__ = ["dot", "linear", "matmul", "outer"]


@rule(a=lambda g, a_shape, b: _slope_in_left(g, a_shape, b), b=lambda g, a, b_shape: _slope_in_right(g, a, b_shape))
def matmul(a, b):
    """The matrix product over the last two axes; the axes before them are batch axes, which broadcast.

    [..., n, k] @ [..., k, m] -> [..., n, m]. A vector counts as a row on the left and as a column on the right. Raises
    ValueError if the shapes do not fit.
    """
    refuse_booleans(a, b)
    inner = a.shape[-1:], b.shape[-2:][:1]
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D.")
    if inner[0] != inner[1]:
        raise ValueError(
            f"mat1 and mat2 shapes cannot be multiplied ({_by(a)} and {_by(b)}): {inner[0][0]} columns "
            f"meet {inner[1][0]} rows."
        )
    return np.matmul(a, b)


def _slope_in_left(g, a_shape, b):
    """g @ b^T"""
    if b.ndim == 1:
        return g[..., None] * b
    g = g[..., None, :] if len(a_shape) == 1 else g
    slope = g @ np.swapaxes(b, -1, -2)
    return slope[..., 0, :] if len(a_shape) == 1 else slope


def _slope_in_right(g, a, b_shape):
    """a^T @ g"""
    if a.ndim == 1:
        return g * a if len(b_shape) == 1 else a[:, None] * g[..., None, :]
    if len(b_shape) == 1:
        return _rows(a * g[..., None]).sum(axis=0)
    if len(b_shape) == 2:  # one matrix for a whole batch: use one large product instead of many products and a sum
        return _rows(a).T @ _rows(g)
    return np.swapaxes(a, -1, -2) @ g


def _rows(array):
    """Merge all axes but the last. The length is computed here, because NumPy cannot infer it for an empty array."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def refuse_booleans(a, b):
    """Raise TypeError for two arrays of booleans, because NumPy's sum of products of booleans is a boolean."""
    if a.dtype == b.dtype == bool:
        raise TypeError("a matrix product is not implemented for booleans; convert one of them: x.astype(int).")


def _by(array):
    return "x".join(map(str, array.shape))


@rule(x=lambda g, weight: g @ weight, weight=lambda g, x: _rows(g).T @ _rows(x), bias=lambda g: g)
def linear(x, weight, bias=None):
    """x @ weight.T + bias: x [..., n], weight [m, n], bias [m] -> [..., m]."""
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"mat1 and mat2 shapes cannot be multiplied ({_by(x)} and {_by(weight.T)}): weight is "
            f"[out_features, in_features], {weight.shape}, and x ends with {x.shape[-1:]}."
        )
    refuse_booleans(x, weight)
    out = x @ weight.T
    return out if bias is None else out + bias


@rule(a=lambda g, b: g * b, b=lambda g, a: g * a)
def dot(a, b):
    """The sum of the products of two vectors: [n], [n] -> []."""
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"expected two vectors with the same number of elements, but got {a.shape} and {b.shape}.")
    refuse_booleans(a, b)
    return np.dot(a, b)


@rule(a=lambda g, b: g @ b, b=lambda g, a: a @ g)
def outer(a, b):
    """Every element of one vector times every element of another: [n], [m] -> [n, m]."""
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"expected two 1-D vectors, but got {a.ndim}-D and {b.ndim}-D.")
    return np.outer(a, b)
