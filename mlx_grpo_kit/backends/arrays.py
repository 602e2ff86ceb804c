"""Arrays of any framework: their framework, and their numbers in NumPy. This file loads no framework.

All arrays can be converted to NumPy. It lacks bfloat16, so those become float32, which is exact.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def as_numpy(value: Any) -> np.ndarray:
    """The numbers of an array of any framework; bfloat16 becomes float32."""
    framework = framework_of(value)
    is_half = dtype_name(value) == "bfloat16"
    if framework == "torch":
        value = value.detach().cpu()
        return (value.float() if is_half else value).numpy()
    if framework == "mlx":
        return np.array(value.astype(sys.modules["mlx.core"].float32) if is_half else value)
    value = np.asarray(value)
    return value.astype(np.float32) if is_half else value


def dtype_name(value: Any) -> str:
    """The name of an array's dtype without the framework, such as "float32"."""
    return str(getattr(value, "dtype", type(value).__name__)).rpartition(".")[2]


def array_of(framework: str, values: np.ndarray, dtype: Any = None) -> Any:
    """`values` as an array of a `framework_of` some array; None keeps their dtype if the framework has it."""
    if framework == "torch":
        array = sys.modules["torch"].from_numpy(np.array(values))
        return array if dtype is None else array.to(dtype)
    if framework == "mlx":
        array = sys.modules["mlx.core"].array(values)
        return array if dtype is None else array.astype(dtype)
    if framework == "jax":
        return sys.modules["jax"].numpy.asarray(values, dtype=dtype)
    return np.array(values, dtype=dtype)


def ones_like(array: Any) -> Any:
    """float32 ones of the same framework, shape and device."""
    ones = array_of(framework_of(array), np.ones(tuple(array.shape), np.float32))
    return ones.to(array.device) if framework_of(array) == "torch" else ones


def framework_of(array: Any) -> str:
    """ "torch", "mlx", "jax" or "numpy"; for anything else, the package that its class comes from."""
    package = type(array).__module__.partition(".")[0]
    return {"jaxlib": "jax", "ml_dtypes": "numpy"}.get(package, package)


def plain_name(name: str) -> str:
    """A weight's name without the prefix that `torch.compile` adds."""
    return name.replace("_orig_mod.", "")
