"""A task as a chat: questions in words, with an instruction, and completions in words that contain an answer.

    task = Addition().in_chat()          # "What is 12+34? ..." -> "... <answer>46</answer>"

A chat model continues `12+34=` badly and answers a question well. The kit's tasks have both styles; `train` uses the
chat if the model's folder has a chat template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_grpo_kit.tasks.task import Problem, Task

ANSWER_TOKENS, THINKING_TOKENS = 256, 1024
"""Maximum tokens of a completion that answers at once, and of one that thinks first (about half of Qwen3-0.6B's
thoughts end before 256 tokens: https://github.com/huggingface/trl/issues/6263)."""

IN_TAGS = "Answer as <answer>{}</answer>."
"""An instruction: `IN_TAGS.format("number")`."""


class InChat:
    """`task` as chats. Its reward functions and `is_correct` get the completions as they were written.

    A function of the task that judges an answer reads it from the completion if the problem is a chat (`said`).

    Args:
        task: the source of problems, rewards and `is_correct`; the name of this one is `task-chat`.
        ask: problem -> the user's message.
        thinking: True if the model thinks first: longer completions, and `enable_thinking` for the template.
        system: the system prompt, if any.
        max_completion_length: in tokens; by default the usual length of an answer, or of a thought and an answer.
    """

    def __init__(
        self,
        task: Task,
        ask: Callable[[Problem], str],
        *,
        thinking: bool = False,
        system: str | None = None,
        max_completion_length: int | None = None,
    ):
        self.task, self._ask, self._system = task, ask, system
        self.name = f"{task.name}-chat"
        self.max_completion_length = max_completion_length or (THINKING_TOKENS if thinking else ANSWER_TOKENS)
        self.chat_template_kwargs = {"enable_thinking": thinking}

    def __getattr__(self, name: str) -> Any:
        if name in ("task", "__setstate__"):  # copy and pickle ask for these before __init__
            raise AttributeError(name)
        return getattr(self.task, name)

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        return [self.put(problem) for problem in self.task.sample(rng, n)]

    def held_out(self, n: int) -> list[Problem]:
        return [self.put(problem) for problem in self.task.held_out(n)]

    @property
    def all_problems(self) -> Callable[[], Iterable[Problem]]:
        """The task's `all_problems`; raises AttributeError if it has none."""
        ask = self.task.all_problems
        return lambda: map(self.put, ask())

    @property
    def in_order(self) -> Callable[[int, int, int], list[Problem]]:
        """The task's `in_order`; raises AttributeError if it has none."""
        ask = self.task.in_order
        return lambda seed, start, n: [self.put(problem) for problem in ask(seed, start, n)]

    def put(self, problem: Problem) -> Problem:
        """A problem of the task as a chat; one that is already a chat is returned unchanged."""
        if not isinstance(problem.prompt, str):
            return problem
        system = [{"role": "system", "content": self._system}] if self._system else []
        return replace(problem, prompt=[*system, {"role": "user", "content": self._ask(problem)}])


def said(problem: Problem, completion: str, read: Callable[[str], str]) -> str:
    """The answer in a completion: all of it if the prompt is a text, the part that `read` finds if it is a chat."""
    return completion if isinstance(problem.prompt, str) else read(completion)
