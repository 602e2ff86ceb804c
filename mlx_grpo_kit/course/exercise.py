"""An exercise, and the verdict on an answer to it."""

from __future__ import annotations

import copy
import dis
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from mlx_grpo_kit.course.calls import Calls, brief, in_words, python_of, strangers
from mlx_grpo_kit.course.compare import (
    EndlessError,
    Spoiled,
    Told,
    evaluate,
    lazy_arrays,
    same,
    say,
    shape_of,
    show,
    told_apart,
)
from mlx_grpo_kit.course.trial import (
    KeptModules,
    OneProcess,
    OnlyRead,
    RanTextError,
    ReplacedError,
    TooMuchWorkError,
    count_work,
    finite,
    watched,
    written_over,
)

_hidden_seed: ContextVar[int | None] = ContextVar("hidden_seed", default=None)
MOST_ANSWERS = 1000  # the most numbers in an array that is accepted as a tuple
LONGEST_REPEAT = 1.0  # seconds of a case that is run once more for a message
DOES_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "POP_TOP", "COPY_FREE_VARS"}


class Drawn(tuple):
    """A case that `drawn` made, so that another seed gives another one."""


@dataclass(frozen=True)
class Mistake:
    """A common wrong answer, with a message for it.

    An answer with the same results as `wrong` in every case gets `message`, and a reference to hint number `hint`.
    """

    name: str
    wrong: Any
    message: str
    hint: int = 1


