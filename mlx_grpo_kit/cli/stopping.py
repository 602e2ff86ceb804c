"""The orderly end of a run: by Ctrl-C or SIGTERM in all processes, or when its output is closed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from mlx_grpo_kit.cli.terminal import say
from mlx_grpo_kit.grpo.processes import World


class StopSignal:
    """In this context, Ctrl-C or SIGTERM asks the run to stop after its step; a second signal raises KeyboardInterrupt.

    Args:
        world: the processes, which stop together after the same step; the first prints a message.
    """

    words = "Stopping after this step; Ctrl-C again quits at once."

    def __init__(self, world: World):
        self._world = world
        self._is_second = False
        self.number: int | None = None
        """The signal that asked this process to stop, or another one before the last `came`; None if there was none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: object) -> None:
        if self._is_second:
            raise KeyboardInterrupt
        self._is_second = True
        self.number = self.number or number
        if self._world.rank == 0 and not sys.stdout.isatty():  # unless the display shows it
            with suppress(OSError):
                os.write(2, f"{self.words}\n".encode())  # print may be interrupted in the middle of a line

    def came(self) -> bool:
        """True if any of the processes was asked to stop. Every process must call this at the same point of the run.

        Only gathered signals count: the others do not know of a later signal, so it counts next time.
        """
        gathered = self._world.gather(np.array([self.number or 0])).max().item()
        self.number = self.number or gathered or None
        return gathered != 0

    def output_is_gone(self) -> None:
        """Ask the run to stop, like SIGPIPE."""
        self.number = self.number or signal.SIGPIPE


class Output:
    """Standard output that may be closed without ending the run.

    If the reader closes it (`train | head -1`), the run stops in order. If writing fails, as on a full disk, the run
    continues. In both cases later output goes to standard error, or nowhere if that fails too.
    """

    def __init__(self, stop: StopSignal):
        self._stop = stop

    def write(self, text: str) -> int:
        with self._outlived():
            sys.stdout.write(text)
        return len(text)

    def flush(self) -> None:
        with self._outlived():
            sys.stdout.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    @contextmanager
    def _outlived(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = f"Standard output cannot be written ({error.strerror}); its lines go to standard error."
            if isinstance(error, BrokenPipeError):
                self._stop.output_is_gone()
                words = "The output is no longer read. Stopping after this step."
            place = 2 if say(words) else os.open(os.devnull, os.O_WRONLY)
            os.dup2(place, 1)  # the stream's buffer goes there too
