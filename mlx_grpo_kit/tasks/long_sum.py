"""Long sums, worked out step by step: `7+15+8+16=` -> `7+15=22;22+8=30;30+16=46;46`. Short and long answers are right.

An answer is any number of steps, each of which ends with `;`, and then the sum. The steps have to be true, but nobody
asks for them: `46` is right, `20+26=46;46` is right, and so is an answer that adds 0 five times before it ends. So the
policy chooses how long its answers are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.tasks.parsing import ascii_int
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import draw_sums
from mlx_grpo_kit.tasks.task import Problem, RewardFunc

FEWEST, MOST, LARGEST = 3, 5, 19
"""How many different numbers a problem has, and the largest of them; the smallest is 1."""

MAX_CHARACTERS = 256
_CHARACTERS = frozenset("0123456789+=;")


@dataclass(frozen=True)
class Working:
    """The steps and the result of an answer.

    Attributes:
        steps: for each step the numbers that it adds and the result that it names.
        answer: the number at the end.
    """

    steps: tuple[tuple[tuple[int, ...], int], ...]
    answer: int

    @property
    def is_true(self) -> bool:
        """True if every step names the sum of its numbers."""
        return all(sum(numbers) == result for numbers, result in self.steps)


def read_working(completion: str) -> Working | None:
    """The steps and the answer of a completion, or None if it is anything else.

        working := (step ';')* number
        step    := number ('+' number)+ '=' number

    A number has 1 to 9 digits and no leading zero. There are no spaces, no signs and at most `MAX_CHARACTERS`.
    """
    if len(completion) > MAX_CHARACTERS or not _CHARACTERS.issuperset(completion):
        return None
    *steps, last = completion.split(";")
    read = [_read_step(step) for step in steps]
    answer = ascii_int(last)
    return None if answer is None or None in read else Working(tuple(read), answer)


def _read_step(step: str) -> tuple[tuple[int, ...], int] | None:
    left, _, right = step.partition("=")
    numbers, result = tuple(map(ascii_int, left.split("+"))), ascii_int(right)
    return None if len(numbers) < 2 or None in numbers or result is None else (numbers, result)


def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 for true steps, or none, and the right sum at the end; 0.0 for anything else.

    An answer that comes to the right sum by two mistakes is wrong: the verifier adds up every step.
    """
    return [float(_is_right(problem, completion)) for problem, completion in zip(problems, completions, strict=True)]


def _is_right(problem: Problem, completion: str) -> bool:
    working = read_working(completion)
    return working is not None and working.is_true and working.answer == sum(problem.data["numbers"])


class LongSum:
    """Sums of 3 to 5 different numbers from 1 to 19, a tenth of them held out. The answer may show its steps.

    All orders of the same numbers are on the same side of the split.

    Args:
        reward_funcs: instead of the default `[correct]`.
    """

    name, max_completion_length = "long-sum", 60

    def __init__(self, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None):
        self.reward_funcs = [correct] if reward_funcs is None else as_reward_funcs(reward_funcs)

    @staticmethod
    def problem(numbers: Sequence[int]) -> Problem:
        """The problem of adding these numbers, whichever side of the split it is on; `answer` adds one at a time."""
        total, steps = numbers[0], []
        for number in numbers[1:]:
            steps.append(f"{total}+{number}={total + number};")
            total += number
        prompt = f"{'+'.join(map(str, numbers))}="
        return Problem(prompt, f"{''.join(steps)}{total}", data={"numbers": tuple(map(int, numbers))})

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        return [*map(self.problem, draw_sums(lambda: _draw(rng), n, held_out=False))]

    def held_out(self, n: int) -> list[Problem]:
        rng = np.random.default_rng(0)
        return [*map(self.problem, draw_sums(lambda: _draw(rng), n, held_out=True))]

    is_correct = staticmethod(_is_right)


def _draw(rng: np.random.Generator) -> np.ndarray:
    count = rng.integers(FEWEST, MOST + 1)
    return 1 + rng.permutation(LARGEST)[:count]
