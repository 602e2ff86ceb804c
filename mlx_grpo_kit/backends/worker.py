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
    """The thread and its queue. It starts with the first operation, and ends with `close` or with its last reference.

    trio's own threads would not do: a nursery starts its tasks in any order, and MLX's arrays belong to a thread.

    Args:
        name: of the thread.
        at_start, at_end: called in the thread, first and last.
    """

    def __init__(self, name: str, at_start: Callable[[], None], at_end: Callable[[], None]):
        self._state = _State()
        self._thread = threading.Thread(target=_work, args=[self._state, at_start, at_end], name=name, daemon=True)
        self._process: int | None = None
        self._submitting = threading.Lock()
        # Only the state is the thread's: nobody's reference to the worker, its thread ends.
        weakref.finalize(self, self._state.end).atexit = False

    def submit(self, operation: str, function: Callable[[], T]) -> TrainFuture[T]:
        """Have the thread call a function after all those before it.

        Raises:
            TrainingError: an operation has failed.
            Exception: an earlier operation was refused, and nobody has been told; this one is not submitted.
            RuntimeError: the worker was closed, or this process was forked from the one that began with it.
        """
        with self._submitting:
            self._start()
            self._tell_what_nobody_saw(operation)
            future = TrainFuture(operation, self._thread)
            self._state.queue.put((future, function))
        return future

    def close(self, finish: bool = True) -> None:
        """End the thread and wait for its end; twice is once.

        Args:
            finish: first do what was submitted; otherwise only what is in flight.

        Raises:
            TrainingError: an operation has failed, and nobody has been told.
        """
        with self._submitting:
            closed_before, self._state.closed = self._state.closed, True
            if self._process != os.getpid() or threading.current_thread() is self._thread:
                return
            if not closed_before:
                self._state.end(drop=not finish)
        self._state.over.wait()
        if finish:
            self._tell_what_nobody_saw("close")

    def _start(self) -> None:
        if self._state.closed:
            raise RuntimeError("This backend was closed. Make a new one.")
        if self._process is None:
            self._process = os.getpid()
            _RUNNING.add(self._state)
            self._thread.start()
        elif self._process != os.getpid():
            raise RuntimeError(
                "This process was forked from one that had used this backend, and a fork leaves its thread behind. "
                "Make a new backend here, or start a fresh process: multiprocessing.get_context('spawn')."
            )

    def _tell_what_nobody_saw(self, operation: str) -> None:
        failure = self._state.failure
        if failure is not None and (operation != "close" or not failure.seen):
            failure.tell(operation)
        while self._state.refusals:
            refusal = self._state.refusals.pop(0)
            if not refusal.seen:
                refusal.tell(operation)


class _State:
    """What the thread knows: not the worker, whose last reference would otherwise never go."""

    def __init__(self):
        self.queue: queue.SimpleQueue[tuple[TrainFuture, Callable[[], Any]] | None] = queue.SimpleQueue()
        self.failure: Failure | None = None
        self.refusals: list[Failure] = []
        self.closed = False
        self.dropping = False
        self.over = threading.Event()

    def end(self, drop: bool = False) -> None:
        self.dropping = self.dropping or drop
        self.queue.put(None)


def _work(state: _State, at_start: Callable[[], None], at_end: Callable[[], None]) -> None:
    try:
        at_start()
        while (item := state.queue.get()) is not None:
            future, function = item
            item = None
            if state.dropping:
                closed = RuntimeError(f"The backend was closed before the turn of {future.operation} had come.")
                future._set(None, Failure(future.operation, closed, poisons=False))
            elif state.failure is not None:
                future._set(None, state.failure)
            else:
                future._set(*_outcome(state, future.operation, function))
            future = function = None  # or the thread would hold on to a backend that nobody else has
        at_end()
    finally:
        state.over.set()


def _outcome(state: _State, operation: str, function: Callable[[], Any]) -> tuple[Any, Failure | None]:
    try:
        return function(), None
    except RefusedError as refused:
        refusal = Failure(operation, refused.__cause__, poisons=False)
        state.refusals.append(refusal)
        return None, refusal
    except BaseException as error:  # a loss function may even call sys.exit
        state.failure = Failure(operation, error)
        return None, state.failure


_RUNNING: weakref.WeakSet[_State] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """At the end of the interpreter: what is in flight gets a little time, what waits is dropped."""
    states = list(_RUNNING)
    for state in states:
        state.end(drop=True)
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    for state in states:
        state.over.wait(max(deadline - time.monotonic(), 0))


if hasattr(os, "register_at_fork"):  # the threads run on in the parent alone
    os.register_at_fork(after_in_child=_RUNNING.clear)
