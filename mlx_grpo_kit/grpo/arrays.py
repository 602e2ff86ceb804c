"""The array functions that the GRPO loss is written in, for arrays of MLX, torch or JAX.

`loss.py` writes each formula once, and every framework differentiates it itself, inside its own compiler and on its own
device. This file hides the differences in what frameworks call a function. Names and meanings are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from types import ModuleType
from typing import Any

from mlx_grpo_kit.runtime import mx

Array = Any
"""An `mlx.core.array`, a `torch.Tensor` or a `jax.Array`, traced or not. One call gets arrays of one framework."""


def _module(values: Array) -> ModuleType:
    """The module whose functions take these values; MLX for lists, numbers and NumPy arrays, which it converts."""
    name = type(values).__module__.partition(".")[0]
    if name in ("torch", "torchax"):  # torchax's tensors go through torch's functions
        import torch

        return torch
    if name in ("jax", "jaxlib"):
        import jax.numpy

        return jax.numpy
    return mx


def _is_torch(values: Array) -> bool:
    return _module(values).__name__ == "torch"


def as_floats(values: Any, like: Array) -> Array:
    """`values` as a float array of `like`'s framework; half precision becomes float32, which ratios need."""
    module = _module(like)
    values = module.as_tensor(values) if _is_torch(like) else module.asarray(values)
    return float32(values) if values.dtype in (module.bfloat16, module.float16) else values


def as_bools(values: Any, like: Array) -> Array:
    """`values`, numbers or booleans, as a boolean array of `like`'s framework."""
    module = _module(like)
    return module.as_tensor(values).bool() if _is_torch(like) else module.asarray(values).astype(module.bool_)


def float32(x: Array) -> Array:
    """The same numbers in float32."""
    return x.float() if _is_torch(x) else x.astype(_module(x).float32)


def as_type(x: Array, like: Array) -> Array:
    """The same numbers in the dtype of `like`, booleans as 0 and 1. Python numbers are returned unchanged."""
    if isinstance(x, Number):
        return x
    return x.to(like.dtype) if _is_torch(x) else x.astype(like.dtype)


def known(x: Array) -> float | bool | None:
    """The number in a scalar, or None while a compiler or `vmap` traces it and nothing is computed yet."""
    try:
        return x.item()
    except (RuntimeError, TypeError, ValueError):
        return None


def _same(name: str, *more: Any) -> Callable[..., Array]:
    """The function that all frameworks have under this name; `more` are its last arguments."""

    def function(*arrays: Array) -> Array:
        modules = [_module(arrays[0])]
        if modules[0].__name__ == "jax.numpy":
            import jax

            modules += [jax.nn, jax.lax]
        return next(getattr(module, name) for module in modules if hasattr(module, name))(*arrays, *more)

    return function


where, exp, log, sigmoid, floor, ceil = map(_same, ("where", "exp", "log", "sigmoid", "floor", "ceil"))
clip = _same("clip")  # to [low, high]; the gradient at the edges depends on the framework
logsumexp = _same("logsumexp", -1)  # [..., V] -> [...]
_without_gradient = _same("stop_gradient")


def stop_gradient(x: Array) -> Array:
    """The same numbers, through which no gradient flows."""
    return x.detach() if _is_torch(x) else _without_gradient(x)


def minimum(x: Array, y: Array | float) -> Array:
    """The smaller of the two, number by number."""
    return x.clip(max=y) if _is_torch(x) and not _is_torch(y) else _module(x).minimum(x, y)


def maximum(x: Array | float, y: Array | float) -> Array | float:
    """The larger of the two, number by number."""
    if isinstance(x, Number) and isinstance(y, Number):
        return max(x, y)
    return x.clip(min=y) if _is_torch(x) and not _is_torch(y) else _module(x).maximum(x, y)


def sort(x: Array) -> Array:
    """The numbers of [N] from the smallest to the largest."""
    return x.sort().values if _is_torch(x) else _module(x).sort(x)


def at(x: Array, place: Array) -> Array:
    """The element of [N] at an index that is stored as a float."""
    return x[place.long() if _is_torch(x) else place.astype(_module(x).int32)]


def take_along_last_axis(x: Array, indices: Array) -> Array:
    """Pick the element of `x` [..., V] at each index of `indices` [...]: [...]."""
    indices = indices[..., None]
    return (x.gather(-1, indices) if _is_torch(x) else _module(x).take_along_axis(x, indices, axis=-1))[..., 0]
