"""A reward that a learner types, applied to completions: anything that goes wrong is said in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlx_grpo_kit.course.compare import say, show
from mlx_grpo_kit.course.trial import TooMuchWorkError, count_work

STEPS = 3_000_000
"""Of Python, for all completions together: an endless loop ends after some seconds."""


def score_typed(code: str, problems: Sequence[Any], completions: Sequence[str], **names: Any) -> list[float | None]:
    """What the function `reward(prompt, answer, completion)` that `code` defines gives for each completion.

    Args:
        code: Python, by the learner's own hand; it is run.
        problems, completions: [B]
        names: what the code may use besides Python's own.

    Raises:
        ValueError: the code is no Python, defines no `reward`, fails, runs on and on, or gives what is no number; the
            message says which, and for which completion.
    """
    score = _define(code, names)

    def all_of_them() -> list[float | None]:
        return [_number(score, problem, completion) for problem, completion in zip(problems, completions, strict=True)]

    try:
        return count_work(all_of_them, STEPS)[0]
    except TooMuchWorkError:
        raise ValueError(f"It was stopped after {STEPS:,} steps. Is there a loop without an end?") from None


def _define(code: str, names: dict[str, Any]) -> Callable[[str, str, str], Any]:
    space = dict(names)
    try:
        count_work(lambda: exec(compile(code, "<reward>", "exec"), space), STEPS)
    except SyntaxError as error:
        raise ValueError(f"Line {error.lineno or 1} is not Python yet: {error.msg}.") from None
    except TooMuchWorkError:
        raise ValueError("It does not come to an end. Is there a loop outside of the function?") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"{type(error).__name__}: {say(error)}") from None
    score = space.get("reward")
    if not callable(score):
        raise ValueError("Please define a function: `def reward(prompt, answer, completion):` and a `return` in it.")
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
        raise ValueError(f"It gave {show(value)} {where}; a reward is a finite number (or None: not scored).")
    return number
