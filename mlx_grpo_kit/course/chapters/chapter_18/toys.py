"""Small policies and tasks, which you can follow by hand, for testing the pieces of a training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem


class Coins:
    """A policy of two numbers that draws token 0 or 1, and a batch of four tokens that it drew."""

    def __init__(self, tokens: list[int], advantages: list[float], clip: float = 0.2):
        self.tokens, self.advantages, self.clip = tokens, advantages, clip

    def logps_of(self, params: dict[str, mx.array]) -> mx.array:
        """Log-probabilities of the four tokens."""
        logits = params["logits"]
        return (logits - mx.logsumexp(logits))[mx.array(self.tokens)]

    def loss_of(self, logps: mx.array, old_logps: mx.array) -> mx.array:
        """The clipped loss, a mean over the four tokens."""
        ratio, advantages = mx.exp(logps - old_logps), mx.array(self.advantages)
        clipped = mx.clip(ratio, 1 - self.clip, 1 + self.clip)
        return -mx.minimum(ratio * advantages, clipped * advantages).mean()

    def __repr__(self) -> str:
        return f"tokens {self.tokens} with advantages {self.advantages}"


def descend(params: dict[str, mx.array], grads: dict[str, mx.array]) -> dict[str, mx.array]:
    """new parameters: params - 0.75 * grads"""
    return {name: value - 0.75 * grads[name] for name, value in params.items()}


class Quiz:
    """A task whose questions are numbers: `sample` returns numbers below 100, `held_out` numbers from 100 on."""

    name, max_completion_length = "quiz", 4

    def __init__(self, solved: set[int]):
        self.solved, self.reward_funcs = (
            solved,
            [lambda problems, completions: [0.25] * len(problems)],
        )  # pays for form only

    def sample(self, rng: Any, n: int) -> list[Problem]:
        """Questions of the training set; the policy answers all of them correctly."""
        return [Problem(f"{number}?", str(number)) for number in rng.integers(0, 100, n)]

    def held_out(self, n: int) -> list[Problem]:
        """The first `n` held-out questions."""
        return [Problem(f"{100 + number}?", str(100 + number)) for number in range(n)]

    def is_correct(self, problem: Problem, completion: str) -> bool:
        """Return True if the completion is the answer; spaces and points around it do not count."""
        return completion.strip(" .") == problem.answer

    def write(self, prompts: list[str]) -> list[str]:
        """Answers: right (" 7.") for numbers below 100 and for numbers in `solved`, otherwise with an extra digit."""
        numbers = [int(prompt.rstrip("?")) for prompt in prompts]
        return [f" {number}." if number < 100 or number in self.solved else f"{number}7" for number in numbers]

    def __repr__(self) -> str:
        return f"a task with {len(self.solved)} held-out questions that the policy can answer"


class Diary:
    """A policy that counts its steps and raises an error at step `fails_at`, once."""

    def __init__(self, start: int = 0, fails_at: int | None = None):
        self.state, self.fails_at, self.calls = {"step": start, "weight": float(start)}, fails_at, 0

    def take_step(self, state: dict[str, float]) -> dict[str, float]:
        """Take one step on the parameters in `state` and return metrics. The loop counts state["step"]."""
        self.calls += 1
        if state["step"] + 1 == self.fails_at:
            self.fails_at = None
            raise RuntimeError("a reward function failed")
        state["weight"] += 1.0
        return {"reward": state["weight"] / 10}

    def __repr__(self) -> str:
        end = f", which fails at step {self.fails_at}" if self.fails_at else ""
        return f"a run at step {self.state['step']}{end}"


def follow(train: Any, start: int, max_steps: int, leave_after: int | None, fails_at: int | None) -> Any:
    """Leave a loop after some steps and continue it; return what it yielded, and the state at each yield."""
    diary, seen = Diary(start, fails_at), []
    for _ in range(2):
        steps = train(diary.take_step, diary.state, max_steps)
        if steps is None or not isinstance(steps, Iterator):
            kind = "None" if steps is None else f"a {type(steps).__name__}"
            return Told(f"{kind}, but `for step, metrics in train(...)` needs an iterator (a function with `yield`)")
        if diary.calls and not seen:
            return Told("steps that were taken before the caller asked for one")
        try:
            for count, each in enumerate(steps, start=1):
                if not isinstance(each, (tuple, list)) or len(each) != 2:
                    return Told(f"{each!r}, but (step, metrics) was expected")
                seen.append((each[0], each[1], diary.state["step"], diary.calls))
                if len(seen) > 40:
                    return Told("more than 40 steps, so the loop never ends")
                if count == leave_after:
                    break
        except RuntimeError as error:
            seen.append((str(error), diary.state["step"]))
    return seen


class Parts:
    """The parts of a step, for a policy that is one number. Advantages are scaled by the whole batch."""

    group_size = 3

    def __init__(self, asked: list[list[int]]):
        self.asked = asked  # the questions of each step

    def questions(self, step: int) -> list[int]:
        """The questions of a step, each three times in a row."""
        return [question for question in self.asked[step] for _ in range(self.group_size)]

    def write(self, params: float, questions: list[int], step: int) -> list[list[int]]:
        """An answer of one to four tokens to each question; another step gives other answers."""
        numbers = [question + int(params) + row * row // 2 + step for row, question in enumerate(questions)]
        return [[number] * (1 + number % 4) for number in numbers]

    def reward(self, questions: list[int], answers: list[list[int]]) -> list[float]:
        """0, 0.5 or 1, from the remainder of the first token divided by three; for question 9 always 0.5."""
        return [
            0.5 if question == 9 else answer[0] % 3 / 2 for question, answer in zip(questions, answers, strict=True)
        ]

    def _groups(self, rewards: list[float]) -> list[list[float]]:
        return [rewards[start : start + self.group_size] for start in range(0, len(rewards), self.group_size)]

    def advantages(self, rewards: list[float]) -> list[float]:
        """Rewards minus the mean of their group, divided by the standard deviation of all rewards.

        That is `scale_rewards="batch"`, so leaving rows out first gives other advantages.
        """
        spread = float(np.std(rewards, ddof=1)) if rewards else 0.0
        return [
            (reward - sum(group) / len(group)) / (spread + 1e-4) for group in self._groups(rewards) for reward in group
        ]

    def rows_that_teach(self, rewards: list[float]) -> list[int]:
        """The rows of groups with at least two different rewards."""
        teaches = [max(group) > min(group) for group in self._groups(rewards) for _ in group]
        return [row for row, does in enumerate(teaches) if does]

    def learn(
        self,
        params: float,
        questions: list[int],
        answers: list[list[int]],
        advantages: list[float],
        num_items: int,
    ) -> float:
        """New parameters. The second of two updates differs from the first, so several do not add up to one."""
        if not len(questions) == len(answers) == len(advantages):
            raise ValueError(f"{len(questions)} questions, {len(answers)} answers and {len(advantages)} advantages")
        if not questions:
            raise ValueError("there is no row to learn from")
        if not all(map(any, self._groups(advantages))):
            raise ValueError("there are rows of a group that teaches nothing")
        moves = (
            advantage * (sum(answer) - question / 8) * (1 + params / 8)
            for question, answer, advantage in zip(questions, answers, advantages, strict=True)
        )
        return params + sum(moves) / num_items

    def __repr__(self) -> str:
        return f"parts with the questions {self.asked}"
