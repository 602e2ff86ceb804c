"""Mistakes that are the solution with a few characters changed, as most mistakes are."""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from mlx_grpo_kit.course.exercise import Mistake


def slips(solution: Callable[..., Any], *edits: tuple[str, Mapping[str, str], int, str]) -> tuple[Mistake, ...]:
    """Mistakes made by editing a solution's source.

        slips(adam_step, ("no correction", {' / (1 - beta1 ** state["t"])': ""}, 2, "The bias of m is left in: ..."))

    Args:
        solution: a function or a class, as an Exercise has it.
        edits: (name, {old text: new text}, hint, message), as in `Mistake`. Every place where the old text stands is
            changed, in the order given.

    Raises:
        ValueError: an old text does not stand in the source, so the slip would be the solution itself.
    """
    return tuple(Mistake(name, edited(solution, changes), message, hint) for name, changes, hint, message in edits)


def edited(solution: Callable[..., Any], changes: Mapping[str, str]) -> Callable[..., Any]:
    """`solution` with its source changed; compiled when it is first called. Raises ValueError as `slips` does."""
    source = textwrap.dedent(inspect.getsource(solution))
    for old, new in changes.items():
        if old not in source:
            raise ValueError(
                f"{solution.__name__} has no {old!r} in its source, so there is nothing to change to {new!r}."
            )
        source = source.replace(old, new)

    @functools.cache
    def compiled() -> Callable[..., Any]:
        # A space of its own, so that a recursive solution calls its edited self.
        space = dict(vars(sys.modules[solution.__module__]))
        exec(compile(source, f"<{solution.__name__}, edited>", "exec"), space)
        return space[solution.__name__]

    @functools.wraps(solution, updated=())
    def wrong(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return wrong
