"""The array functions that the GRPO loss is written in, for whichever arrays it is given: MLX's, torch's or JAX's.

The formulas of `loss.py` stand there once, and every framework differentiates them itself, inside its own compiler and
on its own device. What a framework calls otherwise is evened out here. Names and meanings are NumPy's.
"""

from __future__ import annotations

from numbers import Number
from types import ModuleType
from typing import Any

from mlx_grpo_kit.runtime import mx

Array = Any
"""An `mlx.core.array`, a `torch.Tensor` or a `jax.Array`, traced ones too. A function's arrays are all of one kind."""


def _module(values: Array) -> ModuleType:
    """The module whose functions take these values; lists, numbers and NumPy's arrays are MLX's to convert."""
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
    """`values` as an array of `like`'s kind that ratios can be computed in: half precision becomes float32."""
    module = _module(like)
    values = module.as_tensor(values) if _is_torch(like) else module.asarray(values)
    return float32(values) if values.dtype in (module.bfloat16, module.float16) else values


def as_bools(values: Any, like: Array) -> Array:
    """`values`, numbers or truth values, as an array of truth values of `like`'s kind."""
    module = _module(like)
    return module.as_tensor(values).bool() if _is_torch(like) else module.asarray(values).astype(module.bool_)


def float32(x: Array) -> Array:
    """The same numbers in float32."""
    return x.float() if _is_torch(x) else x.astype(_module(x).float32)


def as_type(x: Array, like: Array) -> Array:
    """The same numbers, truth values as 0 and 1, in the dtype of `like`. Python's numbers stay as they are."""
    if isinstance(x, Number):
        return x
    return x.to(like.dtype) if _is_torch(x) else x.astype(like.dtype)


def known(x: Array) -> float | bool | None:
    """The number in a scalar, or None while a compiler or `vmap` traces it: nothing is computed yet."""
    try:
        return x.item()
    except (RuntimeError, TypeError, ValueError):
        return None


def stop_gradient(x: Array) -> Array:
    """The same numbers, through which no gradient flows."""
    if _module(x).__name__ == "jax.numpy":
        import jax

        return jax.lax.stop_gradient(x)
    return x.detach() if _is_torch(x) else mx.stop_gradient(x)


def where(condition: Array, x: Array | float, y: Array | float) -> Array:
    """`x` where `condition` holds, `y` elsewhere."""
    return _module(condition).where(condition, x, y)


def exp(x: Array) -> Array:
    """e to the power of x."""
    return _module(x).exp(x)


def log(x: Array) -> Array:
    """The natural logarithm; -inf of 0."""
    return _module(x).log(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    if _module(x).__name__ == "jax.numpy":
        import jax

        return jax.nn.sigmoid(x)
    return _module(x).sigmoid(x)


def clip(x: Array, low: float, high: float) -> Array:
    """The nearest numbers between the two. What gradient it has at its edges is the framework's own."""
    return _module(x).clip(x, low, high)


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


def floor(x: Array) -> Array:
    """The next whole number below, as a float."""
    return _module(x).floor(x)


def ceil(x: Array) -> Array:
    """The next whole number above, as a float."""
    return _module(x).ceil(x)


def at(x: Array, place: Array) -> Array:
    """The number of [N] at a place that is a float, a whole one."""
    return x[place.long() if _is_torch(x) else place.astype(_module(x).int32)]


def take_along_last_axis(x: Array, indices: Array) -> Array:
    """For each place of `indices` [...] the number of `x` [..., V] that it says: [...]."""
    indices = indices[..., None]
    return (x.gather(-1, indices) if _is_torch(x) else _module(x).take_along_axis(x, indices, axis=-1))[..., 0]


def logsumexp(x: Array) -> Array:
    """The logarithm of the sum of e^x over the last axis, which goes."""
    if _module(x).__name__ == "jax.numpy":
        import jax

        return jax.nn.logsumexp(x, axis=-1)
    return _module(x).logsumexp(x, -1)
