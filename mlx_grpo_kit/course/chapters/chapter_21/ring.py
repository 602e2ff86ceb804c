"""Processes in a ring that send messages to their neighbours: as threads that are watched, and as real processes.

The threads exchange only messages, and each message is counted, so you can see what a program sends. A deadlock, in
which every process waits, is detected at once.
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

SECONDS = 60  # the time limit for real processes
LIFELINE = "from mlx_grpo_kit.cli.processes import end_with_parent\nend_with_parent()\n"


class DeadlockError(RuntimeError):
    """Every process waits for a message, and none is left to send one."""


class Ran(NamedTuple):
    """The results of a program that ran in a ring, and the numbers and messages that were sent."""

    results: list[Any]
    sent: list[int]
    """The count of numbers that each process sent."""
    messages: list[int]
    """The count of messages that each process sent."""


class _Wires:
    """The wires of a ring: a queue of messages from each process to the next."""

    def __init__(self, size: int):
        self.size = size
        self.queues = [deque() for _ in range(size)]  # the messages that each process is going to receive
        self.sent, self.messages = [0] * size, [0] * size
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._ended: set[int] = set()
        self._stuck = False

    def send(self, rank: int, array: Any) -> None:
        array = np.array(array)  # a copy: later changes must not reach the receiver
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
                raise DeadlockError("every process that still runs waits for a message, and none sends one")
            return self.queues[rank].popleft()

    def end(self, rank: int) -> None:
        with self._changed:
            self._ended.add(rank)
            self._look()

    def _look(self) -> None:
        """Set `_stuck` if every process that has not ended waits for a message, and none is on its way."""
        others = set(range(self.size)) - self._ended
        if others and others <= self._waiting and not any(self.queues[rank] for rank in others):
            self._stuck = True
            self._changed.notify_all()


def run_in_ring(program: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ran:
    """Run `program(array, rank, size, send, receive)` once for each array, all at the same time.

    `send(array)` sends an array to the next process in the ring, from the last to the first; `receive()` waits for an
    array from the previous process.

    Raises the error of the first program that failed, or DeadlockError if all programs wait for each other.
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
    if errors:  # a failed process leaves the others waiting: report its own error
        raise next((each for each in errors.values() if not isinstance(each, DeadlockError)), min(errors.items())[1])
    return Ran(results, wires.sent, wires.messages)


def run_processes(program: str, count: int) -> str:
    """Run the Python text `program` in `count` real processes, connected by MLX's ring; return what the first printed.

    Raises RuntimeError with the last line of a process's standard error if it fails, and ends the other processes.
    Raises TimeoutError after a minute.
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
    """The states after 0, 1, ... 2 (size - 1) messages: (processes summed [processes, parts], the part received)."""
    counts, ranks = np.ones((size, size), int), np.arange(size)
    states: list[tuple[np.ndarray, np.ndarray | None]] = [(counts.copy(), None)]
    for step in range(2 * (size - 1)):
        is_first = step < size - 1
        part = (ranks - step - 1) % size if is_first else (ranks - (step - size + 1)) % size
        came = counts[(ranks - 1) % size, part]
        counts[ranks, part] = counts[ranks, part] + came if is_first else came
        states.append((counts.copy(), part))
    return states
