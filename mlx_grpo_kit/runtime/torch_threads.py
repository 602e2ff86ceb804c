"""The number of threads that torch computes with. MKL's number, which MLX shares, stays as it is."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def use_threads(count: int) -> None:
    """Have torch compute with as many threads when this thread calls it; a thread starts with OpenMP's first number.

    That is 1 where `mlx_grpo_kit.runtime.blas` has loaded OpenMP for MLX. torch.set_num_threads would set MKL's number
    too, which the whole process shares, MLX included.
    """
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if torch.get_num_threads() != count and torch_cpu.exists():
        getattr(ctypes.CDLL(str(torch_cpu)), "omp_set_num_threads", torch.set_num_threads)(count)
