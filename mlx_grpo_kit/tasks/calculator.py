"""Long sums with a calculator: `What is 347+586+941?`, and a tool that computes the answer. One answer is right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlx_grpo_kit.tasks.answers import as_number, final_answer
from mlx_grpo_kit.tasks.parsing import parse_expression
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import draw_sums
from mlx_grpo_kit.tasks.task import Problem, RewardFunc


def calculate(expression: str) -> str:
    """Compute the value of an expression.

    Args:
        expression: Whole numbers with + - * / and parentheses, such as 12+34.
    """
    return str(parse_expression(expression).value)


def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 if the last turn ends in the right sum, 0.0 otherwise."""
    return [float(_is_sum(problem, text)) for problem, text in zip(problems, completions, strict=True)]


def _is_sum(problem: Problem, completion: str) -> bool:
    return as_number(final_answer(completion)) == sum(problem.data["numbers"])


class Calculator:
    """Sums of three numbers from 100 to 999, with a tenth of them held out. The policy may call `calculate`.

    A tiny model cannot add them in its head. It can copy them into a call, and copy the result into its answer.

    Args:
        reward_funcs: functions instead of the default `[correct]`.
    """

    name, max_completion_length = "calculator", 160

    def __init__(self, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None):
        self.reward_funcs = [correct] if reward_funcs is None else as_reward_funcs(reward_funcs)
        self.tools = [calculate]

    @staticmethod
    def problem(numbers: Sequence[int]) -> Problem:
        """The problem of adding these numbers, from either side of the split."""
        asked = [{"role": "user", "content": f"What is {'+'.join(map(str, numbers))}?"}]
        return Problem(asked, str(sum(numbers)), data={"numbers": tuple(map(int, numbers))})

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        return [*map(self.problem, draw_sums(lambda: rng.integers(100, 1000, 3), n, held_out=False))]

    def held_out(self, n: int) -> list[Problem]:
        rng = np.random.default_rng(0)
        return [*map(self.problem, draw_sums(lambda: rng.integers(100, 1000, 3), n, held_out=True))]

    is_correct = staticmethod(_is_sum)
