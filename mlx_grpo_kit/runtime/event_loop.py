"""The event loop for a user's coroutine functions: reward functions and tools."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from contextlib import suppress
from weakref import WeakSet

_LOST: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def user_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, in a separate thread.

    There is one for all steps, because open clients of a function belong to the loop in which they were created. A
    forked process has no threads and gets another loop.
    """
    return _loop(os.getpid())


def lose_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Leave alone a loop that a coroutine blocks: `user_loop` returns another one from now on."""
    _LOST.add(loop)
    _loop.cache_clear()
    loop.call_soon_threadsafe(loop.stop)  # once the coroutine lets go of it


def runs_here() -> bool:
    """True inside a coroutine of that loop, where waiting for another one would never end."""
    with suppress(RuntimeError):  # no loop runs in this thread
        return asyncio.get_running_loop() is user_loop()
    return False


@functools.cache
def _loop(process_id: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run():
        while not loop.is_closed():
            with suppress(BaseException):  # such as exit() in a task that a user's function started
                loop.run_forever()
            if loop in _LOST:
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                loop.close()

    threading.Thread(target=run, name="reward functions and tools", daemon=True).start()
    return loop
