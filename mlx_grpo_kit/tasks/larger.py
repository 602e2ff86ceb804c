"""The larger of two numbers, which a small chat model often misses: `Which number is larger, 21 or 18?` -> `21`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mlx_grpo_kit.tasks.answers import MAX_CHARACTERS, without_thoughts
from mlx_grpo_kit.tasks.chat import InChat
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import split_pairs, take_held_out
from mlx_grpo_kit.tasks.task import Problem, RewardFunc

CHAT_TOKENS = 12
"""Maximum tokens of an answer in a chat: a short sentence with the number."""

_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")


def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 if the completion names the larger number and no other, else 0.0.

    `21` and `The larger number is 21.` are right. `21 is larger than 18.` is not, because it names both: paid for the
    last number in the text, a policy learned to say `18 is larger than 21.`
    """
    return [float(_is_larger(problem, each)) for problem, each in zip(problems, completions, strict=True)]


def _is_larger(problem: Problem, completion: str) -> bool:
    numbers = _NUMBER.findall(without_thoughts(completion)) if len(completion) <= MAX_CHARACTERS else []
    return set(numbers) == {problem.answer}


class Larger:
    """Pairs of two different numbers from 10 to 99, a tenth of them held out. Asked as a chat, in words.

    Both orders of a pair are on the same side of the split.

    Args:
        reward_funcs: functions instead of the default `[correct]`.
    """

    name, max_completion_length = "larger", 3

    def __init__(self, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None):
        self.reward_funcs = [correct] if reward_funcs is None else as_reward_funcs(reward_funcs)
        self._train, self._held_out = split_pairs((a, b) for a in range(10, 100) for b in range(a + 1, 100))

    @staticmethod
    def problem(a: int, b: int) -> Problem:
        """The problem `max(a,b)=`, from either side of the split."""
        return Problem(prompt=f"max({a},{b})=", answer=str(max(a, b)), data={"a": a, "b": b})

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        rows = self._train[rng.integers(0, len(self._train), n)]
        return [self.problem(int(a), int(b)) for a, b in rows]

    def held_out(self, n: int) -> list[Problem]:
        return [self.problem(a, b) for a, b in take_held_out(self.name, self._held_out, n)]

    is_correct = staticmethod(_is_larger)

    def in_chat(self, *, thinking: bool = False) -> InChat:
        """The same pairs asked in words, without an instruction: `Which number is larger, 21 or 18?`"""

        def ask(problem: Problem) -> str:
            return f"Which number is larger, {problem.data['a']} or {problem.data['b']}?"

        return InChat(self, ask, thinking=thinking, max_completion_length=None if thinking else CHAT_TOKENS)
