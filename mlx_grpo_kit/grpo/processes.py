"""Several processes, on one machine or many, that train one policy together through MLX's `mx.distributed`.

Every process has the whole model and does its share of each step: it samples and scores its part of the prompts, all
see all rewards, and the gradients are added. What is drawn depends on a row's place in the whole batch and on nothing
else, so that any number of processes gives the same run to float32 rounding.

`mlx.launch -n 4 ...` starts the processes, as does `train --processes 4` on one machine; a process by itself is a
`World` of one.

What it costs, on paper: the gradients of P parameters are 4 P bytes, of which each of N processes in a ring sends and
receives 2 (N - 1) / N. So a step waits 8 P (N - 1) / (N B) seconds for a network of B bytes a second, a third more at
64 machines than at 4, and 2 (N - 1) times its latency for each message. Learning from T tokens a process takes about
6 P T / F seconds at F operations a second, so that P falls out of the quotient of the two, at most 4 F / (3 B T). With
8 billion parameters, 64 machines of F = 1e14 and T = 131,072 (512 completions of 256 tokens) it is 50 s at 10 Gbit/s
or 1.3 s at 400 Gbit/s, beside 63 s of learning and the time of sampling, which needs no network.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mlx_grpo_kit.runtime import mx

MESSAGE = 1 << 24
"""Numbers in a message of gradients at most, 64 MB, unless one parameter alone has more."""


class ProcessLostError(RuntimeError):
    """Another process of the world is gone, and nothing more can be learned together."""


class World:
    """The processes that train together, seen from one of them.

    All have to call `gather`, `sum` and `together` alike, in the same order.

    Attributes:
        rank: this process's number, from 0. Number 0 writes files and prints.
        size: how many there are.
    """

    def __init__(self, group: mx.distributed.Group | None = None):
        self._group = group
        self.rank = group.rank() if group is not None else 0
        self.size = group.size() if group is not None else 1

    @classmethod
    def join(cls) -> World:
        """The world that this process was started in: mlx.launch's, or one of its own.

        Raises ProcessLostError where the others cannot be reached.
        """
        if "MLX_RANK" not in os.environ or _is_alone():
            return cls()
        try:
            return cls(mx.distributed.init(strict=True))
        except RuntimeError as error:
            raise ProcessLostError(f"The other processes cannot be reached ({error}).") from error

    def part(self, count: int) -> range:
        """This process's places of `count`: as many for each process, but for one, in the order of the ranks."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def concatenate(self, rows: np.ndarray) -> np.ndarray:
        """Every process's [rows, ...] below each other in the order of the ranks; each may have another number."""
        if self.size == 1:
            return rows
        counts = self.gather(np.array([[len(rows)]])).ravel()
        padded = np.zeros([counts.max(), *rows.shape[1:]], rows.dtype)
        padded[: len(rows)] = rows
        pieces = self.gather(padded).reshape(self.size, *padded.shape)
        return np.concatenate([piece[:own] for piece, own in zip(pieces, counts, strict=True)])

    def concatenate_lists(self, rows: Sequence[Sequence[float]], kind: type) -> list[list]:
        """Every process's lists of numbers below each other in the order of the ranks; lists may differ in length."""
        if self.size == 1:
            return [*rows]
        lengths = self.concatenate(np.array([len(row) for row in rows], int))
        flat = self.concatenate(np.array([value for row in rows for value in row], kind))
        return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Every process's [rows, ...] below each other in the order of the ranks; all of one shape.

        float64 numbers arrive bit for bit: they travel as bytes.
        """
        if self.size == 1:
            return values
        values = np.ascontiguousarray(values)
        sent = mx.array(np.frombuffer(values.tobytes(), np.uint8))
        received = self._wait_for(lambda: mx.distributed.all_gather(sent, group=self._group))
        return np.frombuffer(np.array(received).tobytes(), values.dtype).reshape(-1, *values.shape[1:])

    def sum(self, arrays: dict[str, mx.array]) -> dict[str, mx.array]:
        """The sum over all processes of each float32 array, by name; evaluated, and the same to the bit in all.

        `arrays` is emptied on the way, so that old and new never exist of everything at once.
        """
        if self.size == 1:
            return arrays
        sums: dict[str, mx.array] = {}
        for names in _messages({name: arrays[name].size for name in sorted(arrays)}):
            shapes = [arrays[name].shape for name in names]
            ends = np.cumsum([arrays[name].size for name in names])
            flat = mx.concatenate([arrays.pop(name).reshape(-1) for name in names])
            mx.eval(flat)
            flat = self._wait_for(lambda flat=flat: mx.distributed.all_sum(flat, group=self._group))
            parts = mx.split(flat, ends[:-1].tolist())
            sums |= {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
            mx.eval([sums[name] for name in names])
        return sums

    def check_same(self, state: bytes) -> None:
        """Raise ValueError in all processes where one is in another state than process 0."""
        hashes = self.gather(np.frombuffer(hashlib.sha256(state).digest(), np.uint8)[None])
        if different := [rank for rank, other in enumerate(hashes) if (other != hashes[0]).any()]:
            raise ValueError(
                f"Process {different[0]} is not where process 0 is; expected the same task, settings, model and step "
                "in all of them. Do all read the same folders?"
            )

    @contextmanager
    def together(self, *kinds: type[Exception]) -> Iterator[None]:
        """Make an error of one process an error of all: the others raise it as the first of these kinds."""
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

    def _wait_for(self, operation: Callable[[], mx.array]) -> mx.array:
        try:
            result = operation()
            mx.eval(result)
        except RuntimeError as error:
            raise ProcessLostError(
                f"Another process of the {self.size} that train together is gone ({error})."
            ) from error
        return result


def _is_alone() -> bool:
    """True if this is the only process of a ring, which would wait for itself in vain."""
    hosts = os.environ.get("MLX_HOSTFILE")
    return hosts is not None and len(json.loads(Path(hosts).read_text())) == 1


def _messages(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names that go in one message: the latency of the network is paid once, not for every parameter."""
    names: list[str] = []
    for name in sizes:
        if names and sum(sizes[each] for each in names) + sizes[name] > MESSAGE:
            yield names
            names = []
        names.append(name)
    yield names
