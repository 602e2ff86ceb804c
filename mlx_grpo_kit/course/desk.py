"""The functions that a reader calls: check, hint, solution, use, my_code. They explain a mistake in words."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.answers import as_one_file, definitions_in, order_of, source_of
from mlx_grpo_kit.course.catalogue import check_of, exercises, find, is_the_kits
from mlx_grpo_kit.course.compare import say, show
from mlx_grpo_kit.course.exercise import Result
from mlx_grpo_kit.course.kinds import as_the_solution_returns
from mlx_grpo_kit.course.record import kept_answers, mark_kept, passed_here, record, stop_storing
from mlx_grpo_kit.course.tries import note_check, note_hint, note_solution
from mlx_grpo_kit.files import write_file
from mlx_grpo_kit.runtime.printing import encodable, printable
from mlx_grpo_kit.viz.box import colored_box
from mlx_grpo_kit.viz.kernel import notebook_shell

_opened: dict[str, int] = {}  # exercise -> the last hint opened in this session


def _displayed(ask: Callable[..., Note]) -> Callable[..., Note]:
    """Wrap `ask` so that a notebook displays its note at once, anywhere in a cell."""

    @functools.wraps(ask)
    def call(*arguments: Any, **named: Any) -> Note:
        return ask(*arguments, **named).shown()

    return call


def check(id: str, answer: Any = None, seed: int | None = None, case: int | None = None) -> Any:
    """Check whether `answer` (a function, or a value if the exercise asks for one) solves exercise `id`.

    With a `seed`, which the tests of an assignment contain, there are more drawn cases, the kit's own solution does not
    count, and nothing is stored by this process from then on: neither passed exercises nor answers nor tries.

    With `case`, a number that a message names, run that case alone, without a verdict: your prints and the traceback of
    an exception appear, and the result is what check would compare.
    """
    return _check(id, answer, seed) if case is None else find(id, seed).run_case(answer, case)


@_displayed
def _check(id: str, answer: Any, seed: int | None) -> Note:
    try:
        exercise = find(id, seed)
    except LookupError as error:
        return Note("check", str(error), "wrong")
    if seed is not None:
        stop_storing()
    if seed is not None and is_the_kits(exercise, answer):
        return _verdict(Result(exercise, "not yet", "This is the kit's own solution. Write one of your own.", 1), "")
    result = exercise.examine(answer)
    remarks = [record(id, answer) if result else ""]
    if result.status != "not attempted":
        remarks.append(note_check(id, bool(result), result.mistake))
    return _verdict(result if seed is None else replace(result, case=0), " ".join(filter(None, remarks)), show(answer))


@_displayed
def hint(id: str, number: int | None = None) -> Note:
    """Open the next hint of exercise `id`, or hint `number` (from 1)."""
    try:
        exercise = find(id)
    except LookupError as error:
        return Note("hint", str(error), "wrong")
    count = len(exercise.hints)
    number = min(_opened.get(id, 0) + 1, count) if number is None else number
    if number not in range(1, count + 1):
        return Note("hint", f"exercise {id} has hints 1 to {count}.", "wrong")
    _opened[id] = number
    note_hint(id, number)
    after = f'hint("{id}") again for the next.' if number < count else f'This is the last; solution("{id}") is left.'
    return Note(f"Hint {number} of {count} · {id}", f"{exercise.hints[number - 1]}\n\n{after}", "hint")


@_displayed
def solution(id: str) -> Note:
    """Show a solution of exercise `id`."""
    try:
        exercise = find(id)
    except LookupError as error:
        return Note("solution", str(error), "wrong")
    answer = exercise.solution
    note_solution(id)
    return Note(
        f"Solution · {exercise.id} {exercise.title}",
        exercise.explain,
        "hint",
        inspect.getsource(answer).rstrip() if callable(answer) else repr(answer),
    )


def use(id: str) -> Any:
    """Your answer to exercise `id` if it has passed, today or before, else the kit's solution. Prints which of the two.

    So the rest of a notebook runs whether you did the exercise or not. A stored answer is checked when it is loaded for
    the first time, and again if it or the exercise has changed since it passed. Results come in the kinds that the
    solution returns, such as MLX's arrays, even if your answer returns lists. Raises LookupError for an unknown
    exercise.
    """
    exercise, chapter = find(id), str(id).partition(".")[0]
    if id in passed_here:
        _tell(f"{id}: yours")
        return as_the_solution_returns(exercise, passed_here[id])
    kept, damage = kept_answers()
    if id not in kept:
        reason = f"your file of answers is damaged: {damage}" if damage else "you have not passed it yet"
        _tell(f"{id}: the kit's ({reason})")
        return exercise.solution
    newest, again = kept[id][-1], ""
    try:
        answer = newest.load(id)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _tell(f"{id}: the kit's (yours of {newest.when} cannot be loaded: {type(error).__name__}: {say(error)})")
        return exercise.solution
    if not newest.has_passed(check_of(exercise)):
        result = exercise.examine(answer)
        if not result:
            _tell(f"{id}: the kit's (yours of {newest.when} does not pass the check: {result.message})")
            return exercise.solution
        answer = newest.load(id)  # in the state before the check
        mark_kept(id, newest)
        again = ", checked again" if newest.passed else ""
    _tell(f"{id}: yours, from chapter {chapter} ({newest.when}{again})")
    return as_the_solution_returns(exercise, answer)


def my_code(path: str | os.PathLike = "my_code.py", chapter: str = "") -> Path:
    """Write your answers that have passed as one Python file, exercise by exercise, and return its path.

    The answers are those of all chapters, or of one: `my_code("my_grpo.py", "24")`. A chapter that builds a program,
    such as 24, gives a file that you can run: `python my_grpo.py`.

    Prints which stored answers are not Python that `check` has kept, and leaves them out. Raises LookupError for an
    unknown chapter, ValueError if there are no answers, FileExistsError for a file that `my_code` did not write, and
    OSError if it cannot be written.
    """
    path = Path(path)
    ends = [each for each in exercises(chapter) if each.program] if chapter else []
    kept, damage = kept_answers()
    if damage:
        _tell(f"Your file of answers is damaged: {damage}.")
    newest, titles = {}, {}
    for id, versions in kept.items():
        if chapter and id.partition(".")[0] != chapter:
            continue
        try:
            definitions_in(versions[-1].source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            _tell(f"{id} is left out: {type(error).__name__}: {say(error)}")
            continue
        newest[id] = versions[-1]
        with suppress(LookupError):  # an exercise of another version
            titles[id] = find(id).title
    if not newest:
        where = f" to chapter {chapter}" if chapter else ""
        raise ValueError(f"There are no answers{where} yet: check keeps each one that passes.")
    if path.exists() and not path.read_bytes().startswith(as_one_file({}, {})[0].rstrip().encode()):
        raise FileExistsError(f"{path} is not a file of my_code. Give another name.")
    own = {id: newest[id].name for id in sorted(newest, key=order_of)}
    ways_in = {}
    for each in ends:
        if each.id in newest:
            ways_in[each.id], program = source_of(each.program, each.program.__module__)
            newest[each.id] = replace(newest[each.id], source=f"{newest[each.id].source.rstrip()}\n\n\n{program}")
    text, names = as_one_file(newest, titles)
    own = {id: names[id].get(name, name) for id, name in own.items()}
    for each in ends:
        if each.id in newest:
            parts = ", ".join(f'"{id}": {name}' for id, name in own.items())
            run = f"{names[each.id].get(ways_in[each.id], ways_in[each.id])}({own[each.id]}, {{{parts}}})"
        else:
            words = f"{path.name} cannot run yet: pass {each.id}, then call my_code again."
            _tell(words)
            run = f"raise SystemExit({words!r})"
        text += f'\n\nif __name__ == "__main__":\n    {run}\n'
    write_file(path, text.encode())
    return path


def _tell(words: str) -> None:
    print(encodable(words))


@printable
class Note:
    """A short message with a coloured edge. True when an exercise was passed."""

    def __init__(self, heading: str, text: str, look: str, code: str = ""):
        self.heading, self.look, self.code = heading, look, code
        self.text = text.encode("utf-8", "backslashreplace").decode()  # an unpaired surrogate cannot be displayed
        self._cell: int | None = None  # the cell in which it was already displayed

    def shown(self) -> Note:
        """Display the note now if this is a notebook. At the end of its cell it is not displayed again."""
        cell = _running_cell()
        if cell is not None:
            self._ipython_display_()
            self._cell = cell
        return self

    @property
    def passed(self) -> bool:
        return self.look == "passed"

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return "\n".join(part for part in (self.heading, self.text, self.code) if part)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._cell is None or self._cell != _running_cell():
            display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)

    def _repr_html_(self) -> str:
        code = (
            f'<pre style="margin:8px 0 0;padding:8px 10px;border-radius:4px;background:rgba(140,149,159,.15);'
            f'color:inherit">{escape(self.code)}</pre>'
            if self.code
            else ""
        )
        return colored_box(
            f"<b>{escape(self.heading)}</b>{paragraphs(self.text)}{code}", self.look, "line-height:1.5;max-width:62em;"
        )


def _running_cell() -> int | None:
    """The number of the running cell of a notebook; None in a script or a terminal."""
    shell = notebook_shell()
    return None if shell is None else shell.execution_count


def _verdict(result: Result, remark: str, name: str = "") -> Note:
    exercise = result.exercise
    if result:
        text = "\n\n".join(filter(None, (result.message, remark)))
        return Note(f"\N{CHECK MARK} Passed · {exercise.id} {exercise.title}", text, "passed")
    if result.status == "not attempted":
        return Note(f"\N{WHITE CIRCLE} Not attempted · {exercise.id} {exercise.title}", result.message, "stub")
    way_out = f'`hint("{exercise.id}", {result.hint})` helps with this.'
    if result.case:
        name = name if name.isidentifier() else exercise.solution.__name__
        alone = f'check("{exercise.id}", {name}, case={result.case})'
        way_out += f" `{alone}` runs this case alone, with your prints and the traceback of an exception."
    text = "\n\n".join(filter(None, (result.message, way_out, remark)))
    return Note(f"\N{BALLOT X} Not yet · {exercise.id} {exercise.title}", text, "wrong")


def paragraphs(text: str) -> str:
    """Markup of a text whose paragraphs are parted by empty lines and in which `this` is code."""
    return "".join(f'<div style="margin-top:4px">{_markup(part)}</div>' for part in text.split("\n\n") if part)


def _markup(text: str) -> str:
    """Escaped text, with `this` as code."""
    parts = escape(text).split("`")
    style = "font-family:var(--jp-code-font-family,monospace);white-space:pre-wrap"
    return "".join(
        f'<code style="{style}">{part}</code>' if index % 2 else part for index, part in enumerate(parts)
    ).replace("\n", "<br>")
