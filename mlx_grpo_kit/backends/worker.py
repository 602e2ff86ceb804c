"""A thread that does one thing after the other, in the order in which they were asked for, until one of them fails."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (registers its own end before ours, which comes first then)
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from mlx_grpo_kit.backends.future import Failure, TrainFuture, failed, say, tell_what_nobody_saw

T = TypeVar("T")

SECONDS_TO_LEAVE = 10.0
"""How long the end of the interpreter waits without a word, or for an operation in flight if the rest is dropped."""


class RefusedError(Exception):
    """Raised by an operation that has changed nothing, `from` the error that its caller is to get.

    Args:
        skips: whether what has been submitted after the operation relies on it, and is therefore not done either.
    """

    def __init__(self, *, skips: bool = False):
        super().__init__()
        self.skips = skips


class Worker:
    """Submits operations to a thread of its own, which starts with the first and ends with the worker.

    trio's threads would not do: a nursery starts its tasks in any order, and MLX's arrays belong to a thread.

    Args:
        name: of the thread.
        at_start: called in the thread, first; what it raises poisons, like an operation that fails.
        at_end: called in the thread, last. It must not hold the worker, nor who holds it.
        finishes: whether the end of the interpreter waits for what was submitted; otherwise it is dropped.
    """

    def __init__(self, name: str, at_start: Callable[[], None], at_end: Callable[[], None], *, finishes: bool = True):
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
            self._submitted += 1
            self._line.items.put((future, partial(self.call, operation, function, self._submitted)))
        return future

    @property
    def poisoned(self) -> bool:
        """True after an operation failed that may have changed something."""
        return self._failure is not None

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

    def give_up(self, error: BaseException) -> None:
        """Fail the operation in flight and all that wait, without the thread, which is stuck for good.

        For code in another thread that knows why the operation cannot end. Does nothing between two operations.
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
        """The thread's: the outcome of operation `number`, unless one before it failed."""
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
            raise RuntimeError("This backend was closed. Make a new one.")
        if self._process is None:
            self._process = os.getpid()
            _RUNNING.add(self._line)
            self._thread.start()
            start = partial(self.call, "start", self._at_start, 1)
            self._line.items.put((TrainFuture("start", self._thread), start))
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
    """The operations that wait for the thread. It is all that the thread holds on to."""

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
        """Take out all that waits, but for an end."""
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
                    closed = RuntimeError(f"The backend was closed before the turn of {future.operation} had come.")
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
    """At the end of the interpreter: do what was submitted, or say what was not done.

    After an uncaught exception or Ctrl-C what waits is dropped, and only what is in flight gets a little time.
    """
    lines = list(_RUNNING)
    by_exception = hasattr(sys, "last_type")
    for line in lines:
        line.end(drop=by_exception or not line.finishes)
    try:
        for line in lines:
            if not line.dropping and not line.over.wait(SECONDS_TO_LEAVE):
                say(f"The program ends, but {line.name} is still working. Waiting for it; Ctrl-C drops what waits.")
                line.over.wait()
    except KeyboardInterrupt:
        for line in lines:
            line.dropping = True
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    for line in lines:
        line.over.wait(max(deadline - time.monotonic(), 0))
        if line.dropped and line.finishes:
            say(
                f"The program ended before {line.name} had done all that was submitted. Dropped, from "
                f"{line.dropped[0]} on: {len(line.dropped)}."
            )
        if not line.over.is_set() and line.finishes:
            say(f"The program ended in the middle of an operation of {line.name}.")
    tell_what_nobody_saw()


# Before the pools of concurrent.futures are closed, which orbax saves with; atexit's turn comes after that.
threading._register_atexit(_leave)
if hasattr(os, "register_at_fork"):  # the threads run on in the parent alone
    os.register_at_fork(after_in_child=_RUNNING.clear)
