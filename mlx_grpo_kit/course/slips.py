"""Mistakes that differ from the solution in a line or two, like most mistakes."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlx_grpo_kit.course.exercise import Mistake


class Slip:
    """A mistake as a diff of the solution.

        Slip(
            "no correction",
            '- m_hat = m / (1 - beta1 ** state["t"])',
            "+ m_hat = m",
            message="The bias of m is left in: ...",
            hint=2,
        )

    Args:
        name, message, hint: as in `Mistake`.
        diff: lines as in `edited`.
    """

    def __init__(self, name: str, *diff: str, message: str, hint: int = 1):
        self.name, self.diff, self.message, self.hint = name, diff, message, hint


def slips(solution: Callable[..., Any], *edits: Slip) -> tuple[Mistake, ...]:
    """Mistakes made by editing a solution's source.

    Args:
        solution: a function or a class, as in an Exercise.
        edits: the changes of each mistake.

    Raises ValueError like `edited`, and for a slip without a diff.
    """
    for each in edits:
        if not each.diff:
            raise ValueError(f"Slip {each.name!r} of {solution.__name__} changes nothing: it has no diff.")
    return tuple(Mistake(each.name, edited(solution, *each.diff), each.message, each.hint) for each in edits)


def edited(solution: Callable[..., Any], *diff: str) -> Callable[..., Any]:
    """`solution` with lines of its source changed; compiled when it is first called. Without a diff it is a copy.

    Args:
        solution: a function or a class.
        diff: lines in the order of the source. "- " deletes a line, "+ " adds one after the line before it, and two
            spaces keep a line, which shows the position of the others. Old lines without an added line between them are
            next to each other in the source, and indentation counts from the first of them.

    Raises ValueError for a diff that does not fit the source, fits it in several places, or changes nothing.
    """
    source = patched(solution, *diff)

    @functools.cache
    def compiled() -> Callable[..., Any]:
        # A separate namespace, so that a recursive solution calls its edited self.
        space = dict(vars(sys.modules[solution.__module__]))
        exec(compile(source, f"<{solution.__name__}, edited>", "exec"), space)
        return space[solution.__name__]

    @functools.wraps(solution, updated=())
    def wrong(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return wrong


def patched(solution: Callable[..., Any], *diff: str) -> str:
    """The source of `edited(solution, *diff)`."""
    source = textwrap.dedent(inspect.getsource(solution))
    if not diff:
        return source
    for line in diff:
        if line[:2] not in ("- ", "+ ", "  ", "-", "+"):
            raise ValueError(f'{line!r} is not a line of a diff: expected "- ", "+ " or two spaces before it.')
    lines = source.splitlines()
    blocks = [list(block) for _, block in itertools.groupby(diff, lambda line: line[0] == "+")]
    if blocks[0][0][0] == "+":
        raise ValueError(
            f"The diff of {solution.__name__} begins with {blocks[0][0]!r}. Which line does it come after?"
        )
    olds, news = blocks[::2], [*blocks[1::2], []]
    places = _places(solution.__name__, lines, [[line[2:] for line in old] for old in olds])
    for place, old, new in reversed([*zip(places, olds, news, strict=False)]):
        shift = " " * _shift(lines[place], old[0][2:])
        kept = [line for line, mark in zip(lines[place:], old, strict=False) if mark[0] == " "]
        lines[place : place + len(old)] = kept + [shift + line[2:] if line[2:] else "" for line in new]
    result = "\n".join(lines) + "\n"
    if result == source:
        raise ValueError(f"The diff of {solution.__name__} changes nothing: {[*diff]}.")
    return result


def _places(name: str, lines: Sequence[str], olds: Sequence[Sequence[str]]) -> list[int]:
    """The position of each block of old lines, if it is unique."""
    fits = [[place for place in range(len(lines)) if _fits(lines[place:], old)] for old in olds]
    stripped = {line.strip() for line in lines}
    for old in itertools.compress(olds, (not places for places in fits)):
        missing = [line for line in old if line.strip() not in stripped]
        if missing:
            raise ValueError(f"{name} has no line {missing[0]!r} in its source, so there is nothing to change.")
        raise ValueError(f"{name} has the lines {old}, but not next to each other and indented like this.")
    ways = [*itertools.islice(_ways(fits, [len(old) for old in olds]), 2)]
    if not ways:
        raise ValueError(f"The changes of {name} are not in the order of its source: {[old[0] for old in olds]}.")
    if len(ways) == 2:
        old = next(old for old, one, other in zip(olds, *ways, strict=True) if one != other)
        raise ValueError(
            f"{name} has {old[0]!r} in several places. Put the line before it into the diff, after two spaces."
        )
    return ways[0]


def _ways(fits: Sequence[Sequence[int]], lengths: Sequence[int], start: int = 0) -> Iterator[list[int]]:
    """All choices of one place for each block in which no block begins before the end of the one before it."""
    if not fits:
        yield []
        return
    for place in fits[0]:
        if place >= start:
            for rest in _ways(fits[1:], lengths[1:], place + lengths[0]):
                yield [place, *rest]


def _fits(lines: Sequence[str], old: Sequence[str]) -> bool:
    """Compare the first of `lines` with the `old` ones, which may all be indented less by one amount."""
    shift = _shift(lines[0], old[0])
    return shift >= 0 and lines[: len(old)] == [" " * shift + line if line else line for line in old]


def _shift(line: str, old: str) -> int:
    """The extra indentation of `line` over `old`."""
    return len(line) - len(line.lstrip()) - (len(old) - len(old.lstrip()))
