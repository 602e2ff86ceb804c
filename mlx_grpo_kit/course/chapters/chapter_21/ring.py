"""Processes that stand in a ring and talk to their neighbours: as threads, watched, and real ones.

The threads share nothing but messages, and each message is counted, so what a program sends can be seen. A ring in
which everybody waits is noticed at once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from mlx_grpo_kit.cli.processes import PREFIX, ring

SECONDS = 60  # that real processes may take
LIFELINE = "from mlx_grpo_kit.cli.processes import end_with_parent\nend_with_parent()\n"


class DeadlockError(RuntimeError):
    """Everybody waits for a message, and nobody is left to send one."""


class Ran(NamedTuple):
    """What came of a program that ran in a ring."""

    results: list[Any]
    sent: list[int]
    """Numbers that each process sent."""
    messages: list[int]
    """How many messages each sent."""


class _Wires:
    """The wires of a ring: from each place to the next, a queue of messages."""

    def __init__(self, size: int):
        self.size = size
        self.queues = [deque() for _ in range(size)]  # of what each place is going to receive
        self.sent, self.messages = [0] * size, [0] * size
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._ended: set[int] = set()
        self._stuck = False

    def send(self, rank: int, array: Any) -> None:
        array = np.array(array)  # a copy: what is changed later was not sent
        with self._changed:
            self.sent[rank] += array.size
            self.messages[rank] += 1
            self.queues[(rank + 1) % self.size].append(array)
            self._changed.notify_all()

    def receive(self, rank: int) -> np.ndarray:
        with self._changed:
            self._waiting.add(rank)
            self._look()
            while not self.queues[rank] and not self._stuck:
                self._changed.wait()
            self._waiting.discard(rank)
            if not self.queues[rank]:
                raise DeadlockError("every process that still runs waits for a message, and nobody sends one")
            return self.queues[rank].popleft()

    def end(self, rank: int) -> None:
        with self._changed:
            self._ended.add(rank)
            self._look()

    def _look(self) -> None:
        """Whether everybody who has not ended waits for a message that is not there."""
        others = set(range(self.size)) - self._ended
        if others and others <= self._waiting and not any(self.queues[rank] for rank in others):
            self._stuck = True
            self._changed.notify_all()


def run_in_ring(program: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ran:
    """Run `program(array, rank, size, send, receive)` once for each array, all at the same time.

    `send(array)` goes to the next place of the ring, the last one's to the first; `receive()` waits for what the one
    before has sent.

    Raises what the first program raised that failed, and DeadlockError where all wait for each other.
    """
    size = len(arrays)
    wires, results, errors = _Wires(size), [None] * size, {}

    def run(rank: int) -> None:
        try:
            results[rank] = program(
                arrays[rank], rank, size, lambda array: wires.send(rank, array), lambda: wires.receive(rank)
            )
        except Exception as error:
            errors[rank] = error
        finally:
            wires.end(rank)

    threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:  # a process that fails leaves the others waiting: its own error says more
        raise next((each for each in errors.values() if not isinstance(each, DeadlockError)), min(errors.items())[1])
    return Ran(results, wires.sent, wires.messages)


def run_processes(program: str, count: int) -> str:
    """Run the Python text `program` in `count` real processes, connected by MLX's ring; what the first one printed.

    Raises RuntimeError with the last line of what a process wrote to standard error, if it fails; the others are ended
    then. TimeoutError after a minute.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        files = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)] for _ in range(count)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", LIFELINE + program],
                env=environment,
                stdin=subprocess.PIPE,  # closed when this process ends, even when it is killed
                stdout=out,
                stderr=err,
            )
            for environment, (out, err) in zip(ring(count, folder), files, strict=True)
        ]
        try:
            deadline = time.monotonic() + SECONDS
            while None in [process.poll() for process in processes]:
                if any(process.returncode for process in processes):
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{count} processes did not end within {SECONDS} seconds.")
                time.sleep(0.02)
            failed = next((rank for rank, process in enumerate(processes) if process.returncode), None)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                process.stdin.close()
        (said, wrong) = files[failed or 0]
        said.seek(0), wrong.seek(0)
        if failed is not None:
            raise RuntimeError(f"Process {failed}: {(wrong.read().strip().splitlines() or ['it ended'])[-1]}")
        return said.read()


def ring_states(size: int) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """After 0, 1, ... 2 (size - 1) messages: ([processes, parts] how many processes' numbers a part has, what came)."""
    counts, ranks = np.ones((size, size), int), np.arange(size)
    states: list[tuple[np.ndarray, np.ndarray | None]] = [(counts.copy(), None)]
    for step in range(2 * (size - 1)):
        is_first = step < size - 1
        part = (ranks - step - 1) % size if is_first else (ranks - (step - size + 1)) % size
        came = counts[(ranks - 1) % size, part]
        counts[ranks, part] = counts[ranks, part] + came if is_first else came
        states.append((counts.copy(), part))
    return states
