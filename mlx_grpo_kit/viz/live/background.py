"""A training run in a separate thread, which can be paused, stopped and waited for."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.runtime.printing import printable

if TYPE_CHECKING:
    from mlx_grpo_kit.viz.live.plot import LivePlot

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_TO_LEAVE = 10.0


@printable
class BackgroundRun:
    """The run that `LivePlot.start` returns. In a notebook, use `await run`, so that buttons work; else `run.wait()`.

    There is one run at a time. Starting another one stops the previous run, which would otherwise continue without
    buttons and a picture: if you rerun a cell, you lose both its picture and its variable.

    Attributes:
        last: the latest step's record; None before the first step.
        error: the exception that ended the run, or None. Waiting for the run raises it.
    """

    _current: BackgroundRun | None = None

    def __init__(self, plot: LivePlot, steps: Iterable[Any]):
        self.last: Any = None
        self.error: BaseException | None = None
        self._plot = plot
        self._stop, self._resumed = threading.Event(), threading.Event()
        self._resumed.set()
        # Wait for this event and not for the thread, because an interrupted Thread.join() treats the thread as ended.
        self._over = threading.Event()
        # The thread is a daemon, because a long training must not keep the interpreter from exiting; `_leave` ends it
        # cleanly.
        self._thread = threading.Thread(target=self._work, args=(steps,), name="LivePlot run", daemon=True)

    @classmethod
    def end_previous(cls) -> None:
        """Stop the current run, if there is one, and wait for its end.

        Raises:
            RuntimeError: called in that run's own thread.
        """
        previous = cls._current
        if previous is not None:
            previous._refuse_in_own_thread("start another run, which would wait for the end of this one")
            previous.stop()
            previous._over.wait()

    def begin(self) -> None:
        """Start the thread."""
        BackgroundRun._current = self
        atexit.register(self._leave)
        self._thread.start()

    @property
    def running(self) -> bool:
        """True until the last step is over; a paused run is still running."""
        return not self._over.is_set()

    @property
    def paused(self) -> bool:
        """True from `pause()` on, although the current step is finished first."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Pause the run after the current step."""
        self._resumed.clear()
        if self._stop.is_set():  # perhaps just now, in another thread: a run that ends does not wait
            self._resumed.set()

    def resume(self) -> None:
        """Continue a paused run."""
        self._resumed.set()

    def stop(self) -> None:
        """End the run after the current step; the learned parameters and the picture are kept."""
        self._stop.set()
        self._resumed.set()

    @property
    def stopping(self) -> bool:
        """True from `stop()` on, although the current step is finished first."""
        return self._stop.is_set()

    def wait_until_resumed(self) -> None:
        """Block the thread of the run while it is paused."""
        self._resumed.wait()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the run is over and raise the error that ended it, if one did. Interrupting stops the run.

        Clicks on buttons have no effect while this blocks, so use `await run` in a notebook.

        Raises:
            TimeoutError: the run is not finished after `timeout` seconds; it continues.
            RuntimeError: called in the run's own thread.
        """
        self._refuse_in_own_thread("wait for the end of this run")
        try:
            self._over.wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._over.wait()
        if self.running:
            raise TimeoutError(f"the run is not over after {timeout} s ({self._plot.status}); run.stop() ends it")
        if self.error is not None:
            raise self.error

    def _refuse_in_own_thread(self, what: str) -> None:
        if self.running and threading.current_thread() is self._thread:
            raise RuntimeError(f"the thread of a run cannot {what}: do it in another thread, or after the run")

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait_and_let_clicks_in().__await__()

    async def _wait_and_let_clicks_in(self) -> None:
        try:
            while self.running:
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        except (asyncio.CancelledError, KeyboardInterrupt):  # the kernel's interrupt button
            self.stop()
        self.wait()

    def _work(self, steps: Iterable[Any]) -> None:
        state = "finished"
        try:
            try:
                for record in steps:
                    self.last = record
                    self._plot.update(record.metrics, record.step, getattr(record, "completions", ()))
                    if self.paused:
                        self._plot.hold(self)
                    if self._stop.is_set():
                        state = "stopped"
                        break
            finally:
                close = getattr(steps, "close", None)
                if close is not None:
                    close()  # in this thread, because the generator's clean-up belongs to it
        except BaseException as error:
            self.error = error
            state = f"failed with {type(error).__name__}"
        finally:
            try:
                self._plot.finish(state)
            finally:
                self._end_mlx()
                atexit.unregister(self._leave)
                BackgroundRun._current = None
                self._over.set()

    @staticmethod
    def _end_mlx() -> None:
        """Free MLX's streams of this thread, if it used MLX: their clean-up would race with the interpreter's exit."""
        mlx = sys.modules.get("mlx.core")
        if mlx is not None:
            mlx.clear_streams()

    def _left_behind(self) -> None:
        """Mark the run as over in a forked child, where the thread does not exist."""
        self._over = threading.Event()  # the old one's lock may have been held at the fork
        self._over.set()
        self.error = RuntimeError("this process was forked: the run continues in the process that started it")
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        self.stop()
        self._over.wait(SECONDS_TO_LEAVE)

    def __repr__(self) -> str:
        return f"<BackgroundRun {self._plot.status}>"


def _in_forked_child() -> None:
    if BackgroundRun._current is not None:
        BackgroundRun._current._left_behind()
        BackgroundRun._current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
