"""What the exercises of chapter 22 are tried on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Desk:
    """A worker that does nothing until it is told to, so that one can look at what is waiting."""

    def __init__(self):
        self._waiting: list[tuple[Future, Callable[[], Any]]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, function: Callable[[], Any]) -> Future:
        """A future of what `function()` will return."""
        future: Future = Future()
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


def build(called: list[int], number: int, what: str) -> Callable[[], Any]:
    """An operation that returns a number, or raises the rest of "raises ..."; it is noted when it is called."""

    def operation() -> Any:
        called.append(number)
        if what.startswith("raises "):
            raise ValueError(what.removeprefix("raises "))
        return None if what == "None" else int(what)

    operation.__doc__ = f"raise ValueError({what[7:]!r})" if what.startswith("raises ") else f"return {what}"
    return operation
