"""A thread that does one operation after the other, in the order of submission, until one of them fails."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (registers its exit handler before ours, so that ours runs first)
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from mlx_grpo_kit.backends.future import Failure, TrainFuture, failed, say, tell_what_nobody_saw

T = TypeVar("T")

SECONDS_TO_LEAVE = 10.0
"""Seconds that the interpreter's exit waits silently, or for a running operation if the rest is dropped."""


class RefusedError(Exception):
    """An operation failed without any change. It is raised `from` the error for the caller.

    Args:
        skips: True if operations submitted after it rely on it, and are skipped too.
    """

    def __init__(self, *, skips: bool = False):
        super().__init__()
        self.skips = skips


@contextmanager
def refusing() -> Iterator[None]:
    """In this context, an exception has changed nothing: it reaches the caller, and does not poison the worker."""
    try:
        yield
    except Exception as error:
        raise RefusedError from error


class Worker:
    """Submit operations to a separate thread, which starts with the first and ends with the worker.

    trio's threads are not suitable: a nursery starts its tasks in any order, and MLX arrays belong to a thread.

    Args:
        name: the name of the thread.
        at_start: called first in the thread; if it raises, the worker is poisoned, as by a failed operation.
        at_end: called last in the thread. It must not reference the worker or an owner of the worker.
        finishes: True if the interpreter's exit waits for submitted operations; otherwise they are dropped.
    """

    def __init__(
        self,
        name: str,
        at_start: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
        *,
        finishes: bool = True,
    ):
        self._line = _Line(name, finishes)
        self._at_start = at_start
        self._thread = threading.Thread(target=self._line.work, args=[at_end], name=name, daemon=True)
        self._process: int | None = None
        self._submitting = threading.Lock()
        self._closed = False
        self._failure: Failure | None = None
        self._refusals: list[Failure] = []
        self._submitted = self._skipped = 0
        self._skipped_for: Failure | None = None
        weakref.finalize(self, self._line.end).atexit = False

    def submit(self, operation: str, function: Callable[[], T]) -> TrainFuture[T]:
        """Submit a function, which the thread calls after all earlier ones.

        Raises:
            TrainingError: an operation has failed.
            Exception: an earlier operation was rejected, and that error was not raised yet; this one is not submitted.
            RuntimeError: the worker was closed, or this process was forked from the one that started it.
        """
        with self._submitting:
            self._start()
            if self._failure is not None:
                self._failure.tell(operation)
            self._tell_what_nobody_saw(operation)
            future = TrainFuture(operation, self._thread)
            # The queued operations reference the worker, but the thread does not. So without other references and with
            # an empty queue, the worker is garbage-collected, and the thread ends.
            self._submitted += 1
            self._line.items.put((future, partial(self.call, operation, function, self._submitted)))
        return future

    @property
    def poisoned(self) -> bool:
        """True after a failed operation that may have changed something."""
        return self._failure is not None

    def close(self, finish: bool = True) -> None:
        """End the thread and wait for its end.

        Args:
            finish: True to finish submitted operations, and raise errors not raised yet; False to drop waiting
                operations.

        Raises:
            TrainingError: an operation has failed, and that error was not raised yet.
        """
        with self._submitting:
            self._closed = True
            if self._process != os.getpid():
                return  # never started, or lost in a fork
            self._line.end(drop=not finish)
            if threading.current_thread() is self._thread:
                return  # it ends after the running operation
        self._line.over.wait()
        if finish:
            self._tell_what_nobody_saw("close")

    def give_up(self, error: BaseException) -> None:
        """Fail the running operation and all waiting ones, without the thread, which is stuck forever.

        This is for code in another thread that knows why the operation cannot end. It has no effect between operations.
        """
        with self._submitting:
            stuck = self._line.current
            if stuck is None or stuck.done():
                return
            self._failure = Failure(stuck.operation, error)
            futures = [stuck, *self._line.drain()]
        for future in futures:
            future._set(None, self._failure)
        self._line.over.set()

    def call(self, operation: str, function: Callable[[], T], number: int) -> tuple[T | None, Failure | None]:
        """Run operation `number` in the thread and return its outcome, unless an earlier one failed."""
        if self._failure is not None:
            return None, self._failure
        if number <= self._skipped:
            before = self._skipped_for
            error = failed(operation, before.error.__cause__, before.operation)
            return None, Failure(operation, error, poisons=False, seen=True)
        self._skipped_for = None
        try:
            return function(), None
        except RefusedError as refused:
            refusal = Failure(operation, refused.__cause__, poisons=False)
            self._refusals.append(refusal)
            if refused.skips:
                self._skipped, self._skipped_for = self._submitted, refusal
            return None, refusal
        except BaseException as error:  # a loss function may even call sys.exit
            self._failure = self._failure or Failure(operation, error)
            return None, self._failure

    def _start(self) -> None:
        if self._closed:
            raise RuntimeError("This backend was closed. Create a new one.")
        if self._process is None:
            self._process = os.getpid()
            _RUNNING.add(self._line)
            self._thread.start()
            start = partial(self.call, "start", self._at_start, 1)
            self._line.items.put((TrainFuture("start", self._thread), start))
        elif self._process != os.getpid():
            raise RuntimeError(
                "This process was forked from one that had used this backend, and a fork does not copy threads. "
                "Create a new backend here, or start a fresh process: multiprocessing.get_context('spawn')."
            )

    def _tell_what_nobody_saw(self, operation: str) -> None:
        if self._failure is not None and not self._failure.seen:
            self._failure.tell(operation)
        while self._refusals:
            refusal = self._refusals.pop(0)
            if not refusal.seen:
                refusal.tell(operation)