@dataclass(frozen=True)
class Exercise:
    """One exercise of a notebook.

    Attributes:
        id: chapter and number: "02.3".
        title: a few words.
        prompt: the task, in Markdown, as in the notebook.
        minutes: the time for a reader who is new to the subject.
        difficulty: 1 to 3.
        solution: a function or class (its source is what `solution` shows), or a plain value where one is asked for.
        hints: at least two, each more detailed than the one before.
        cases: the arguments of each call the answer is tried with; a value needs none. Messages show a
            function of one expression as a lambda, and describe any other by its docstring, which readers see. `drawn`
            makes some with a seed, in addition to those picked by hand.
        mistakes: wrong answers with their own messages; `slips` makes those that are edits of the solution.
        also_right, also_wrong: answers that the tests try, as text (see `slips.variants`): right ones in another style,
            and wrong ones that no mistake describes, or that one describes in other words.
        run: how a function is tried: (function, *arguments) -> something comparable. By default it is called. Messages
            show the names of the arguments; a dictionary with words as keys says better than a tuple what differs.
        explain: a text that is shown after a pass, if there is more to see.
        in_place: True if the answer must change its input. Otherwise an answer that does so gets a message.
        only_read: True if the answer gets text that a model may have written. An answer that calls `eval` or `exec` is
            stopped before anything runs.
        work: how many times the solution's work an answer may take in each case, counted in Python's own steps; for
            exercises that forbid brute force. None means no limit.
        program: a function that a file of the chapter's answers calls when the file is run (see `my_code`), with this
            answer and all answers of the chapter by exercise. The file contains its module's functions.
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
    also_right: str = ""
    also_wrong: str = ""
    run: Callable[..., Any] = lambda function, *arguments: function(*arguments)
    explain: str = ""
    in_place: bool = False
    only_read: bool = False
    work: int | None = None
    program: Callable[[Any, dict[str, Any]], None] | None = None
    _known: dict[tuple[int, int], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _works: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def heading(self) -> str:
        """The line above the exercise in its notebook: number, title, minutes and difficulty."""
        dots = "\N{BLACK CIRCLE}" * self.difficulty + "\N{WHITE CIRCLE}" * (3 - self.difficulty)
        return f"Exercise {self.id} · {self.title} ({self.minutes} min, {dots})"

    @property
    def has_drawn_cases(self) -> bool:
        """True if `drawn` made some of the cases, so that a table of them is not an answer to those of another seed."""
        return any(isinstance(case, Drawn) for case in self.cases)

    def examine(self, answer: Any) -> Result:
        """Judge `answer`. It may do anything; only KeyboardInterrupt is raised, so that you can stop a loop."""
        try:
            return self._examine(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._wrong(f"check could not compare your answer: {type(error).__name__}: {say(error)}.")

    def _examine(self, answer: Any) -> Result:
        if answer is None or answer is ... or is_stub(answer):
            place = f" in `{self.solution.__name__}` with your code" if callable(self.solution) else " with your answer"
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
                f'without parentheses after its name: `check("{self.id}", {self.solution.__name__})`.'
            )
        return self._examine_function(answer)

    def _examine_value(self, answer: Any) -> Result:
        if isinstance(self.solution, (tuple, str)) and 0 < math.prod(shape_of(answer) or (0,)) <= MOST_ANSWERS:
            answer = answer.tolist()
        if isinstance(self.solution, str):
            answer = _letters(answer)
        if same(answer, self.solution):
            return Result(self, "passed", self.explain)
        for mistake in self.mistakes:
            if same(answer, mistake.wrong):
                return self._wrong(mistake.message, mistake)
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
        def tries() -> Iterator[tuple[Any, list[tuple]]]:
            for case in self.cases:
                calls: list[tuple] = []
                yield self.try_out(answer, case, calls), calls

        return self.judge(tries(), answer)

    def judge(self, tries: Iterable[tuple[Any, list[tuple]]], answer: Callable[..., Any] | None = None) -> Result:
        """The verdict on a function by its tries: for each case what `try_out` returned, and the results of its calls.

        Each try is compared before the next one is asked for, and again after the last. If the answer itself is here,
        a message may show the call that it got.
        """
        first = None
        right = [self._known_result(self.solution, number) for number in range(len(self.cases))]
        results, returned, began = [], [], perf_counter()
        for number, (expected, (got, calls)) in enumerate(zip(right, tries, strict=True)):
            results.append(got)
            returned.append(calls)
            if first is None and not same(got, expected):
                first, took = (number, expected, got), perf_counter() - began
            began = perf_counter()
        if first is None:
            for number, (expected, got, calls) in enumerate(zip(right, results, returned, strict=True)):
                if not same(got, expected) or written_over(calls):
                    overwritten = Told("the right result, and a later call wrote over it (make a new one in each call)")
                    where, repeat = self._where(number, None)
                    complaint = self._complaint(where, expected, overwritten, False) + self._strangers(repeat)
                    return self._wrong(complaint, case=repeat)
            return Result(self, "passed", self.explain)
        never_returns = all(result is None or isinstance(result, BaseException) for result in results)
        number, expected, got = first
        where, repeat = self._where(number, answer if took < LONGEST_REPEAT else None)
        complaint = self._complaint(where, expected, got, never_returns) + self._strangers(repeat)
        mistake = self._find_mistake(results)
        if mistake is None:
            return self._wrong(complaint, case=repeat)
        return self._wrong(f"{complaint} {mistake.message}", mistake, repeat)

    def _find_mistake(self, results: Sequence[Any]) -> Mistake | None:
        """The mistake that gives these results.

        Exceptions are compared by type; if there are only exceptions, their messages must be similar too. If several
        mistakes match, it is the first with the fewest other words.
        """
        found, fewest = None, math.inf
        nothing_else = all(isinstance(got, BaseException) for got in results)
        for mistake in self.mistakes:
            in_other_words = 0
            for number, got in enumerate(results):
                theirs = self._known_result(mistake.wrong, number)
                if not same(got, theirs) or (nothing_else and not _speak_of_the_same(got, theirs)):
                    break
                in_other_words += isinstance(got, BaseException) and say(got) != say(theirs)
            else:
                if in_other_words < fewest:
                    found, fewest = mistake, in_other_words
        return found

    def _known_result(self, function: Callable[..., Any], number: int) -> Any:
        """`try_out` of the solution or of a mistake on a case by its number. The result is cached for all answers."""
        key = id(function), number
        if key not in self._known:
            self._known[key] = self.try_out(function, self.cases[number])
        return self._known[key]

    def run_case(self, answer: Callable[..., Any], number: int) -> Any:
        """The result that `check` would compare for case `number` (from 1). Exceptions of the answer pass through.

        Raises:
            IndexError: there is no such case.
        """
        if not 1 <= number <= len(self.cases):
            raise IndexError(f"exercise {self.id} has cases 1 to {len(self.cases)}, not {number}.")
        return self.run(answer, *copy.deepcopy(self.cases[number - 1]))

    def try_out(self, function: Callable[..., Any], case: tuple, returned: list[tuple] | None = None) -> Any:
        """The result of `function` for `case`, the exception that it raises, or words for a forbidden act.

        The case itself is not changed. `returned`, if given, gets the results of each call (see `written_over`).
        """
        changes: list[str] = []
        calls = [] if returned is None else returned
        try:
            with OneProcess(), KeptModules(), OnlyRead() if self.only_read else nullcontext():
                result = self._run(function, case, changes, calls)
                evaluate(lazy_arrays(result))
        except TooMuchWorkError:
            return Told(f"no result after {self.work} times the work of the kit's answer (it was stopped there)")
        except (EndlessError, RanTextError, ReplacedError) as error:
            return Told(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return error
        return Spoiled(result) if changes else result

    def _run(self, function: Callable[..., Any], case: tuple, changes: list[str], returned: list[tuple]) -> Any:
        if function is self.solution:
            return self.run(function, *copy.deepcopy(case))
        tried = finite(function) if self.in_place else watched(finite(function), changes, returned)
        if self.work is None:
            return self.run(tried, *copy.deepcopy(case))
        return count_work(lambda: self.run(tried, *copy.deepcopy(case)), self.work * self.work_on(case))[0]

    def work_on(self, case: tuple) -> int:
        """The steps that the solution takes in a case, counted once."""
        if id(case) not in self._works:
            self._works[id(case)] = count_work(lambda: self.run(self.solution, *copy.deepcopy(case)))[1]
        return self._works[id(case)]

    def _where(self, number: int, answer: Callable[..., Any] | None) -> tuple[str, int]:
        """The case in words, and its number (from 1) if the words are not a call that can be pasted, else 0.

        `answer` is run once more to see its call, unless it is None.
        """
        name, case = self.solution.__name__, self.cases[number]
        plain = self.run is Exercise.run
        given = (case, {}) if plain else None
        if not plain and inspect.isroutine(answer) and self.work is None and not self.in_place:
            calls = Calls()
            self.try_out(calls.watch(answer), case)
            given = calls.shown() or ((case, {}) if self._is_a_call(number) else None)
        if given is not None and (call := python_of(name, *given)):
            return f"`{call}`", 0
        words = f"`{name}({', '.join(map(brief, case))})`" if plain else in_words(name, case, self.run)
        return words, number + 1

    def _is_a_call(self, number: int) -> bool:
        """True if `run` gives what a plain call of the solution with the case's arguments gives."""
        try:
            return same(self.solution(*copy.deepcopy(self.cases[number])), self._known_result(self.solution, number))
        except Exception:
            return False

    def _complaint(self, where: str, expected: Any, got: Any, never_returns: bool) -> str:
        if isinstance(got, BaseException):
            words = say(got)
            happened = f"raised {type(got).__name__}{words and f': {words}'}. Expected {show(expected)}."
        elif got is None:
            happened = f"returned None, expected {show(expected)}.{' Is there a `return`?' if never_returns else ''}"
        else:
            happened = f"gave {told_apart(got, expected)}."
        return f"{where} {happened}"

    def _strangers(self, number: int) -> str:
        """Descriptions of the functions in case `number` (from 1), which its words only name; nothing for 0."""
        return strangers(self.cases[number - 1]) if number else ""

    def _wrong(self, message: str, mistake: Mistake | None = None, case: int = 0) -> Result:
        hint, name = (mistake.hint, mistake.name) if mistake else (1, "")
        return Result(self, "not yet", message, hint, name, case)


