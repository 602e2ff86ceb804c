"""The engine's modes: recording the graph, and finding the origin of a nan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class _Mode(threading.local):
    """The modes of one thread, so that a no_grad in the notebook does not affect a training run in the background."""

    recording = True
    anomaly = False


mode = _Mode()


@contextmanager
def _in_mode(name: str, value: bool) -> Iterator[None]:
    before = getattr(mode, name)
    setattr(mode, name, value)
    try:
        yield
    finally:
        setattr(mode, name, before)


def no_grad() -> AbstractContextManager[None]:
    """Compute without recording a graph, for parameter updates and for evaluation.

    Use `with no_grad():` around a block or `@no_grad()` above a function. Results inside do not require gradients.
    """
    return _in_mode("recording", False)


def detect_anomaly() -> AbstractContextManager[None]:
    """Raise an error at the operation that first returns a nan or inf. This is slow: use it for debugging only.

    Inside the block, an AnomalyError names the operation, the element and the line of your program if
    - an operation returns a nan although none of its inputs has one,
    - the backward of an operation turns a finite gradient into nan or inf.

    Both the computation and its backward() must be inside the block.
    """
    return _in_mode("anomaly", True)
