"""A game of several turns: find a hidden number by asking. The fewer questions, the higher the reward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from mlx_grpo_kit.tasks.answers import as_number, final_answer
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.task import Problem, RewardFunc

QUESTIONS = 5
"""The number of questions after which a game is lost."""


class Game:
    """A game: `reset` hides a number, `guess` compares a guess with it.

    Attributes:
        questions: guesses so far.
        found: True if one of them was right.
    """

    def __init__(self, largest: int = 7):
        self.largest = largest
        self.reset(secret=1)

    def reset(self, secret: int, **row) -> None:
        """Start a game with this hidden number."""
        self.secret, self.questions, self.found = secret, 0, False

    def guess(self, number: int) -> str:
        """Ask whether the hidden number is this one.

        Args:
            number: The guess.
        """
        if self.found:
            raise ValueError("the game is over")
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= self.largest:
            raise ValueError(f"expected a whole number from 1 to {self.largest}")
        self.questions += 1
        if self.questions > QUESTIONS:
            raise ValueError("no question is left")
        self.found = number == self.secret
        return "right" if self.found else "higher" if number < self.secret else "lower"

    def get_reward(self) -> float:
        """1 for a number found with the first question, 1/5 less for each further question, 0 if not found."""
        return 1 - (self.questions - 1) / QUESTIONS if self.found else 0.0


class GuessTheNumber:
    """A hidden number from 1 to `largest`, and a tool that says whether it is higher or lower.

    The prompt is the same in every game, so the policy cannot see a difference between training and held-out games.

    Args:
        largest: the largest number that may be hidden.
        reward_funcs: functions in addition to the game's own reward.
    """

    name, max_completion_length = "guess", 176

    def __init__(self, largest: int = 7, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None):
        if not 2 <= largest <= 99:
            raise ValueError(f"GuessTheNumber(largest={largest}): expected 2 to 99.")
        self.largest = largest
        self.reward_funcs = [] if reward_funcs is None else as_reward_funcs(reward_funcs)
        self.environment_factory = partial(Game, largest)

    def problem(self, secret: int) -> Problem:
        """The game with this hidden number."""
        asked = [{"role": "user", "content": f"Find my number from 1 to {self.largest}."}]
        return Problem(asked, str(secret), data={"secret": secret})

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        return [self.problem(int(secret)) for secret in rng.integers(1, self.largest + 1, n)]

    def held_out(self, n: int) -> list[Problem]:
        """Each number equally often, up to one."""
        return [self.problem(1 + place % self.largest) for place in range(n)]

    def is_correct(self, problem: Problem, completion: str) -> bool:
        """True if the last turn names the hidden number."""
        return as_number(final_answer(completion)) == problem.data["secret"]