@dataclass(frozen=True)
class Result:
    """The verdict of `check`. `status` is "passed", "not yet" or "not attempted"; true if it is "passed".

    `mistake` is the name of the mistake that the answer made, and empty if it made none that the exercise knows. `case`
    is the number (from 1) of a case that failed, if the message contains no call of it that can be pasted, else 0.
    """

    exercise: Exercise | None
    status: str
    message: str
    hint: int = 0
    mistake: str = ""
    case: int = 0

    def __bool__(self) -> bool:
        return self.status == "passed"


def _letters(answer: Any) -> Any:
    """ "FEGC" for "F, E, G, C", "fegc" and ["F", "E", "G", "C"] too."""
    if isinstance(answer, (list, tuple)) and all(isinstance(part, str) for part in answer):
        answer = "".join(answer)
    return "".join(filter(str.isalnum, answer)).upper() if isinstance(answer, str) else answer


def _speak_of_the_same(*errors: BaseException) -> bool:
    """True if half of the words of two messages agree, in any order."""
    words = [set(say(error).split()) for error in errors]
    return 2 * len(set.intersection(*words)) >= max(map(len, words))


def is_stub(answer: Any) -> bool:
    """True if a function has no code of its own: a docstring, `...` or `pass`. A class: if none of its methods has."""
    if inspect.isclass(answer):
        own = [each for each in vars(answer).values() if inspect.isfunction(each)]
        return all(map(is_stub, own)) and (bool(own) or answer.__bases__ == (object,))
    if not inspect.isfunction(answer):
        return False
    constants = (None, ..., answer.__doc__)
    return all(
        step.opname in DOES_NOTHING and (not step.opname.endswith("_CONST") or step.argval in constants)
        for step in dis.get_instructions(answer)
    )


def drawn(count: int, draw: Callable[[Any], tuple], seed: int = 0) -> tuple[tuple, ...]:
    """`count` cases, each what `draw(rng)` returns: `cases=(*by_hand, *drawn(3, lambda rng: (rng.normal(size=2),)))`.

    Args:
        count: how many cases.
        draw: takes a `numpy.random.Generator`, returns the arguments of one call.
        seed: of the generator. The cases are the same every time; within `drawn_from` there are as many others, too.
    """
    import numpy as np

    hidden = _hidden_seed.get()
    seeds = [seed] if hidden is None else [seed, (seed, hidden)]
    return tuple(Drawn(draw(rng)) for rng in map(np.random.default_rng, seeds) for _ in range(count))


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """A context in which `drawn` also draws cases that depend on `seed`, which a reader has not seen."""
    token = _hidden_seed.set(seed)
    try:
        yield
    finally:
        _hidden_seed.reset(token)
