"""Small objects for the checks of chapter 22's exercises."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class _Receipt(Future):
    """A future that raises an error instead of waiting."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            raise RuntimeError("the answer waited for a result, but it has to return the future")
        return super().result(timeout)


class Desk:
    """A worker that runs nothing until `work` is called, so that a check can count the waiting operations."""

    def __init__(self):
        self._waiting: list[tuple[Future, Callable[[], Any]]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, function: Callable[[], Any]) -> Future:
        """Return a future for the result of `function()`."""
        future = _Receipt()
        self._waiting.append((future, function))
        return future

    def work(self) -> None:
        """Call all waiting functions, in order."""
        waiting, self._waiting = self._waiting, []
        for future, function in waiting:
            future.set_result(function())


def loss_of_lines(params: dict[str, Any], batch: tuple[float, float]) -> Any:
    """The squared distances of two lines with one slope from a point."""
    x, y = batch
    return ((params["slope"] * x + params["height"] - y) ** 2).sum()


class SurpriseError(Exception):
    """An error of a type that no answer can name."""


def build(called: list[int], number: int, what: str) -> Callable[[], Any]:
    """An operation that records its call and returns a number; "raises ..." and the like raise an error instead."""
    errors = {"raises": ValueError, "lacks": KeyError, "surprises": SurpriseError}
    word, _, message = what.partition(" ")

    def operation() -> Any:
        called.append(number)
        if word in errors:
            raise errors[word](message)
        return None if what == "None" else int(what)

    operation.__doc__ = f"raise {errors[word].__name__}({message!r})" if word in errors else f"return {what}"
    return operation
