"""A promise of a result from a backend's thread: `await` it in trio or asyncio, or call its `wait()`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
        self._lock, self._over = threading.Lock(), threading.Event()
        self._wakers: list[Callable[[], None]] = []
        self._waiting = 0
        self._value: T | None = None
        self._failure: Failure | None = None
        self._driven: Coroutine[Any, Any, T] | None = None

    def done(self) -> bool:
        """True if the operation has ended, successfully or not."""
        return self._over.is_set()

    async def result(self) -> T:
        """Wait for the operation and return its result.

        Raises:
            TrainingError: it failed, or an earlier one did.
            RuntimeError: neither trio nor asyncio is running; call `wait()` instead.
        """
        self._refuse_to_hang()
        event, schedule = _event_of_this_run()

        def wake() -> None:
            schedule(event.set)

        with self._lock:
            if self.done():
                event.set()
            else:
                self._wakers.append(wake)
        try:
            await event.wait()
        finally:
            with self._lock, suppress(ValueError):
                self._wakers.remove(wake)
        return self._outcome()

    def wait(self, timeout: float | None = None) -> T:
        """Block until the operation has ended, and return its result. For code without trio.

        Raises:
            TrainingError: it failed, or an earlier one did.
            TimeoutError: it has not ended after `timeout` seconds; it continues.
        """
        self._refuse_to_hang()
        with self._lock:
            self._waiting += 1
        try:
            over = self._over.wait(timeout)
        finally:
            with self._lock:
                self._waiting -= 1
        if not over:
            raise TimeoutError(f"{self.operation} has not ended after {timeout} s; it continues.")
        return self._outcome()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.result().__await__()

    # trio.run(backend.save_checkpoint, step) and asyncio.create_task(backend.save_checkpoint(step)) take a coroutine.

    def send(self, value: Any) -> Any:
        return self._drive("send", value)

    def throw(self, *error: Any) -> Any:
        return self._drive("throw", *error)

    def close(self) -> None:
        if self._driven is not None:
            self._driven.close()

    def _drive(self, how: str, *arguments: Any) -> Any:
        self._driven = self._driven or self.result()
        try:
            return getattr(self._driven, how)(*arguments)
        except BaseException:  # it is over
            self._driven = None
            raise

    def _outcome(self) -> T:
        if self._failure is not None:
            self._failure.tell(self.operation)
        return self._value

    def _refuse_to_hang(self) -> None:
        if self.done():
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"{self.operation} was waited for inside an earlier operation of the same backend, which would block "
                "forever. Wait for it outside of the loss function."
            )
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.operation} was submitted before this process was forked, and its thread runs in the parent "
                "process. Wait for it there."
            )

    def _set(self, value: T | None, failure: Failure | None = None) -> None:
        """Set the outcome; called by the worker. Only the first outcome counts."""
        with self._lock:
            if self.done():
                return
            self._value, self._failure = value, failure
            self._over.set()
            wakers, self._wakers = self._wakers, []
            if failure is not None and (wakers or self._waiting):
                failure.seen = True
        for wake in wakers:
            with suppress(RuntimeError):  # the run that waited has ended
                wake()

    def __repr__(self) -> str:
        state = "waiting" if not self.done() else "failed" if self._failure else "done"
        return f"<TrainFuture {self.operation}: {state}>"


def _event_of_this_run() -> tuple[Any, Callable[[Callable[[], None]], Any]]:
    """An event of the caller's trio or asyncio run, and a function that sets it from another thread."""
    trio = sys.modules.get("trio")  # inside a run of trio it is already imported
    if trio is not None and trio.lowlevel.in_trio_run():  # check trio first: in a notebook, asyncio runs around it
        return trio.Event(), trio.lowlevel.current_trio_token().run_sync_soon
    try:
        return asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        raise RuntimeError("A TrainFuture can only be awaited in trio or asyncio; elsewhere call its wait().") from None
