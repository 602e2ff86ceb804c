"""The right to use a trainer: one thread at a time, and one training loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mlx_grpo_kit.runtime.fork import refuse_after_fork


class Turns:
    """A lock that serves threads in the order in which they came; the thread that has it may take it again.

    With a plain lock a training loop, which gives its turn back after a step and wants it again at once, would hardly
    ever let another thread in.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._queue: list[threading.Thread] = []  # the first has the turn
        self._loops: dict[object, threading.Thread] = {}  # a training loop: the thread of its latest step

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other thread has the turn, and have it."""
        refuse_after_fork()
        me = threading.current_thread()
        if me in self._queue:  # where only this thread itself puts it and takes it out
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
        """Open for as long as a training loop lasts; gives what the loop enters for each step, to have the turn.

        Raises RuntimeError, at a step, while a loop in another thread is open. A loop may move to another thread.
        """
        loop = object()

        @contextmanager
        def step() -> Iterator[None]:
            with self.turn():
                me = threading.current_thread()
                others = [thread for thread in self._loops.values() if thread is not me and thread.is_alive()]
                if others and loop not in self._loops:
                    raise RuntimeError(
                        f"A loop over this trainer's train() is open in thread {others[0].name!r}; expected one at a "
                        "time, because two would share the steps between them. Wait for that one, end it (run.stop() "
                        "of a live plot, close() of the iterator) or go on with that very iterator."
                    )
                self._loops[loop] = me
                yield

        try:
            yield step
        finally:
            self._loops.pop(loop, None)
