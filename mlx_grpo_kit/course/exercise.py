"""What an exercise is, and what an answer to it is worth."""

from __future__ import annotations

import copy
import dis
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RELATIVE, ABSOLUTE = 1e-6, 1e-9  # how near a number has to be
LONGEST_TEXT = 160  # of a value in a message
MOST_NUMBERS = 12  # of an array; a larger one is told by its shape
DOES_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "POP_TOP", "COPY_FREE_VARS"}


class Told(str):
    """What an answer did, in words: it stands in a message as it is, without quotes."""

    __repr__ = str.__str__


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give, and what to say to them.

    An answer that gives what `wrong` gives in every case gets `message`, and is sent to hint number `hint`.
    """

    name: str
    wrong: Any
    message: str
    hint: int = 1


@dataclass(frozen=True)
class Exercise:
    """One exercise of a notebook.

    id          chapter and number: "02.3"
    title       a few words
    prompt      what to do, in Markdown, as it stands in the notebook
    minutes     for somebody who meets the subject for the first time
    difficulty  1 to 3
    solution    a function (its source is what `solution` shows), or a plain value where a value is asked for
    hints       at least two, each saying more than the one before
    cases       the arguments of each call the answer is tried with; a value needs none. The docstring of a function
                among them is quoted in messages: "x * x"
    mistakes    wrong answers with messages of their own
    run         how a function is tried: (function, *arguments) -> something comparable. By default it is called.
    explain     shown when it is passed, if there is more to see in it
    """

    id: str
    title: str
    prompt: str
    minutes: int
    difficulty: int
    solution: Any
    hints: Sequence[str]
    cases: Sequence[tuple] = ()
    mistakes: Sequence[Mistake] = ()
    run: Callable[..., Any] = lambda function, *arguments: function(*arguments)
    explain: str = ""

    @property
    def heading(self) -> str:
        """The line above the exercise in its notebook: number, title, minutes and difficulty."""
        dots = "\N{BLACK CIRCLE}" * self.difficulty + "\N{WHITE CIRCLE}" * (3 - self.difficulty)
        return f"Exercise {self.id} · {self.title} ({self.minutes} min, {dots})"

    def examine(self, answer: Any) -> Result:
        """What `answer` is worth. Never raises, whatever the answer does."""
        if answer is None or answer is ... or is_stub(answer):
            place = f" in `{self.solution.__name__}` by your code" if callable(self.solution) else " by your answer"
            return Result(
                self,
                "not attempted",
                f"Replace the `...`{place} and run the cell again. If you do not know "
                f'where to begin: `hint("{self.id}")`.',
            )
        if not callable(self.solution):
            return self._examine_value(answer)
        if not callable(answer):
            return self._wrong(
                f"check got {show(answer)}, a {type(answer).__name__}. Pass the function itself, "
                f'without brackets behind its name: `check("{self.id}", {self.solution.__name__})`.'
            )
        return self._examine_function(answer)

    def _examine_value(self, answer: Any) -> Result:
        if isinstance(self.solution, str):
            answer = _letters(answer)
        if same(answer, self.solution):
            return Result(self, "passed", self.explain)
        for mistake in self.mistakes:
            if same(answer, mistake.wrong):
                return self._wrong(mistake.message, mistake.hint)
        if isinstance(self.solution, tuple) and (
            not isinstance(answer, (list, tuple)) or len(answer) != len(self.solution)
        ):
            kind = "numbers" if all(isinstance(part, numbers.Real) for part in self.solution) else "answers"
            return self._wrong(f"{show(answer)} is not a tuple of {len(self.solution)} {kind}.")
        if isinstance(self.solution, str) and (not isinstance(answer, str) or len(answer) != len(self.solution)):
            return self._wrong(f"{show(answer)} is not a string of {len(self.solution)} letters.")
        share = ""
        if isinstance(self.solution, (tuple, str)) and len(self.solution) > 2:
            right = sum(map(same, answer, self.solution))
            share = f" {right} of the {len(self.solution)} {'is' if right == 1 else 'are'} right."
        return self._wrong(f"{show(answer)} is not it.{share}")

    def _examine_function(self, answer: Callable[..., Any]) -> Result:
        first = None
        results = []
        for case in self.cases:
            expected = self.try_out(self.solution, case)
            got = self.try_out(answer, case)
            results.append(got)
            if first is None and not same(got, expected):
                first = case, expected, got
        if first is None:
            return Result(self, "passed", self.explain)
        never_returns = all(result is None or isinstance(result, BaseException) for result in results)
        complaint = self._complaint(*first, never_returns)
        mistake = self._find_mistake(results)
        if mistake is None:
            return self._wrong(complaint)
        return self._wrong(f"{complaint} {mistake.message}", mistake.hint)

    def _find_mistake(self, results: Sequence[Any]) -> Mistake | None:
        """The mistake that gives these results. An exception counts by its kind; where nothing but exceptions came, it
        has to speak of the same thing too. Of several mistakes that fit, the first with the fewest other words."""
        found, fewest = None, math.inf
        nothing_else = all(isinstance(got, BaseException) for got in results)
        for mistake in self.mistakes:
            in_other_words = 0
            for case, got in zip(self.cases, results, strict=True):
                theirs = self.try_out(mistake.wrong, case)
                if not same(got, theirs) or (nothing_else and not _speak_of_the_same(got, theirs)):
                    break
                in_other_words += isinstance(got, BaseException) and str(got) != str(theirs)
            else:
                if in_other_words < fewest:
                    found, fewest = mistake, in_other_words
        return found

    def try_out(self, function: Callable[..., Any], case: tuple) -> Any:
        """What `function` gives for `case`, or the exception that it raises. The case stays as it is."""
        try:
            return self.run(function, *copy.deepcopy(case))
        except (Exception, SystemExit) as error:
            return error

    def _complaint(self, case: tuple, expected: Any, got: Any, never_returns: bool) -> str:
        call = f"`{self.solution.__name__}({', '.join(map(show, case))})`"
        if isinstance(got, BaseException):
            happened = f"raised {type(got).__name__}: {str(got).rstrip('. ')}. Expected {show(expected)}."
        elif got is None:
            happened = f"returned None, expected {show(expected)}.{' Is there a `return`?' if never_returns else ''}"
        else:
            happened = f"gave {told_apart(got, expected)}."
        # A case may hold functions, which the learner has not seen: their docstrings say what they are.
        strangers = [f" Here `{show(each)}` is `{each.__doc__}`." for each in case if callable(each) and each.__doc__]
        return f"{call} {happened}{''.join(strangers)}"

    def _wrong(self, message: str, hint: int = 1) -> Result:
        return Result(self, "not yet", message, hint)


@dataclass(frozen=True)
class Result:
    """What `check` answers. `status` is "passed", "not yet" or "not attempted"; true where it is passed."""

    exercise: Exercise | None
    status: str
    message: str
    hint: int = 0

    def __bool__(self) -> bool:
        return self.status == "passed"


def _letters(answer: Any) -> Any:
    """ "FEGC" for "F, E, G, C", "fegc" and ["F", "E", "G", "C"] too."""
    if isinstance(answer, (list, tuple)) and all(isinstance(part, str) for part in answer):
        answer = "".join(answer)
    return "".join(filter(str.isalnum, answer)).upper() if isinstance(answer, str) else answer


def _speak_of_the_same(*errors: BaseException) -> bool:
    """Whether half of the words of two messages agree, in any order."""
    words = [set(str(error).split()) for error in errors]
    return 2 * len(set.intersection(*words)) >= max(map(len, words))


def is_stub(answer: Any) -> bool:
    """Whether a function has no code of its own: a docstring, `...` or `pass`."""
    if not inspect.isfunction(answer):
        return False
    constants = (None, ..., answer.__doc__)
    return all(
        step.opname in DOES_NOTHING and (not step.opname.endswith("_CONST") or step.argval in constants)
        for step in dis.get_instructions(answer)
    )


def same(got: Any, expected: Any) -> bool:
    """Equal, numbers up to rounding, in lists, tuples, dictionaries and arrays too; exceptions by their kind."""
    if isinstance(expected, BaseException) or isinstance(got, BaseException):
        return type(got) is type(expected)
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, numbers.Real):
        got = getattr(got, "item", lambda: got)() if getattr(got, "shape", None) == () else got
        return isinstance(got, numbers.Real) and (
            math.isclose(got, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (got != got and expected != expected)
        )
    if isinstance(expected, Mapping):
        return (
            isinstance(got, Mapping)
            and got.keys() == expected.keys()
            and all(same(got[key], value) for key, value in expected.items())
        )
    if isinstance(expected, (list, tuple)):
        return isinstance(got, (list, tuple)) and len(got) == len(expected) and all(map(same, got, expected))
    if hasattr(expected, "shape"):
        import numpy as np

        try:
            got, expected = np.asarray(got), np.asarray(expected)
            return got.shape == expected.shape and bool(
                np.allclose(got, expected, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
            )
        except (TypeError, ValueError):  # not numbers, rows of different lengths, a tensor that keeps its history
            return False
    if isinstance(expected, str) and isinstance(got, str):
        return got.strip().lower() == expected.strip().lower()
    try:
        return bool(got == expected)
    except (TypeError, ValueError):  # an array has no single truth value
        return False


def told_apart(got: Any, expected: Any) -> str:
    """What was given and what was expected: of several arrays the first wrong one, of a large one a wrong element."""
    if (
        isinstance(expected, (list, tuple))
        and isinstance(got, (list, tuple))
        and len(got) == len(expected)
        and any(getattr(part, "shape", ()) for part in expected)
    ):
        wrong = [same(*pair) for pair in zip(got, expected, strict=True)].index(False)
        return f"a {type(got).__name__} whose part {wrong + 1} is {told_apart(got[wrong], expected[wrong])}"
    text = [show(value) for value in (got, expected)]
    both = ", expected ".join(text)
    shapes = [tuple(value.shape) if hasattr(value, "shape") else None for value in (got, expected)]
    if None not in shapes and shapes[0] != shapes[1]:
        return ", expected ".join(
            each if each.startswith("array of shape") else f"{each} of shape {shape}"
            for each, shape in zip(text, shapes, strict=True)
        )
    if None in shapes or math.prod(shapes[1]) <= MOST_NUMBERS:
        return both
    import numpy as np

    try:
        got, expected = np.asarray(got, dtype=float), np.asarray(expected, dtype=float)
    except (TypeError, ValueError, RuntimeError):  # not numbers, or a tensor that keeps its history
        return both
    is_wrong = ~np.isclose(got, expected, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    index = tuple(map(int, np.unravel_index(is_wrong.argmax(), is_wrong.shape)))
    return (
        f"an {text[0]} with {is_wrong.sum():,} of {is_wrong.size:,} elements wrong: the one at {list(index)} is "
        f"{show(float(got[index]))}, expected {show(float(expected[index]))}"
    )


def show(value: Any) -> str:
    """A value as it stands in a message: functions by name, numbers with few digits, arrays with their shape, long
    things cut."""
    if isinstance(value, BaseException):
        return f"a {type(value).__name__}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if inspect.isgenerator(value):
        return "a generator (make a tuple or an array of it)"
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {show(item)}" for key, item in value.items())
    elif type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return show(value.item())
    elif hasattr(value, "shape") and hasattr(value, "tolist"):
        is_small = math.prod(value.shape) <= MOST_NUMBERS
        text = f"array({show(value.tolist())})" if is_small else f"array of shape {tuple(value.shape)}"
    elif isinstance(value, (list, tuple)):
        inner = ", ".join(map(show, value))
        text = f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    else:
        text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " ..."
