"""Several processes, on one machine or many, that train one policy together through MLX's `mx.distributed`.

Every process does its share of each step: it samples and scores its part of the prompts, all see all rewards, and the
gradients are added. Every process has the whole model. The random numbers of a row depend only on its position in the
whole batch, so any number of processes gives the same run up to float32 rounding.

`mlx.launch -n 4 ...` starts the processes, and so does `train --processes 4` on one machine; a single process is a
`World` of one. Processes that torchrun starts exchange through torch's gloo instead (`gloo.py`).

The guide `scale.md` estimates the cost.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mlx_grpo_kit.qwen3.params import in_groups
from mlx_grpo_kit.runtime import mx

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.gloo import Gloo

T = TypeVar("T")

MESSAGE = 1 << 24
"""The most numbers in a message of gradients (64 MB), unless one parameter alone has more."""


class ProcessLostError(RuntimeError):
    """Another process of the world is gone, so training together cannot continue."""


class Ring:
    """Exchanges through MLX's `mx.distributed`."""

    def __init__(self, group: mx.distributed.Group):
        self._group, self.rank, self.size = group, group.rank(), group.size()

    def all_gather(self, sent: np.ndarray) -> np.ndarray:
        """The bytes of all processes, one after the other: uint8 [N] -> [size * N]."""
        received = mx.distributed.all_gather(mx.array(sent), group=self._group)
        mx.eval(received)  # raises an error if a process is gone; NumPy would read what is there
        return np.array(received)

    def all_sum(self, values: mx.array) -> mx.array:
        """The sum over all processes, float32 of any shape; evaluated."""
        sums = mx.distributed.all_sum(values, group=self._group)
        mx.eval(sums)
        return sums


class World:
    """The processes that train together, seen from one of them.

    All of them must call `gather`, `sum` and `together` in the same order.

    Attributes:
        rank: this process's number, from 0. Number 0 writes files and prints.
        size: the number of processes.
    """

    def __init__(self, exchange: Ring | Gloo | None = None):
        self._exchange = exchange
        self.rank, self.size = (exchange.rank, exchange.size) if exchange is not None else (0, 1)

    @classmethod
    def join(cls) -> World:
        """The world that this process was started in: that of mlx.launch or torchrun, or one of this process alone.

        Raises ProcessLostError if the others cannot be reached, and ImportError for torchrun without torch.
        """
        launcher = _launcher()
        if launcher is None:
            return cls()
        try:
            if launcher == "torchrun":
                from mlx_grpo_kit.grpo.gloo import Gloo  # loads torch

                return cls(Gloo())
            return cls(Ring(mx.distributed.init(strict=True)))
        except RuntimeError as error:
            raise ProcessLostError(f"The other processes cannot be reached ({error}).") from error

    def share(self, count: int) -> range:
        """This process's range of `count` rows, in the order of the ranks. Sizes differ by at most one."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def concatenate(self, rows: np.ndarray) -> np.ndarray:
        """Concatenate every process's [rows, ...] in the order of the ranks; numbers of rows may differ."""
        if self.size == 1:
            return rows
        counts = self.gather(np.array([[len(rows)]])).ravel()
        padded = np.zeros([counts.max(), *rows.shape[1:]], rows.dtype)
        padded[: len(rows)] = rows
        pieces = self.gather(padded).reshape(self.size, *padded.shape)
        return np.concatenate([piece[:own] for piece, own in zip(pieces, counts, strict=True)])

    def concatenate_lists(self, rows: Sequence[Sequence[float]], kind: type) -> list[list]:
        """Concatenate every process's lists of numbers in the order of the ranks; lists may differ in length."""
        if self.size == 1:
            return [*rows]
        lengths = self.concatenate(np.array([len(row) for row in rows], int))
        flat = self.concatenate(np.array([value for row in rows for value in row], kind))
        return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Concatenate every process's [rows, ...] in the order of the ranks; all have the same shape.

        float64 numbers arrive bit for bit: they travel as bytes.
        """
        if self.size == 1:
            return values
        sent = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        received = self._wait_for(lambda: self._exchange.all_gather(sent))
        return received.view(values.dtype).reshape(-1, *values.shape[1:])

    def sum(self, arrays: dict[str, mx.array]) -> dict[str, mx.array]:
        """The sum over all processes of each float32 array, by name; evaluated, and bit for bit the same in all.

        This empties `arrays` step by step, so that all the old and all the new arrays never exist at once.
        """
        if self.size == 1:
            return arrays
        sums: dict[str, mx.array] = {}
        # Grouped, the arrays pay the network's latency once, not per parameter.
        for names in in_groups(sorted(arrays), lambda name: arrays[name].size, MESSAGE):
            shapes = [arrays[name].shape for name in names]
            ends = np.cumsum([arrays[name].size for name in names])
            flat = mx.concatenate([arrays.pop(name).reshape(-1) for name in names])
            mx.eval(flat)
            flat = self._wait_for(lambda flat=flat: self._exchange.all_sum(flat))
            parts = mx.split(flat, ends[:-1].tolist())
            sums |= {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
            mx.eval([sums[name] for name in names])
        return sums

    def check_same(self, state: bytes) -> None:
        """Raise ValueError in all processes if the state of one differs from that of process 0."""
        hashes = self.gather(np.frombuffer(hashlib.sha256(state).digest(), np.uint8)[None])
        if different := [rank for rank, other in enumerate(hashes) if (other != hashes[0]).any()]:
            raise ValueError(
                f"Process {different[0]} has a different state from process 0; expected the same task, settings, model "
                "and step in all of them. Do all read the same folders?"
            )

    @contextmanager
    def together(self, *kinds: type[Exception]) -> Iterator[None]:
        """Make an error in one process an error in all: the others raise it as the first of these kinds."""
        error = None
        try:
            yield
        except kinds as raised:
            error = raised
        words = str(error).encode()[:1000] if error else b""
        failed = self.gather(np.array([error is not None]))
        if failed.any():
            said = self.gather(np.array([words], "S1000"))
            raise error or kinds[0](said[failed.argmax()].decode(errors="replace"))

    def _wait_for(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except RuntimeError as error:
            reason = str(error).partition(". This is typically")[0]  # gloo's guesses
            raise ProcessLostError(
                f"Another process of the {self.size} that train together is gone ({reason})."
            ) from error


def _launcher() -> str | None:
    """The program that started this process and others: "mlx", "torchrun", or None if there are no others."""
    if "MLX_RANK" in os.environ:
        return None if _is_alone() else "mlx"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1" else None


def _is_alone() -> bool:
    """True if this is the only process of a ring, which would wait for itself forever."""
    hosts = os.environ.get("MLX_HOSTFILE")
    return hosts is not None and len(json.loads(Path(hosts).read_text())) == 1
