"""The environment that MLX runs in: a fast BLAS on Linux, its threads, the cache of compiled kernels, forks.

Import MLX through this package, `from mlx_grpo_kit.runtime import mx`, so that the BLAS is loaded before MLX.
"""

from typing import Any

__all__ = ["all_cores", "mx"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mlx_grpo_kit.runtime import blas

    return getattr(blas, name)
