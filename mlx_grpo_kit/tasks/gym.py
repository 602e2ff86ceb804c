"""The tasks of reasoning-gym: a hundred generators of problems, each with a verifier (the extra `gym`).

    task = GymTask("spell_backward", min_word_len=3).in_chat()
    problem = task.held_out(1)[0]                  # "Spell this word backward (example: sun -> nus): ..."
    task.reward_funcs[0]([problem], ["..."])       # the verifier's score, from 0 to 1; 1 is_correct

In the terminal: `--task gym:spell_backward,min_word_len=3`. The package runs in a process of its own
(mlx_grpo_kit/tasks/gym_process.py), so that seeds repeat and a verifier can neither hang nor run what a policy wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.tasks.answers import final_answer
from mlx_grpo_kit.tasks.chat import ANSWER_TOKENS, IN_TAGS, InChat
from mlx_grpo_kit.tasks.judge import Judge
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import is_held_out, take_held_out
from mlx_grpo_kit.tasks.task import Problem, RewardFunc, TaskError

SIZE, LONGEST, ALL_LINES = 5_000, 10_000, 10_000
"""The number of problems if `size` is not given; the most characters and lines of an answer."""


class GymTask:
    """Problems of one of reasoning-gym's generators. Half of the questions are held out, by their hash.

    Args:
        name: the generator's name, such as "spell_backward".
        reward_funcs: functions instead of the default, the verifier's score (`rewards/score`).
        settings: the generator's own, such as `min_word_len=3`, with `seed` and `size`, the number of its problems.

    Raises:
        ImportError: reasoning-gym is not installed.
        TaskError: there is no such generator or setting, or a value is out of range.
    """

    max_completion_length = ANSWER_TOKENS

    def __init__(self, name: str, /, *, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None, **settings: Any):
        with packages_for(f"The task gym:{name}"):
            version("reasoning_gym")
        self.name, self._settings = f"gym-{name}", {"seed": 0, "size": SIZE} | settings
        try:
            self._generator = name, json.dumps(self._settings)
        except (TypeError, ValueError) as error:
            raise TaskError(f"GymTask({name!r}): {error}. Settings are numbers, strings and lists of these.") from None
        self.reward_funcs = [self.score] if reward_funcs is None else as_reward_funcs(reward_funcs)
        self._problem(0)

    def _problem(self, index: int) -> Problem:
        question, answer = _judge.ask(*self._generator, index)
        return Problem(question, answer or "", {"index": index}, place=f"{self.name}, problem {index}")

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        drawn = (self._problem(int(rng.integers(self._settings["size"]))) for _ in range(100 + 20 * n))
        found = [*islice((problem for problem in drawn if not is_held_out(problem.prompt, 0.5)), n)]
        if len(found) < n:
            raise TaskError(f"{self.name} has too few different problems for training. Change its settings.")
        return found

    def held_out(self, n: int) -> list[Problem]:
        return take_held_out(self.name, [*islice(self._all_held_out(), n)], n)

    def _all_held_out(self) -> Iterator[Problem]:
        found = {}
        for problem in map(self._problem, range(self._settings["size"])):
            if is_held_out(problem.prompt, 0.5) and found.setdefault(problem.prompt, problem) is problem:
                yield problem

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
        """The verifier's scores, from 0 to 1. An answer at which it raises, or that takes it too long, scores 0."""
        return [self._score(problem, text) for problem, text in zip(problems, completions, strict=True)]

    def _score(self, problem: Problem, completion: str) -> float:
        lines = 1 if problem.answer and "\n" not in problem.answer.strip() else ALL_LINES
        answer = final_answer(completion, lines, words=True)
        try:
            return _judge.ask(*self._generator, problem.data["index"], answer) if len(answer) <= LONGEST else 0.0
        except TaskError:
            return 0.0

    def is_correct(self, problem: Problem, completion: str) -> bool:
        return self._score(problem, completion) > 1 - 1e-6

    def in_chat(self, *, thinking: bool = False) -> InChat:
        """The same questions as chats, with the answer in tags, in a box, or in the last line."""
        return InChat(self, lambda problem: f"{problem.prompt}\n{IN_TAGS.format('your answer')}", thinking=thinking)


_judge = Judge("mlx_grpo_kit.tasks.gym_process")
