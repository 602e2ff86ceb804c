"""A faster RMSNorm for torch on the CPU: passes written by hand, which access memory half as often as torch's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class FasterOperations(TorchFunctionMode):
    """In this context, `functional.rms_norm` of float32 on the CPU is the one below."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is functional.rms_norm and _fits(args[0]) and len(args[1]) == 1:
            weight, eps = kwargs["weight"], kwargs["eps"]  # torch passes the first two by position
            if weight is not None and eps is not None:
                return _RMSNorm.apply(args[0], weight, eps)
        return function(*args, **(kwargs or {}))


def _fits(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


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
