"""What the exercises of chapter 22 are tried on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class _Receipt(Future):
    """A future that does not let anybody wait for what nobody is going to do."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            raise RuntimeError("the result was waited for where the future had to be returned")
        return super().result(timeout)


class Desk:
    """A worker that does nothing until it is told to, so that one can look at what is waiting."""

    def __init__(self):
        self._waiting: list[tuple[Future, Callable[[], Any]]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, function: Callable[[], Any]) -> Future:
        """A future of what `function()` will return."""
        future = _Receipt()
        self._waiting.append((future, function))
        return future

    def work(self) -> None:
        """Call everything that waits, in order."""
        waiting, self._waiting = self._waiting, []
        for future, function in waiting:
            future.set_result(function())


def loss_of_lines(params: dict[str, Any], batch: tuple[float, float]) -> Any:
    """How far two lines of one slope pass by a point."""
    x, y = batch
    return ((params["slope"] * x + params["height"] - y) ** 2).sum()


class SurpriseError(Exception):
    """An error that nobody has heard of."""


def build(called: list[int], number: int, what: str) -> Callable[[], Any]:
    """An operation that returns a number, or raises the rest of "raises ..." and the like; its call is noted."""
    errors = {"raises": ValueError, "lacks": KeyError, "surprises": SurpriseError}
    word, _, message = what.partition(" ")

    def operation() -> Any:
        called.append(number)
        if word in errors:
            raise errors[word](message)
        return None if what == "None" else int(what)

    operation.__doc__ = f"raise {errors[word].__name__}({message!r})" if word in errors else f"return {what}"
    return operation
