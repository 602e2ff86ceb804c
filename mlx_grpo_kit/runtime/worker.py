"""A lasting thread for a user's code, which can be left alone in the middle of a call."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


class Worker:
    """Run calls one after the other, all in one thread: the caller's, or with a timeout in a lasting thread of its own.

    So anything that belongs to a thread, such as a connection of sqlite3, works in every call.

    Args:
        timeout: seconds that a limited call may take, which needs a thread; None for no limit.

    Attributes:
        is_lost: True after a call that took too long or was interrupted. It may still run, in the thread that was left
            alone with it. Later calls get another thread.
    """

    def __init__(self, timeout: float | None = None):
        self.timeout = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        self.is_lost, self._caller = False, threading.current_thread()
        self._jobs: queue.SimpleQueue | None = None

    @property
    def is_usable(self) -> bool:
        """True if the next call would run in the same thread as all calls so far."""
        return not self.is_lost and (self.timeout is not None or self._caller is threading.current_thread())

    def run(self, call: Callable[[], Any], *, limited: bool = False) -> Any:
        """Return what `call` returns, or raise what it raises; TimeoutError for a limited call that takes too long."""
        if self.timeout is None:
            return call()
        job: Future = Future()
        self._started().put((job, call))
        try:
            late = not wait([job], self.timeout if limited else None).done
        except BaseException:
            self.lose()
            raise
        if late:
            self.lose()
            raise TimeoutError(f"no answer within {self.timeout} seconds")
        return job.result()

    def lose(self) -> None:
        """Leave the thread alone with the call that it is in. It ends after that call."""
        self.is_lost = True
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None

    def _started(self) -> queue.SimpleQueue:
        if self._jobs is None:
            jobs: queue.SimpleQueue = queue.SimpleQueue()
            try:
                threading.Thread(target=_work, args=(jobs,), name="tools", daemon=True).start()
            except RuntimeError as error:
                raise RuntimeError(f"{error}: with a timeout each environment needs one (tool_timeout)") from error
            weakref.finalize(self, jobs.put, None)
            self._jobs = jobs
        return self._jobs


def _work(jobs: queue.SimpleQueue) -> None:
    while (job := jobs.get()) is not None:
        future, call = job
        try:
            future.set_result(call())
        except BaseException as error:  # exit() in a tool must not end the run
            future.set_exception(error)
        del job, future, call  # a thread that waits keeps no environment alive


def words_of(error: BaseException) -> str:
    """The message of an exception, or its type's name if it has none: at most 1000 characters, all of them Unicode."""
    try:
        words = str(error)[:1000].encode("utf-8", "replace").decode("utf-8")
    except BaseException:  # its __str__ is a user's code too
        words = ""
    return words or type(error).__name__
