"""The iterator that `GRPOTrainer.train` returns, and the right to use a trainer: one thread and one loop at a time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.fork import refuse_after_fork

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.state import TrainStep


class TrainingLoop(Iterator):
    """An iterator over the steps of a generator. Without a `for` loop, nothing is trained.

    Dropping a loop that was never iterated gives a RuntimeWarning. A notebook keeps the value of a cell's last line, so
    `repr` shows the same warning. `close` ends the loop, without a warning.
    """

    def __init__(self, steps: Generator[TrainStep, None, None], call: str):
        self._steps, self._call, self._is_used = steps, call, False

    def __next__(self) -> TrainStep:
        self._is_used = True
        return next(self._steps)

    def close(self) -> None:
        """End the loop; another one may continue from there."""
        self._is_used = True
        self._steps.close()

    def __repr__(self) -> str:
        return f"<{self._call}, {'begun' if self._is_used else f'not begun: {self._words}'}>"

    @property
    def _words(self) -> str:
        return f"nothing is trained until it is iterated. Write: for step in {self._call}: print(step.metrics)"

    def __del__(self, warn=warnings.warn):  # bound here: at the end of a process the module may be empty already
        if not self._is_used:
            warn(f"{self._call} was never iterated, and {self._words}", RuntimeWarning, stacklevel=2)


class TrainerLock:
    """A fair reentrant lock: threads get it in the order in which they asked.

    A training loop releases the lock after a step and asks for it again at once. With a plain lock it would hardly ever
    let another thread in.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._queue: list[threading.Thread] = []  # the first thread holds the lock
        self._loops: dict[object, threading.Thread] = {}  # training loop -> the thread of its latest step

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait until no other thread holds the lock, and hold it."""
        refuse_after_fork()
        me = threading.current_thread()
        if me in self._queue:  # only this thread itself adds and removes it
            yield
            return
        try:
            with self._changed:
                self._queue.append(me)
                self._changed.wait_for(lambda: self._queue[0] is me)
            yield
        finally:
            with self._changed:
                self._queue.remove(me)
                self._changed.notify_all()

    @contextmanager
    def loop(self) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Register a training loop while it lasts, and yield a context manager that holds the lock for each step.

        Raises RuntimeError, at a step, while a loop in another thread is open. A loop may move to another thread.
        """
        loop = object()

        @contextmanager
        def step() -> Iterator[None]:
            with self.held():
                me = threading.current_thread()
                others = [thread for thread in self._loops.values() if thread is not me and thread.is_alive()]
                if others and loop not in self._loops:
                    raise RuntimeError(
                        f"A loop over this trainer's train() is open in thread {others[0].name!r}; expected one at a "
                        "time, because two loops would share the steps between them. Wait for that loop, end it "
                        "(run.stop() of a live plot, close() of the iterator), or continue with the same iterator."
                    )
                self._loops[loop] = me
                yield

        try:
            yield step
        finally:
            self._loops.pop(loop, None)
