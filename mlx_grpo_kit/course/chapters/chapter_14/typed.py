"""Apply a reward that a reader types to completions, and explain in words anything that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlx_grpo_kit.course.compare import say, show
from mlx_grpo_kit.course.trial import TooMuchWorkError, count_work

STEPS = 3_000_000
"""The most steps of Python for all completions together, so that an endless loop ends after some seconds."""


def score_typed(code: str, problems: Sequence[Any], completions: Sequence[str], **names: Any) -> list[float | None]:
    """Score each completion with the function `reward(prompt, answer, completion)` that `code` defines.

    Args:
        code: Python code that the reader typed; it is run.
        problems, completions: [B]
        names: names that the code may use in addition to Python's own.

    Raises:
        ValueError: the code is not Python, defines no `reward`, fails, does not end, or returns something that is not a
            number; the message says which, and for which completion.
    """
    score = _define(code, names)

    def all_of_them() -> list[float | None]:
        return [_number(score, problem, completion) for problem, completion in zip(problems, completions, strict=True)]

    try:
        return count_work(all_of_them, STEPS)[0]
    except TooMuchWorkError:
        raise ValueError(f"Your code was stopped after {STEPS:,} steps. Is there an endless loop?") from None


def _define(code: str, names: dict[str, Any]) -> Callable[[str, str, str], Any]:
    space = dict(names)
    try:
        count_work(lambda: exec(compile(code, "<reward>", "exec"), space), STEPS)
    except SyntaxError as error:
        raise ValueError(f"Line {error.lineno or 1} is not Python yet: {error.msg}.") from None
    except TooMuchWorkError:
        raise ValueError("Your code does not end. Is there an endless loop outside the function?") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"{type(error).__name__}: {say(error)}") from None
    score = space.get("reward")
    if not callable(score):
        raise ValueError("Please define a function: `def reward(prompt, answer, completion):` with a `return` in it.")
    return score


def _number(score: Callable[[str, str, str], Any], problem: Any, completion: str) -> float | None:
    where = f"for {problem.prompt}{completion[:40]}"
    try:
        value = score(problem.prompt, problem.answer, completion)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{type(error).__name__} {where}: {say(error)}") from None
    if value is None:
        return None
    try:
        number = None if isinstance(value, str) else float(value)
    except Exception:
        number = None
    if number is None or not abs(number) < 1e30:
        raise ValueError(
            f"Your function returned {show(value)} {where}; a reward is a finite number (or None: not scored)."
        )
    return number
