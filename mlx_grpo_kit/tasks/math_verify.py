"""Rewards for formulas, judged by math-verify (`pip install math-verify`): 1/2 is \\frac{1}{2} is 0.5.

    task = RowsTask(rows, reward_funcs=[math_verified], is_correct=is_math_equal)

math-verify runs in a separate process (`Judge`). An answer that takes it too long counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from mlx_grpo_kit.tasks.answers import MAX_CHARACTERS, without_thoughts
from mlx_grpo_kit.tasks.judge import Judge, answer_questions
from mlx_grpo_kit.tasks.task import Problem, TaskError

LONGEST = 4_000
"""The number of characters at the end of a completion that are read."""


def math_verified(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 if math-verify finds the answer in the completion, in any notation, else 0.0."""
    return [float(is_math_equal(problem, text)) for problem, text in zip(problems, completions, strict=True)]


def is_math_equal(problem: Problem, completion: str) -> bool:
    """True if math-verify judges the completion's last formula equal to `problem.answer`. Thoughts are ignored.

    Raises:
        TaskError: math-verify is not installed.
    """
    if find_spec("math_verify") is None:
        raise TaskError("math-verify is not installed. Run `pip install math-verify`, or use another reward.")
    if len(completion) > MAX_CHARACTERS:
        return False
    try:
        return _judge.ask(problem.answer, without_thoughts(completion)[-LONGEST:])
    except TaskError:  # it raised, or took too long
        return False


_judge = Judge("mlx_grpo_kit.tasks.math_verify")


def _answer(answer: str, said: str) -> bool:
    from math_verify import parse, verify

    right = parse(answer) or parse(f"${answer}$")
    return bool(right) and bool(verify(right, parse(said)))


if __name__ == "__main__":
    answer_questions(_answer, before=lambda: import_module("math_verify"))
