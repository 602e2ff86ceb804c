"""A promise of what a backend's thread will find: awaited in trio or asyncio, or waited for without either."""

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

    If the backend is `poisoned`, a new one has to be made; otherwise nothing has changed and it goes on.
    """


def failed(operation: str, error: Exception, before: str | None = None) -> TrainingError:
    """The error of an operation that failed, itself or `before` it another one, when nothing had changed yet."""
    what = "failed" if before is None else f"was not done: {before} failed before it"
    why = f"{type(error).__name__}: {error}"
    found = TrainingError(f"{operation} {what} ({why}). Nothing has changed: the backend goes on.")
    found.__cause__ = error
    return found


@dataclass(eq=False)
class Failure:
    """The error of a failed operation. If the program never reads it, it is printed to stderr in the end.

    Attributes:
        operation: its name.
        error: what it raised.
        poisons: False where it was refused before it changed anything.
        seen: whether anybody has been told.
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
                f"{self.operation} failed ({type(self.error).__name__}: {self.error}), and nobody was told. Wait for "
                "the futures of a backend, or close it."
            )

    def tell(self, asked_for: str) -> None:
        """Raise it, as the outcome of the operation `asked_for`: this one, or one that comes after it."""
        self.seen = True
        if not self.poisons:
            raise self.error.with_traceback(None)
        what = "failed" if asked_for == self.operation else f"cannot be done: {self.operation} failed before it"
        raise TrainingError(
            f"{asked_for} {what} ({type(self.error).__name__}: {self.error}). What the backend holds may be half "
            "changed, so it does nothing more: make a new one, and load_checkpoint what was saved last."
        ) from self.error


_FAILURES: weakref.WeakSet[Failure] = weakref.WeakSet()


def tell_what_nobody_saw() -> None:
    for failure in list(_FAILURES):
        failure.tell_if_nobody_saw()


def say(words: str) -> None:
    """For what can be raised nowhere any more."""
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or gone
        print(f"mlx_grpo_kit: {words}", file=sys.stderr, flush=True)


class TrainFuture(Coroutine[Any, Any, T], Generic[T]):
    """The result of an operation of a backend, once there is one: `await future`, `await future.result()` or `wait()`.

    It may be awaited any number of times, from several tasks, in several runs of trio, and in asyncio too, which a
    notebook's cell runs in. A task that is cancelled while it waits leaves the operation alone: that ends in its turn.
    The future of an operation that nobody awaits needs no care: the operation is done all the same.
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
        """True if the operation has ended, well or not."""
        return self._over.is_set()

    async def result(self) -> T:
        """Wait for the operation and return its result.

        Raises:
            TrainingError: it failed, or one before it did.
            RuntimeError: awaited where neither trio nor asyncio runs; take `wait()` there.
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
        """Return the operation's result; blocks until it has ended. For code without trio.

        Raises:
            TrainingError: it failed, or one before it did.
            TimeoutError: it is not over after `timeout` seconds; it goes on.
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
            raise TimeoutError(f"{self.operation} is not over after {timeout} s; it goes on.")
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
                f"{self.operation} was waited for inside an operation of the same backend, which it comes after. Wait "
                "for it outside of the loss function."
            )
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.operation} was submitted before this process was forked, and its thread runs in the other one. "
                "Wait for it there."
            )

    def _set(self, value: T | None, failure: Failure | None = None) -> None:
        """The worker's: the operation is over. Only the first outcome counts."""
        with self._lock:
            if self.done():
                return
            self._value, self._failure = value, failure
            self._over.set()
            wakers, self._wakers = self._wakers, []
            if failure is not None and (wakers or self._waiting):
                failure.seen = True
        for wake in wakers:
            with suppress(RuntimeError):  # the run that waited is over
                wake()

    def __repr__(self) -> str:
        state = "waiting" if not self.done() else "failed" if self._failure else "done"
        return f"<TrainFuture {self.operation}: {state}>"


def _event_of_this_run() -> tuple[Any, Callable[[Callable[[], None]], Any]]:
    """An event of the trio or asyncio run that the caller is in, and what sets it from another thread."""
    trio = sys.modules.get("trio")  # who is in a run of trio has imported it
    if trio is not None and trio.lowlevel.in_trio_run():  # first: in a notebook, asyncio runs around it
        return trio.Event(), trio.lowlevel.current_trio_token().run_sync_soon
    try:
        return asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        raise RuntimeError("A TrainFuture is awaited in trio or asyncio; elsewhere call its wait().") from None
