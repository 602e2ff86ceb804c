"""Normalizations, each with a backward pass that was derived by hand.

With y = (x - mean) / std over n numbers, the gradient of x is

    dx = (dy - mean(dy) - y * mean(dy * y)) / std

The two subtracted terms remove from dx the parts that would only shift or stretch all of x, because y does not change
when x is shifted or stretched (Ioffe and Szegedy, 2015).
"""

from __future__ import annotations

import numpy as np

from mlx_grpo_kit.tensor.function import Function
from mlx_grpo_kit.tensor.tensor import Tensor

__all__ = ["batch_norm", "layer_norm", "rms_norm"]


class BatchNorm(Function):
    # Rows are channels. Sums along contiguous rows are fast, and conv2d returns images in this memory layout.
    as_is = False

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, training, momentum, eps):
        if x.ndim < 2:
            raise ValueError(f"expected x [N, C] or [N, C, H, W]; got {x.shape}.")
        if x.dtype.kind != "f":
            raise TypeError(f"x has dtype {x.dtype}; expected floats, such as x.astype(np.float32).")
        rows = _rows(x)
        channels, n = rows.shape
        for name, array in (
            ("weight", weight),
            ("bias", bias),
            ("running_mean", running_mean),
            ("running_var", running_var),
        ):
            if array is not None and array.shape != (channels,):
                raise ValueError(
                    f"x {x.shape} has {channels} channels, and {name} has shape {array.shape}; expected ({channels},)."
                )
        if training and n == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}.")
        if training:
            mean = rows.mean(axis=1) if n else np.zeros(channels, x.dtype)
            centered = rows - mean[:, None]
            var = np.einsum("cn,cn->c", centered, centered) / n
            if running_mean is not None and n:  # an empty batch has no statistics
                running_mean += momentum * (mean - running_mean)
                running_var += momentum * (var * (n / (n - 1)) - running_var)  # unbiased; var is biased, as in torch
        else:
            mean, var = running_mean, running_var
            centered = rows - mean[:, None]
        ctx.inverse_std = (1 / np.sqrt(var + eps))[:, None].astype(x.dtype)
        ctx.training, ctx.weight = training, weight
        ctx.y = np.multiply(centered, ctx.inverse_std, out=centered)
        out = ctx.y if weight is None else ctx.y * weight[:, None]
        out = out if bias is None else out + bias[:, None]
        return _like(out, x.shape)

    @staticmethod
    def backward(ctx, grad):
        g, y, n = _rows(grad), ctx.y, ctx.y.shape[1]
        sum_g, sum_gy = g.sum(axis=1), np.einsum("cn,cn->c", g, y)
        scale = ctx.inverse_std if ctx.weight is None else ctx.inverse_std * ctx.weight[:, None]
        if ctx.training:
            slope = y * (sum_gy / -n)[:, None]
            slope += g
            slope -= (sum_g / n)[:, None]
            slope *= scale
        else:
            slope = g * scale
        return _like(slope, grad.shape), sum_gy, sum_g


class LayerNorm(Function):
    as_is = False

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        _check_last_axis(x, weight)
        centered = x - x.mean(axis=-1, keepdims=True)
        ctx.inverse_std = 1 / np.sqrt(np.mean(centered * centered, axis=-1, keepdims=True) + eps)
        ctx.y, ctx.weight = centered * ctx.inverse_std, weight
        out = ctx.y if weight is None else ctx.y * weight
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad):
        y, g = ctx.y, grad if ctx.weight is None else grad * ctx.weight
        slope = g - g.mean(axis=-1, keepdims=True) - y * np.mean(g * y, axis=-1, keepdims=True)
        return slope * ctx.inverse_std, grad * y, grad


class RMSNorm(Function):
    as_is = False

    @staticmethod
    def forward(ctx, x, weight, eps):
        _check_last_axis(x, weight)
        ctx.inverse_rms = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        ctx.y, ctx.weight = x * ctx.inverse_rms, weight
        return ctx.y if weight is None else ctx.y * weight

    @staticmethod
    def backward(ctx, grad):
        y, g = ctx.y, grad if ctx.weight is None else grad * ctx.weight
        return (g - y * np.mean(g * y, axis=-1, keepdims=True)) * ctx.inverse_rms, grad * y


def batch_norm(
    x, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
) -> Tensor:
    """Normalize each channel over the batch (and over the image), then scale and shift it.

    x is [N, C] or [N, C, H, W]; the other arrays are [C]. With `training`, the batch's statistics are used, and the
    arrays running_mean and running_var move toward them by the fraction `momentum`. Without it, running_mean and
    running_var are used.

    Raises:
        ValueError: the shapes do not fit, a channel has only one value in training, or there are no running statistics
            outside training.
    """
    running_mean, running_var = (
        array.data if isinstance(array, Tensor) else array for array in (running_mean, running_var)
    )
    if not training and (running_mean is None or running_var is None):
        raise ValueError("batch_norm with training=False needs running_mean and running_var; got None.")
    return BatchNorm.apply(
        x,
        weight,
        bias,
        running_mean=running_mean,
        running_var=running_var,
        training=training,
        momentum=momentum,
        eps=eps,
    )


def layer_norm(x, weight=None, bias=None, eps=1e-5) -> Tensor:
    """Normalize along the last axis, then scale and shift (Ba et al., 2016). x [..., D], weight and bias [D]."""
    return LayerNorm.apply(x, weight, bias, eps=eps)


def rms_norm(x, weight=None, eps=1e-6) -> Tensor:
    """Divide by the root mean square along the last axis, then scale (Zhang and Sennrich, 2019).

    x [..., D], weight [D].
    """
    return RMSNorm.apply(x, weight, eps=eps)


def _rows(x):
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _like(rows, shape):
    return rows.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1)


def _check_last_axis(x, weight):
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(
            f"Given normalized_shape={weight.shape}, expected input with shape [*, "
            f"{', '.join(map(str, weight.shape))}], but got input of size {x.shape}."
        )
