"""Mistakes that differ from the solution in a line or two, like most mistakes."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlx_grpo_kit.course.exercise import Mistake


def slips(solution: Any, text: str) -> tuple[Mistake, ...]:
    r"""Mistakes made by editing a solution's source, written down as plain text.

    Each mistake is its name, a diff of the solution (see `edited`) and the message that a reader gets:

        divided by n (2)
        - std = np.sqrt(squares.sum() / (n - 1))
        + std = np.sqrt(squares.sum() / n)
        ! Your standard deviation divides by n, which is NumPy's default.
        ! Here it divides by n - 1: `ddof=1`.

    A number in parentheses after the name is the hint that the message points to; without one it is the first. A line
    `or` between two diffs gives the same message to both. Mistakes that replace the same lines of the solution form a
    group: the lines stand once above them, after `@ `, each diff begins with its first `+`, and an empty line ends the
    group. For a solution that is a value, the line after `+ ` is another value.

    Args:
        solution: a function, a class or a value, as in an Exercise.
        text: the mistakes; a raw string, since code may contain backslashes.

    Raises ValueError like `edited`, and for a mistake without a diff or without a message.
    """
    mistakes: list[Mistake] = []
    for group in re.split(r"\n[ \t]*\n", text.strip("\n")):
        lines = group.splitlines()
        replaced = ["- " + line[2:] for line in lines if line.startswith("@")]
        lines = [line for line in lines if not line.startswith("@")]
        while lines:
            title, *lines = lines
            body = [*itertools.takewhile(lambda line: line[0] in "-+ " or line == "or", lines)]
            message = [*itertools.takewhile(lambda line: line[0] == "!", lines[len(body) :])]
            lines = lines[len(body) + len(message) :]
            if title[0] in "-+! " or not body or not message:
                raise ValueError(
                    f"{title!r} of {getattr(solution, '__name__', solution)} is not a mistake: expected a line with "
                    'its name, the lines of a diff after "- ", "+ " or two spaces, and its message after "! ".'
                )
            name, hint = re.fullmatch(r"(.*?)(?: \((\d+)\))?", title).groups()
            for diff in [[*part] for other, part in itertools.groupby(body, "or".__eq__) if not other]:
                if callable(solution):
                    wrong = edited(solution, *(replaced if diff[0][0] == "+" else ()), *diff)
                else:
                    wrong = eval(diff[0][2:])
                mistakes.append(Mistake(name, wrong, " ".join(line[2:] for line in message), int(hint or 1)))
    return tuple(mistakes)


def variants(solution: Any, text: str) -> Iterator[tuple[str, Any, str]]:
    r"""Other answers to an exercise, written down as plain text; yields (name, answer, words of the message).

        # by a loop
        def total(numbers):
            result = 0.0
            for number in numbers:
                result += number
            return result

        # the mean, and its message
        lambda numbers: sum(numbers) / len(numbers)
        ! Do not divide.

    After a line with the name comes a function, a class, an expression, or a diff of the solution (see `edited`), and
    after `! ` words that the message contains. Each answer has the names of the solution's module; what stands before
    the first name, imports for example, all answers have too.

    Args:
        solution: a function, a class or a value, as in an Exercise; answers to a value have no names but their own.
        text: the answers; a raw string, since code may contain backslashes.
    """
    shared, *parts = re.split(r"^# ", text, flags=re.MULTILINE)
    names = vars(sys.modules[solution.__module__]) if callable(solution) else {}
    for part in parts:
        name, *lines = part.splitlines()
        code = [line for line in lines if line[:2] != "! "] or [""]
        words = " ".join(line[2:] for line in lines if line[:2] == "! ")
        if code[0][:2] in ("- ", "  "):
            yield name, edited(solution, *filter(None, code)), words
            continue
        space = dict(names)
        exec(shared, space)
        yield name, _last(name, "\n".join(code), space), words


def _last(name: str, code: str, space: dict[str, Any]) -> Any:
    """The value of the last definition or expression of some code, which finds its names in `space`."""
    tree = ast.parse(code)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_answer", ast.Store())], last.value), last)
    file = f"<{name}>"
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # for inspect.getsource
    exec(compile(ast.fix_missing_locations(tree), file, "exec"), space)
    return space["_answer" if isinstance(last, ast.Expr) else last.name]


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
