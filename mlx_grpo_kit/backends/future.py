"""A promise of a result from a backend's thread: `await` it in trio or asyncio, or call its `wait()`."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import weakref
from collections.abc import Coroutine, Generator, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")


class TrainingError(RuntimeError):
    """An operation of a training backend failed; its cause is `__cause__`.

    If the backend is `poisoned`, create a new one; otherwise nothing has changed and the backend remains usable.
    """


def failed(operation: str, error: Exception, before: str | None = None) -> TrainingError:
    """The error of an operation that failed, or was skipped because `before` failed, without any change."""
    what = "failed" if before is None else f"was not done: {before} failed before it"
    why = f"{type(error).__name__}: {error}"
    found = TrainingError(f"{operation} {what} ({why}). Nothing has changed, so you can continue with this backend.")
    found.__cause__ = error
    return found


@dataclass(eq=False)
class Failure:
    """The error of a failed operation. If the program never reads it, it is printed to stderr in the end.

    Attributes:
        operation: its name.
        error: the exception.
        poisons: False if the operation failed before it changed anything.
        seen: True once the error has been raised to the program.
    """

    operation: str
    error: BaseException
    poisons: bool = True
    seen: bool = False

    def __post_init__(self):
        _FAILURES.add(self)

    def __del__(self):
        self.tell_if_nobody_saw()

    def tell_if_nobody_saw(self) -> None:
        if not self.seen:
            self.seen = True
            say(
                f"{self.operation} failed ({type(self.error).__name__}: {self.error}), and the program never read this "
                "error. Wait for the futures of a backend, or close it."
            )

    def tell(self, asked_for: str) -> None:
        """Raise it as the outcome of the operation `asked_for`: this one, or a later one."""
        self.seen = True
        if not self.poisons:
            raise self.error.with_traceback(None)
        what = "failed" if asked_for == self.operation else f"cannot be done: {self.operation} failed before it"
        raise TrainingError(
            f"{asked_for} {what} ({type(self.error).__name__}: {self.error}). The backend's state may be half changed, "
            "so it refuses further operations: create a new one, and load_checkpoint the last checkpoint."
        ) from self.error


_FAILURES: weakref.WeakSet[Failure] = weakref.WeakSet()


def tell_what_nobody_saw() -> None:
    for failure in list(_FAILURES):
        failure.tell_if_nobody_saw()


def say(words: str) -> None:
    """Print an error that can no longer be raised anywhere."""
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or gone
        print(f"mlx_grpo_kit: {words}", file=sys.stderr, flush=True)


class TrainFuture(Coroutine[Any, Any, T], Generic[T]):
    """The result of an operation of a backend, once there is one: `await future`, `await future.result()` or `wait()`.

    You may await it any number of times, from several tasks, in several runs of trio, and in asyncio, in which notebook
    cells run. Cancelling a task that waits does not cancel the operation.
    You need not await a future: the operation is done anyway.
    """

    def __init__(self, operation: str, thread: threading.Thread):
        self.operation = operation
        self._thread, self._process = thread, os.getpid()
        self._outcome: futures.Future[tuple[T | None, Failure | None]] = futures.Future()
        self._lock, self._waiting = threading.Lock(), 0
        self._coroutine: Coroutine[Any, Any, T] | None = None

    def done(self) -> bool:
        """True if the operation has ended, successfully or not."""
        return self._outcome.done()

    async def result(self) -> T:
        """Wait for the operation and return its result.

        Raises:
            TrainingError: it failed, or an earlier one did.
            RuntimeError: neither trio nor asyncio is running; call `wait()` instead.
        """
        try:
            anyio.get_cancelled_exc_class()
        except RuntimeError:
            words = "A TrainFuture can only be awaited in trio or asyncio; elsewhere call its wait()."
            raise RuntimeError(words) from None
        over, limiter = threading.Event(), anyio.CapacityLimiter(1)  # any number of tasks may wait
        with self._waited_for():
            self._outcome.add_done_callback(lambda _: over.set())
            try:
                await anyio.to_thread.run_sync(over.wait, abandon_on_cancel=True, limiter=limiter)
            finally:
                over.set()  # a cancelled task leaves no thread that waits
        return self._read()

    def wait(self, timeout: float | None = None) -> T:
        """Block until the operation has ended, and return its result. For code without trio.

        Raises:
            TrainingError: it failed, or an earlier one did.
            TimeoutError: it has not ended after `timeout` seconds; it continues.
        """
        with self._waited_for():
            futures.wait([self._outcome], timeout)
        if not self.done():
            raise TimeoutError(f"{self.operation} has not ended after {timeout} s; it continues.")
        return self._read()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.result().__await__()

    # trio.run(backend.save_checkpoint, step) and asyncio.create_task(backend.save_checkpoint(step)) take a coroutine.

    def send(self, value: Any) -> Any:
        return self._open().send(value)

    def throw(self, *error: Any) -> Any:
        return self._open().throw(*error)

    def _open(self) -> Coroutine[Any, Any, T]:
        if self._coroutine is None or inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CLOSED:
            self._coroutine = self.result()
        return self._coroutine

    def _read(self) -> T:
        value, failure = self._outcome.result()
        if failure is not None:
            failure.tell(self.operation)
        return value

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """In this context somebody waits, and will read the failure of the operation."""
        if not self.done() and threading.current_thread() is self._thread:
            raise RuntimeError(
                f"{self.operation} was waited for inside an earlier operation of the same backend, which would block "
                "forever. Wait for it outside of the loss function."
            )
        if not self.done() and os.getpid() != self._process:
            raise RuntimeError(
                f"{self.operation} was submitted before this process was forked, and its thread runs in the parent "
                "process. Wait for it there."
            )
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _set(self, value: T | None, failure: Failure | None = None) -> None:
        """Set the outcome; called by the worker. Only the first outcome counts."""
        with self._lock:
            if self.done():
                return
            if failure is not None and self._waiting:
                failure.seen = True
            self._outcome.set_result((value, failure))

    def __repr__(self) -> str:
        state = "waiting" if not self.done() else "failed" if self._outcome.result()[1] else "done"
        return f"<TrainFuture {self.operation}: {state}>"
