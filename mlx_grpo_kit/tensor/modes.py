"""The engine's modes: recording the graph, and finding the origin of a nan."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any


class _Mode(threading.local):
    """The modes of one thread, so that a no_grad in the notebook does not affect a training run in the background."""

    recording = True
    anomaly = False


mode = _Mode()


class _Block:
    """Set a mode inside a `with` block, or in a function that this decorates."""

    name: str
    value: bool

    def __enter__(self) -> None:
        # A stack, because a block may be entered inside itself.
        vars(self).setdefault("before", []).append(getattr(mode, self.name))
        setattr(mode, self.name, self.value)

    def __exit__(self, *error: object) -> None:
        setattr(mode, self.name, self.before.pop())

    def __call__(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with type(self)():  # one block for each call, because calls may run in several threads
                return function(*args, **kwargs)

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator:
            # The mode is left at each yield, because the caller computes with the value.

            steps = function(*args, **kwargs)
            resume = functools.partial(next, steps)
            while True:
                try:
                    with type(self)():
                        value = resume()
                except StopIteration as end:
                    return end.value
                try:
                    resume = functools.partial(steps.send, (yield value))
                except BaseException as error:  # thrown in by the caller, or by close()
                    resume = functools.partial(steps.throw, error)

        return generator if inspect.isgeneratorfunction(function) else decorated


class no_grad(_Block):  # noqa: N801 (torch's name)
    """Compute without recording a graph, for parameter updates and for evaluation.

    Use `with no_grad():` around a block or `@no_grad()` above a function. Results inside do not require gradients. In a
    generator, the code between a `yield` and the next one runs without recording, and the caller's code is recorded.
    """

    name, value = "recording", False


class detect_anomaly(_Block):  # noqa: N801 (torch's name)
    """Raise an error at the operation that first returns a nan or inf. This is slow: use it for debugging only.

    Inside the block, an AnomalyError names the operation, the element and the line of your program if
    - an operation returns a nan although none of its inputs has one,
    - the backward of an operation turns a finite gradient into nan or inf,
    - an array that an operation saved for its backward was changed unseen by the engine (x.data[0] = 1).

    Both the computation and its backward() must be inside the block.
    """

    name, value = "anomaly", True
