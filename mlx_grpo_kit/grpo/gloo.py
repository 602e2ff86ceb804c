"""Exchanges between the processes that torchrun starts, on one machine or many, through torch's gloo."""

from __future__ import annotations

import atexit

import numpy as np

from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.extras import packages_for

with packages_for("torchrun"):
    import torch
    import torch.distributed as dist


class Gloo:
    """The processes of one torchrun. All of them must call its methods in the same order.

    Raises RuntimeError if the others cannot be reached, or are gone.
    """

    def __init__(self):
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def all_gather(self, sent: np.ndarray) -> np.ndarray:
        """The bytes of all processes, one after the other: uint8 [N] -> [size * N]."""
        received = np.empty([self.size, len(sent)], np.uint8)
        received[self.rank] = sent
        for rank, row in enumerate(torch.from_numpy(received)):  # gloo's own all-gather takes ten times as long
            dist.broadcast(row, rank)
        return received.reshape(-1)

    def all_sum(self, values: mx.array) -> mx.array:
        """The sum over all processes, float32 of any shape."""
        sums = np.array(values)
        dist.all_reduce(torch.from_numpy(sums))
        return mx.array(sums)
