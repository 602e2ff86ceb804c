"""Addition of two numbers: `12+34=` -> `46`. There is one right answer, checked by comparison."""

from collections.abc import Sequence

import numpy as np

from mlx_grpo_kit.tasks.answers import as_number, final_answer
from mlx_grpo_kit.tasks.chat import IN_TAGS, InChat, said
from mlx_grpo_kit.tasks.parsing import ascii_int
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import split_pairs, take_held_out
from mlx_grpo_kit.tasks.task import Problem, RewardFunc


def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 for the exact sum and 0.0 for anything else.

    There is no credit for being close. Within a group of completions a reward only has to distinguish better from
    worse. For a policy that is sometimes right, right and wrong already do that. Credit for closeness would reward 45
    for 12+34 as long as the other answers in the group are further off.
    """
    return [float(_is_sum(problem, completion)) for problem, completion in zip(problems, completions, strict=True)]


def _is_sum(problem: Problem, completion: str) -> bool:
    return ascii_int(said(problem, completion, _whole_number)) == problem.data["a"] + problem.data["b"]


class Addition:
    """Sums of two numbers from 0 to `max_operand`, with a tenth of the pairs held out.

    Both orders of a pair are on the same side of the split: memorising 12+34 does not help with any held-out sum.

    Args:
        max_operand: the largest number added, 9 to 999.
        reward_funcs: functions instead of the default `[correct]`.
    """

    name = "addition"

    def __init__(self, max_operand: int = 99, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None):
        if not 9 <= max_operand <= 999:
            raise ValueError(f"Addition(max_operand={max_operand}): expected 9 to 999.")
        self.max_operand = max_operand
        self.max_completion_length = len(str(2 * max_operand)) + 1
        self.reward_funcs = [correct] if reward_funcs is None else as_reward_funcs(reward_funcs)
        operands = range(max_operand + 1)
        self._train, self._held_out = split_pairs((a, b) for a in operands for b in operands[a:])

    @staticmethod
    def problem(a: int, b: int) -> Problem:
        """The problem `a+b=`, from either side of the split."""
        return Problem(prompt=f"{a}+{b}=", answer=str(a + b), data={"a": a, "b": b})

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        rows = self._train[rng.integers(0, len(self._train), n)]
        return [self.problem(int(a), int(b)) for a, b in rows]

    def held_out(self, n: int) -> list[Problem]:
        return [self.problem(a, b) for a, b in take_held_out(self.name, self._held_out, n)]

    is_correct = staticmethod(_is_sum)

    def in_chat(self, *, thinking: bool = False) -> InChat:
        """The same sums asked in words: `What is 12+34?`, with the answer in tags, in a box, or in the last line."""

        def ask(problem: Problem) -> str:
            return f"What is {problem.data['a']}+{problem.data['b']}? " + IN_TAGS.format("number")

        return InChat(self, ask, thinking=thinking)


def _whole_number(completion: str) -> str:
    number = as_number(final_answer(completion))
    return str(number) if number is not None and number.denominator == 1 else ""
