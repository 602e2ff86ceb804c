"""The right to use a trainer: one thread at a time, and one training loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mlx_grpo_kit.runtime.fork import refuse_after_fork


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
