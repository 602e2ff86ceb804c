"""torch's linear maps by the library that serves MLX, where that is faster than torch's own: AMD with AVX-512.

torch's MKL uses AVX-512 on Intel's processors only, and `mlx_grpo_kit/openblas.py` has found an OpenBLAS that uses it
here too. A learning pass is products for two thirds of its time.
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

from mlx_grpo_kit.blas import bound

ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112  # CBLAS's names for them


@cache
def sgemm() -> Callable | None:
    """`cblas_sgemm` of the OpenBLAS that MLX is served by, or None where it is served by another library."""
    if bound is None or "scipy_openblas" not in bound.name:
        return None
    function = ctypes.CDLL(str(bound)).scipy_cblas_sgemm
    sizes, number, array = [ctypes.c_int] * 3, ctypes.c_float, [ctypes.c_void_p, ctypes.c_int]
    function.argtypes = [*sizes, *sizes, number, *array, *array, number, *array]
    function.restype = None
    return function


class FasterProducts(TorchFunctionMode):
    """While this is entered, `functional.linear` of float32 matrices goes through `sgemm`, forwards and backwards.

    As many threads work on it as on MLX's products. Where there is no `sgemm`, nothing changes.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is functional.linear and sgemm() is not None and _are_matrices(args):
            return _Linear.apply(*args)
        return function(*args, **(kwargs or {}))


def _are_matrices(arrays: tuple) -> bool:
    fits = (each.ndim == 2 and each.dtype == torch.float32 and each.device.type == "cpu" for each in arrays)
    return len(arrays) == 2 and all(fits)


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
    """The matrix or a copy of it, whether it lies there by rows or by columns, and how far apart those are."""
    rows, columns = x.shape
    if x.stride(0) == 1 and x.stride(1) >= max(rows, 2):
        return x, TRANSPOSED, x.stride(1)
    if x.stride(1) != 1 or (rows > 1 and x.stride(0) < columns):
        x = x.clone(memory_format=torch.contiguous_format)
    return x, AS_IT_IS, max(x.stride(0), columns, 1)
