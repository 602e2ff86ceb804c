"""A thread that does one thing after the other, in the order in which they were asked for, until one of them fails."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from mlx_grpo_kit.backends.future import Failure, TrainFuture

T = TypeVar("T")

SECONDS_TO_LEAVE = 10.0
"""How long the end of the interpreter waits for the operation that is in flight."""


class RefusedError(Exception):
    """Raised by an operation that has changed nothing, `from` the error that its caller is to get."""


class Worker:
    """Submits operations to a thread of its own, which starts with the first and ends with the worker.

    trio's threads would not do: a nursery starts its tasks in any order, and MLX's arrays belong to a thread.

    Args:
        name: of the thread.
        at_start: called in the thread, first; what it raises poisons, like an operation that fails.
        at_end: called in the thread, last. It must not hold the worker, nor who holds it.
    """

    def __init__(self, name: str, at_start: Callable[[], None], at_end: Callable[[], None]):
        self._line = _Line()
        self._at_start = at_start
        self._thread = threading.Thread(target=self._line.work, args=[at_end], name=name, daemon=True)
        self._process: int | None = None
        self._submitting = threading.Lock()
        self._closed = False
        self._failure: Failure | None = None
        self._refusals: list[Failure] = []
        weakref.finalize(self, self._line.end).atexit = False

    def submit(self, operation: str, function: Callable[[], T]) -> TrainFuture[T]:
        """Have the thread call a function after all those before it.

        Raises:
            TrainingError: an operation has failed.
            Exception: an earlier operation was refused, and nobody has been told; this one is not submitted.
            RuntimeError: the worker was closed, or this process was forked from the one that began with it.
        """
        with self._submitting:
            self._start()
            if self._failure is not None:
                self._failure.tell(operation)
            self._tell_what_nobody_saw(operation)
            future = TrainFuture(operation, self._thread)
            # The worker waits in the line with its operations and is not the thread's: when nobody has it and nothing
            # waits, it goes, and the thread with it.
            self._line.items.put((self, future, function))
        return future

    def close(self, finish: bool = True) -> None:
        """End the thread and wait for its end.

        Args:
            finish: first do what was submitted, and raise what nobody has been told; otherwise drop what waits.

        Raises:
            TrainingError: an operation has failed, and nobody has been told.
        """
        with self._submitting:
            self._closed = True
            if self._process != os.getpid():
                return  # never started, or left behind by a fork
            self._line.end(drop=not finish)
            if threading.current_thread() is self._thread:
                return  # it ends after the operation that it is in
        self._line.over.wait()
        if finish:
            self._tell_what_nobody_saw("close")

    def call(self, operation: str, function: Callable[[], T]) -> tuple[T | None, Failure | None]:
        """The thread's: an operation's outcome, unless one before it failed."""
        if self._failure is not None:
            return None, self._failure
        try:
            return function(), None
        except RefusedError as refused:
            refusal = Failure(operation, refused.__cause__, poisons=False)
            self._refusals.append(refusal)
            return None, refusal
        except BaseException as error:  # a loss function may even call sys.exit
            self._failure = Failure(operation, error)
            return None, self._failure

    def _start(self) -> None:
        if self._closed:
            raise RuntimeError("This backend was closed. Make a new one.")
        if self._process is None:
            self._process = os.getpid()
            _RUNNING.add(self._line)
            self._thread.start()
            self._line.items.put((self, TrainFuture("start", self._thread), self._at_start))
        elif self._process != os.getpid():
            raise RuntimeError(
                "This process was forked from one that had used this backend, and a fork leaves its thread behind. "
                "Make a new backend here, or start a fresh process: multiprocessing.get_context('spawn')."
            )

    def _tell_what_nobody_saw(self, operation: str) -> None:
        if self._failure is not None and not self._failure.seen:
            self._failure.tell(operation)
        while self._refusals:
            refusal = self._refusals.pop(0)
            if not refusal.seen:
                refusal.tell(operation)


class _Line:
    """What waits for the thread. It is all that the thread holds on to."""

    def __init__(self):
        self.items: queue.SimpleQueue[tuple[Worker, TrainFuture, Callable[[], Any]] | None] = queue.SimpleQueue()
        self.dropping = False
        self.over = threading.Event()

    def end(self, drop: bool = False) -> None:
        self.dropping = self.dropping or drop
        self.items.put(None)

    def work(self, at_end: Callable[[], None]) -> None:
        try:
            while (item := self.items.get()) is not None:
                worker, future, function = item
                if self.dropping:
                    closed = RuntimeError(f"The backend was closed before the turn of {future.operation} had come.")
                    future._set(None, Failure(future.operation, closed, poisons=False))
                else:
                    future._set(*worker.call(future.operation, function))
                item = worker = future = function = None
            at_end()
        finally:
            self.over.set()


_RUNNING: weakref.WeakSet[_Line] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """At the end of the interpreter: what is in flight gets a little time, what waits is dropped."""
    lines = list(_RUNNING)
    for line in lines:
        line.end(drop=True)
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    for line in lines:
        line.over.wait(max(deadline - time.monotonic(), 0))


if hasattr(os, "register_at_fork"):  # the threads run on in the parent alone
    os.register_at_fork(after_in_child=_RUNNING.clear)
