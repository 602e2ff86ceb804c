"""Faster CPU versions of two of torch's operations: linear maps and RMSNorm, which take most of a learning pass.

torch's MKL uses AVX-512 on Intel processors only. On AMD processors from Zen 5 on `mlx_grpo_kit/runtime/openblas.py`
finds an OpenBLAS that uses it and makes MLX call it; this file makes torch call it too. RMSNorm's two passes are
written by hand, and access memory half as often as the automatic rule.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mlx_grpo_kit.runtime.blas import bound

ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112  # CBLAS's constants


@cache
def sgemm() -> Callable | None:
    """`cblas_sgemm` of the OpenBLAS that MLX uses, or None if MLX uses another library."""
    if bound is None or "scipy_openblas" not in bound.name:
        return None
    function = ctypes.CDLL(str(bound)).scipy_cblas_sgemm
    sizes, number, array = [ctypes.c_int] * 3, ctypes.c_float, [ctypes.c_void_p, ctypes.c_int]
    function.argtypes = [*sizes, *sizes, number, *array, *array, number, *array]
    function.restype = None
    return function


class FasterOperations(TorchFunctionMode):
    """In this context, `functional.linear` and `functional.rms_norm` of float32 on the CPU are those below.

    Linear maps call `sgemm`, if there is one, on as many threads as MLX's products.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is functional.linear and sgemm() is not None and _are_matrices(args):
            return _Linear.apply(*args)
        if function is functional.rms_norm and _fits(args[0]) and len(args[1]) == 1:
            weight, eps = kwargs["weight"], kwargs["eps"]  # torch passes the first two by position
            if weight is not None and eps is not None:
                return _RMSNorm.apply(args[0], weight, eps)
        return function(*args, **(kwargs or {}))


def _fits(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


def _are_matrices(arrays: tuple) -> bool:
    return len(arrays) == 2 and all(each.ndim == 2 and _fits(each) for each in arrays)


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


class _Linear(torch.autograd.Function):
    """x W^T, [N, in] and [out, in] -> [N, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return product(grad, weight), product(grad.T, x)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, of float32 matrices on the CPU: [n, k], [k, m] -> [n, m]."""
    (rows, inner), columns = a.shape, b.shape[1]
    result = a.new_empty(rows, columns)
    a, *how_a = _as_cblas_reads_it(a)
    b, *how_b = _as_cblas_reads_it(b)
    sgemm()(
        ROW_MAJOR, how_a[0], how_b[0], rows, columns, inner,
        1.0, a.data_ptr(), how_a[1], b.data_ptr(), how_b[1], 0.0, result.data_ptr(), max(columns, 1),
    )  # fmt: skip
    return result


def _as_cblas_reads_it(x: Tensor) -> tuple[Tensor, int, int]:
    """The matrix or a copy of it, its order (by rows or by columns), and the stride between rows or columns."""
    rows, columns = x.shape
    if x.stride(0) == 1 and x.stride(1) >= max(rows, 2):
        return x, TRANSPOSED, x.stride(1)
    if x.stride(1) != 1 or (rows > 1 and x.stride(0) < columns):
        x = x.clone(memory_format=torch.contiguous_format)
    return x, AS_IT_IS, max(x.stride(0), columns, 1)