class _Line:
    """The queue of operations for the thread. It is the only object that the thread references."""

    def __init__(self, name: str, finishes: bool):
        self.name, self.finishes = name, finishes
        self.items: queue.SimpleQueue[tuple[TrainFuture, Callable[[], Any]] | None] = queue.SimpleQueue()
        self.current: TrainFuture | None = None
        self.dropping = False
        self.dropped: list[str] = []
        self.over = threading.Event()

    def end(self, drop: bool = False) -> None:
        self.dropping = self.dropping or drop
        self.items.put(None)

    def drain(self) -> list[TrainFuture]:
        """Remove and return all waiting operations, except for the end marker."""
        futures, ends = [], []
        with suppress(queue.Empty):
            while True:
                item = self.items.get_nowait()
                ends.append(item) if item is None else futures.append(item[0])
        for end in ends:
            self.items.put(end)
        return futures

    def work(self, at_end: Callable[[], None]) -> None:
        try:
            while (item := self.items.get()) is not None:
                future, call = item
                self.current = future
                if self.dropping:
                    closed = RuntimeError(f"The backend was closed before {future.operation} could start.")
                    future._set(None, Failure(future.operation, closed, poisons=False, seen=True))
                    self.dropped.append(future.operation)
                else:
                    future._set(*call())
                item = future = call = self.current = None
            at_end()
        finally:
            self.over.set()


_RUNNING: weakref.WeakSet[_Line] = weakref.WeakSet()


def _leave() -> None:
    """At the interpreter's exit: finish submitted operations, or report those that were not done.

    After an uncaught exception or Ctrl-C waiting operations are dropped, and only the running one gets a little time.
    """
    lines = list(_RUNNING)
    by_exception = hasattr(sys, "last_type")
    for line in lines:
        line.end(drop=by_exception or not line.finishes)
    try:
        for line in lines:
            if not line.dropping and not line.over.wait(SECONDS_TO_LEAVE):
                say(f"The program ends, but {line.name} is still working. Waiting for it; Ctrl-C drops all that wait.")
                line.over.wait()
    except KeyboardInterrupt:
        for line in lines:
            line.dropping = True
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    for line in lines:
        line.over.wait(max(deadline - time.monotonic(), 0))
        if line.dropped and line.finishes:
            say(
                f"The program ended before {line.name} had finished. Dropped operations, from {line.dropped[0]} on: "
                f"{len(line.dropped)}."
            )
        if not line.over.is_set() and line.finishes:
            say(f"The program ended in the middle of an operation of {line.name}.")
    tell_what_nobody_saw()


# Run before the pools of concurrent.futures are closed, which orbax uses for saving; atexit would be too late.
threading._register_atexit(_leave)
if hasattr(os, "register_at_fork"):  # the threads exist only in the parent
    os.register_at_fork(after_in_child=_RUNNING.clear)
