"""The world of processes that torchrun starts, which exchange through torch's gloo."""

from __future__ import annotations

import atexit
from collections.abc import Callable

import numpy as np

from mlx_grpo_kit.grpo.processes import ProcessLostError, T, World
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.extras import packages_for

with packages_for("torchrun"):
    import torch
    import torch.distributed as dist


class TorchrunWorld(World):
    """The processes of one torchrun, on one machine or many.

    Raises ProcessLostError if the others cannot be reached.
    """

    def __init__(self, sharded: bool = False):
        super().__init__(sharded=sharded)
        self._wait_for(lambda: dist.init_process_group("gloo"))
        atexit.register(dist.destroy_process_group)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum_scatter(self, rows: np.ndarray) -> np.ndarray:
        """The sum over all processes of row number `rank`: float32 [size, N] -> [N]. May overwrite `rows`."""
        sums = torch.from_numpy(rows)
        self._wait_for(lambda: dist.all_reduce(sums))  # gloo's own reduce-scatter takes three times as long
        return rows[self.rank].copy()

    def _all_gather(self, sent: np.ndarray) -> np.ndarray:
        received = np.empty([self.size, len(sent)], np.uint8)
        received[self.rank] = sent
        for rank, row in enumerate(torch.from_numpy(received)):  # gloo's own all-gather takes ten times as long
            self._wait_for(lambda row=row, rank=rank: dist.broadcast(row, rank))
        return received.reshape(-1)

    def _all_sum(self, values: mx.array) -> mx.array:
        sums = np.array(values)
        self._wait_for(lambda: dist.all_reduce(torch.from_numpy(sums)))
        return mx.array(sums)

    def _wait_for(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except RuntimeError as error:
            reason = str(error).partition(". This is typically")[0]
            raise ProcessLostError(f"Another process that torchrun started is gone ({reason}).") from error
