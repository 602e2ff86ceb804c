"""The engine's modes: recording the graph, and looking for the birthplace of a nan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mode(threading.local):
    """Each thread has its own, so a training run in the background does not feel a no_grad in the notebook."""

    recording = True
    anomaly = False


mode = _Mode()


@contextmanager
def no_grad() -> Iterator[None]:
    """Compute without recording a graph: for updates of parameters and for evaluation.

    `with no_grad():` around a block, or `@no_grad()` above a function. Results inside do not require gradients.
    """
    before, mode.recording = mode.recording, False
    try:
        yield
    finally:
        mode.recording = before


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Stop where a number goes bad, and say where that is. Slow: for looking for an error, not for training.

    Inside the block an AnomalyError names the operation, the element and the line of your program
    - when an operation makes a nan out of numbers that are none,
    - when the backward of an operation makes a nan or an inf out of a finite gradient,
    - when an array that an operation saved for its backward has been changed behind the engine's back (x.data[0] = 1).

    The computation and its backward() both have to be inside.
    """
    before, mode.anomaly = mode.anomaly, True
    try:
        yield
    finally:
        mode.anomaly = before
