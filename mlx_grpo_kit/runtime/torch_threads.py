"""Set the number of threads that torch computes with, without changing MKL's, which MLX shares."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def use_threads(count: int) -> None:
    """Make torch use `count` threads when this thread calls it; a thread starts with OpenMP's first number.

    That number is 1 if `mlx_grpo_kit.runtime.blas` has loaded OpenMP for MLX. torch.set_num_threads would also set
    MKL's number, which the whole process shares, including MLX.
    """
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if torch.get_num_threads() != count and torch_cpu.exists():
        getattr(ctypes.CDLL(str(torch_cpu)), "omp_set_num_threads", torch.set_num_threads)(count)
