"""Operations that reduce an axis to one number, and their gradients.

`axis` is an integer, a tuple of integers, or None for all axes; `keepdims` keeps the reduced axes with length 1.
"""

from __future__ import annotations

import numpy as np

from mlx_grpo_kit.tensor.rules.rule import rule

__all__ = ["cross_entropy", "log_softmax", "logsumexp", "max", "mean", "min", "prod", "softmax", "sum", "var"]


def spread(reduced, shape, axis, keepdims):
    """Broadcast a reduced array back to `shape`, the shape before the reduction, as a view."""
    if axis is not None and not keepdims:
        reduced = np.expand_dims(reduced, axis)
    return np.broadcast_to(reduced, shape)


def count(shape, axis):
    """Return how many numbers are reduced to one."""
    axes = range(len(shape)) if axis is None else np.atleast_1d(axis)
    return int(np.prod([shape[i] for i in axes]))


@rule(x=lambda g, x_shape, axis, keepdims: spread(g, x_shape, axis, keepdims))
def sum(x, axis=None, keepdims=False):
    """The sum over `axis`."""
    return np.sum(x, axis=axis, keepdims=keepdims)


@rule(x=lambda g, x_shape, axis, keepdims: spread(g / count(x_shape, axis), x_shape, axis, keepdims))
def mean(x, axis=None, keepdims=False):
    """The mean over `axis`; nan if there are no numbers."""
    return np.true_divide(np.sum(x, axis=axis, keepdims=keepdims), count(x.shape, axis))


@rule(x=lambda g, x, axis, keepdims, correction: spread(g, x.shape, axis, keepdims) * _pull(x, axis, correction))
def var(x, axis=None, keepdims=False, correction=0):
    """The variance over `axis`: squared distances from the mean, summed and divided by n - correction.

    The default correction is 0; torch's is 1.
    """
    squares = np.sum(_centered(x, axis) ** 2, axis=axis, keepdims=keepdims)
    return np.true_divide(squares, _freedom(x, axis, correction))


def _pull(x, axis, correction):
    """The derivative of the variance by each number: twice its distance from the mean, divided by n - correction."""
    return _centered(x, axis) * (np.float64(2) / _freedom(x, axis, correction)).astype(x.dtype)


def _freedom(x, axis, correction):
    return int(np.maximum(count(x.shape, axis) - correction, 0))  # never negative, as in torch: x / 0 is nan or inf


def _centered(x, axis):
    return x - np.true_divide(np.sum(x, axis=axis, keepdims=True), count(x.shape, axis))


@rule(x=lambda g, x, out, axis, keepdims: _to_the_winners(g, x, out, axis, keepdims))
def max(x, axis=None, keepdims=False):
    """The maximum over `axis`. Equal maxima share the gradient, as in torch.amax."""
    return np.max(x, axis=axis, keepdims=keepdims)


@rule(x=lambda g, x, out, axis, keepdims: _to_the_winners(g, x, out, axis, keepdims))
def min(x, axis=None, keepdims=False):
    """The minimum over `axis`. Equal minima share the gradient, as in torch.amin."""
    return np.min(x, axis=axis, keepdims=keepdims)


def _to_the_winners(g, x, out, axis, keepdims):
    wins = x == spread(out, x.shape, axis, keepdims)
    return spread(g, x.shape, axis, keepdims) * wins / np.sum(wins, axis=axis, keepdims=True, dtype=g.dtype)


@rule(x=lambda g, x, axis, keepdims: spread(g, x.shape, axis, keepdims) * _product_of_the_others(x, axis))
def prod(x, axis=None, keepdims=False):
    """The product over `axis`, an integer or None. Its derivative is correct even at inf, where torch's is nan."""
    return np.prod(x, axis=axis, keepdims=keepdims)


def _product_of_the_others(x, axis):
    """The product of all other numbers, for each number. It is not out / x, which would be 0 / 0 at a zero."""
    rows = np.moveaxis(x, axis, -1) if axis is not None else x.reshape(1, -1)
    ones = np.ones_like(rows[..., :1])
    before = np.cumprod(np.concatenate([ones, rows[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([ones, rows[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    others = before * after
    # Zero times an overflow, or times inf beside a second zero, is 0, as in torch.
    is_zero = (np.sum(rows == 0, axis=-1, keepdims=True) > 1) | np.isfinite(rows).all(axis=-1, keepdims=True)
    others = np.where(np.isnan(others) & is_zero, 0, others)
    return np.moveaxis(others, -1, axis) if axis is not None else others.reshape(x.shape)


@rule(x=lambda g, x, out, axis, keepdims: spread(g, x.shape, axis, keepdims) * _softmax_from(out, x, axis, keepdims))
def logsumexp(x, axis=None, keepdims=False):
    """log(sum(e ** x)) over `axis`; -inf if there are no numbers. The largest x is factored out to avoid overflow."""
    largest = _largest(x, axis)
    largest = np.where(np.isfinite(largest), largest, 0)
    out = np.log(np.sum(np.exp(x - largest), axis=axis, keepdims=True)) + largest
    return out if keepdims else np.squeeze(out, axis=axis)


def _largest(x, axis):
    """The maximum over `axis`, which is kept with length 1; 0 if there are no numbers."""
    return np.max(x, axis=axis, keepdims=True) if x.size else np.sum(x, axis=axis, keepdims=True)


def _softmax_from(logsumexp, x, axis, keepdims):
    return np.exp(x - spread(logsumexp, x.shape, axis, keepdims))


@rule(x=lambda g, out, axis: out * (g - np.sum(g * out, axis=axis, keepdims=True)))
def softmax(x, axis=-1):
    """e ** x / sum(e ** x): positive numbers that sum to 1 along `axis`."""
    powers = np.exp(x - _largest(x, axis))
    return powers / np.sum(powers, axis=axis, keepdims=True)


@rule(x=lambda g, out, axis: g - np.exp(out) * np.sum(g, axis=axis, keepdims=True))
def log_softmax(x, axis=-1):
    """log(softmax(x)), exact where the softmax itself rounds to 0 or 1."""
    return _log_softmax(x, axis)


def _log_softmax(x, axis=-1):
    x = x - _largest(x, axis)
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


@rule(logits=lambda g, logits, targets: g * _surprise_slope(logits, targets))
def cross_entropy(logits, targets):
    """The mean of -log softmax(logits)[target]: how surprised the model is by the right answers, in nats.

    Args:
        logits: [N, C], one row of scores for each example.
        targets: [N], integers from 0 to C - 1.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the targets are not integers.
        IndexError: a target is not among the classes.
    """
    targets = np.asarray(targets)
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"Expected input batch_size {logits.shape[:1]} to match target batch_size {targets.shape}: "
            f"expected logits [N, C] and targets [N], but got {logits.shape} and {targets.shape}."
        )
    if targets.dtype.kind not in "iu":
        raise TypeError(f"targets have dtype {targets.dtype}; expected integers, the positions of the right answers.")
    wrong = targets[(targets < 0) | (targets >= logits.shape[1])]
    if wrong.size:
        raise IndexError(
            f"Target {wrong[0]} is out of bounds: {logits.shape[1]} classes are 0 to {logits.shape[1] - 1}."
        )
    return -np.mean(_log_softmax(logits)[np.arange(len(targets)), targets])


def _surprise_slope(logits, targets):
    """The derivative of the mean: softmax, minus 1 at the right answer, divided by N."""
    slope = np.exp(_log_softmax(logits))
    slope[np.arange(len(targets)), targets] -= 1
    return slope / len(targets)
