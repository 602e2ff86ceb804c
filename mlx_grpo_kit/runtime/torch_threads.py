"""Set the number of threads that torch computes with, without changing MKL's, which MLX shares."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def _set_threads() -> Callable[[int], Any]:
    """A function that sets the number; it does nothing where torch has no library of this name, as on a Mac."""
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not torch_cpu.exists():
        return lambda count: None
    return getattr(ctypes.CDLL(str(torch_cpu)), "omp_set_num_threads", torch.set_num_threads)


def use_threads(count: int) -> None:
    """Make torch use `count` threads when this thread calls it; a thread starts with OpenMP's first number.

    That number is 1 if `mlx_grpo_kit.runtime.blas` has loaded OpenMP for MLX. torch.set_num_threads would also set
    MKL's number, which the whole process shares, including MLX.
    """
    if torch.get_num_threads() != count:
        _set_threads()(count)


@contextmanager
def on_cores(every: bool) -> Iterator[None]:
    """In this context torch computes on all cores, or on one if not `every`. If OMP_NUM_THREADS is set, it applies."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    from mlx_grpo_kit.runtime.blas import all_cores  # a backend of torch uses this module without MLX

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    before = torch.get_num_threads()
    with all_cores() if every else nullcontext():
        use_threads(cores if every else 1)
        try:
            yield
        finally:
            use_threads(before)
