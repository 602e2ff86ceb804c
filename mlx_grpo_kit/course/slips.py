"""Mistakes that are the solution with a line or two changed, as most mistakes are."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_grpo_kit.course.exercise import Mistake


class Slip:
    """A mistake as a diff of the solution: lines that begin with - become those after them that begin with +.

        Slip(
            "no correction",
            '- m_hat = m / (1 - beta1 ** state["t"])',
            "+ m_hat = m",
            message="The bias of m is left in: ...",
            hint=2,
        )

    Args:
        name, message, hint: as in `Mistake`.
        diff: the changes in the order of the source, where each looks for its first place after the one before.
            Indentation counts from the first line of a change.
    """

    def __init__(self, name: str, *diff: str, message: str, hint: int = 1):
        self.name, self.diff, self.message, self.hint = name, diff, message, hint


def slips(solution: Callable[..., Any], *edits: Slip) -> tuple[Mistake, ...]:
    """Mistakes made by editing a solution's source.

    Args:
        solution: a function or a class, as an Exercise has it.
        edits: what to change for each.

    Raises ValueError for a diff that does not fit the source.
    """
    source = _source(solution)
    return tuple(
        Mistake(each.name, _compiled(solution, patched(source, each.diff)), each.message, each.hint) for each in edits
    )


def edited(solution: Callable[..., Any], changes: Mapping[str, str]) -> Callable[..., Any]:
    """`solution` with texts of its source replaced, {old: new}; compiled when it is first called.

    Raises ValueError for an old text that the source does not have.
    """
    source = _source(solution)
    for old, new in changes.items():
        if old not in source:
            raise ValueError(
                f"{solution.__name__} has no {old!r} in its source, so there is nothing to change to {new!r}."
            )
        source = source.replace(old, new)
    return _compiled(solution, source)


def patched(source: str, diff: Sequence[str]) -> str:
    """The source with the changes of a diff, as in `Slip`. Raises ValueError where the lines are not in the source."""
    lines, place = source.splitlines(), 0
    blocks = [(kind, [line[2:] for line in block]) for kind, block in itertools.groupby(diff, lambda line: line[:1])]
    if not blocks or any(kind not in ("-", "+") for kind, _ in blocks) or blocks[0][0] != "-":
        raise ValueError(f"{diff} is not a diff: expected lines that begin with - and then, if any, with +.")
    while blocks:
        old = blocks.pop(0)[1]
        new = blocks.pop(0)[1] if blocks and blocks[0][0] == "+" else []
        shift, place = _find(lines, old, place)
        lines[place : place + len(old)] = [" " * shift + line if line else line for line in new]
        place += len(new)
    return "\n".join(lines) + "\n"


def _find(lines: list[str], old: list[str], start: int) -> tuple[int, int]:
    """The extra indentation of the lines in the source, and their first place from `start` on."""
    for place in range(start, len(lines) - len(old) + 1):
        shift = len(lines[place]) - len(lines[place].lstrip()) - (len(old[0]) - len(old[0].lstrip()))
        if shift >= 0 and lines[place : place + len(old)] == [" " * shift + line if line else line for line in old]:
            return shift, place
    raise ValueError(f"The source has no lines {old}, in this order of changes, so there is nothing to change.")


def _source(solution: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(solution))


def _compiled(solution: Callable[..., Any], source: str) -> Callable[..., Any]:
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
