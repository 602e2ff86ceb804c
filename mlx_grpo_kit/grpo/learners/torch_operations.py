"""Faster operations for torch on the CPU.

RMSNorm is written by hand, in passes that access memory half as often as torch's rule. Large matrix products are
oneDNN's instead of MKL's, which does not use AVX-512 on AMD's processors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LARGE = 1e8
"""From this many multiplications on, a product takes less time with oneDNN, its packing included."""


class FasterOperations(TorchFunctionMode):
    """In this context, `functional.rms_norm` and large `functional.linear` of float32 on the CPU are those below."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is functional.rms_norm and _fits(args[0]) and len(args[1]) == 1:
            weight, eps = kwargs["weight"], kwargs["eps"]  # torch passes the first two by position
            if weight is not None and eps is not None:
                return _RMSNorm.apply(args[0], weight, eps)
        if function is functional.linear and not kwargs and _pays(*args):
            return _Linear.apply(*args, *[None] * (3 - len(args)))
        return function(*args, **(kwargs or {}))


def _fits(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


def _pays(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    fits = x.ndim == weight.ndim == 2 and _fits(x) and _fits(weight) and (bias is None or _fits(bias))
    return fits and x.numel() * len(weight) >= LARGE and has_packed_products()


def has_packed_products() -> bool:
    """True if this torch has oneDNN's products with packed matrices."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [n, in] times the transpose of matrix [out, in], plus bias [out]: [n, out]."""
    matrix = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), len(rows))
    return torch.ops.mkldnn._linear_pointwise(rows.contiguous(), matrix, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """x W^T + b for x [n, in], W [out, in] and b [out] or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.T) if of_x else None,
            _product(grad.T, x.T) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


class _RMSNorm(torch.autograd.Function):
    """n * weight, where n = x / rms and rms = sqrt(mean(x^2) + eps), over the last axis.

    The gradient of x is (g - n * mean(g * n)) / rms, where g is the gradient of n.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = mean_square.add_(eps).rsqrt_()
        normed = x * inverse
        ctx.save_for_backward(normed, weight, inverse)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, weight, inverse = ctx.saved_tensors
        products = grad * normed
        mean = (products @ weight).div_(weight.numel())[..., None]
        of_x = torch.addcmul(grad * weight, normed, mean, value=-1).mul_(inverse)
        return of_x, products.flatten(0, -2).sum(0), None
