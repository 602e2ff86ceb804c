"""The protocol between a task and the trainer: problems in, completions back, rewards out."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


class TaskError(ValueError):
    """A task failed, or returned what it should not; the message names the task or its reward function."""


@dataclass(frozen=True)
class Problem:
    """One prompt and what the task needs to judge an answer to it.

    Attributes:
        prompt: the text the policy reads and continues; or a chat, a list of messages such as
            `{"role": "user", "content": "12+34?"}`, which the template of the model's folder makes a text of.
        answer: one right answer, for showing and for supervised training. Others may be right too.
        data: the task's own facts, such as `{"numbers": (3, 5, 8), "target": 24}`.
        place: where the problem comes from, such as a line of a file, for messages; '' where there is nothing to say.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    answer: str
    data: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash((self.text, self.answer))

    @property
    def text(self) -> str:
        """The prompt in short, for people: of a chat, the last message."""
        return prompt_text(self.prompt)


def prompt_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """A prompt in short: a text as it is, of a chat what was said last."""
    return prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))


def is_chat(prompt: object) -> bool:
    """True if a prompt is a chat: messages with a role and a content, both texts; a call of tools may have no content.

    Content in parts, as models that see pictures have it, is refused: Qwen3's template makes an empty text of it.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not prompt:
        return False
    return all(
        isinstance(each, Mapping)
        and isinstance(each.get("role"), str)
        and isinstance(each.get("content", "" if each.get("tool_calls") else None), str)
        for each in prompt
    )


RewardFunc = Callable[..., "list[float | None] | Awaitable[list[float | None]]"]
"""Scores completions, one number each. `__name__` is the metric's name (`rewards/{name}/mean`).

It is written in one of two forms, told apart by the names of the parameters before a run starts:

    def correct(problems, completions):                         # the kit's: a list of Problem and a list of str
        return [float(c == p.answer) for p, c in zip(problems, completions)]

    def correct(prompts, completions, answer, **kwargs):        # TRL's: each argument by its name, a list of values
        return [float(c == a) for c, a in zip(completions, answer)]

TRL's form gets the prompts, the completions, `completion_ids`, the problems' `answer`, and each key of `Problem.data`
that all problems have, as TRL passes the columns of a data set. A completion is a text where its prompt is a text, and
`[{"role": "assistant", "content": text}]` where its prompt is a chat. (The kit's form always gets texts.)
`trainer_state`, `log_extra` and `log_metric` are not given. A function of either form may be a coroutine function
(`async def`), which waits for a judge elsewhere: all of a task's are awaited together, in one event loop that lasts as
long as the process.

None says that the function does not apply to that completion; NaN is refused as a mistake. Where a task has several
functions, their values are added. What a function raises ends the run, in words that name the function and the
completion; with `GRPOConfig(on_reward_error="skip")` that completion counts as None, and the run goes on.
"""


class Task(Protocol):
    """The members that `GRPOTrainer` needs. Any class with them is a task; there is nothing to inherit from.

    Attributes:
        name: short, for logs and file names.
        max_completion_length: tokens enough for any sensible answer and the end-of-sequence token.
        reward_funcs: one or more `RewardFunc`s.

    A task whose problems can be listed may have `all_problems()`, which returns every one of them: the trainer then
    checks their prompts before the first step. It may also have `in_order(seed, start, n)`: `n` problems from place
    `start` on of an endless list in which every epoch has each problem for training once, in an order of its own. The
    trainer then calls that instead of `sample`, and `num_train` is the number of problems in an epoch.

    A task whose prompts are chats may have `tools`, a list of functions that the model may call, and
    `environment_factory`, which makes an object for each completion whose methods it may call
    (mlx_grpo_kit/tasks/tools.py). A completion then has several turns.

    Where prompts are chats it may also have `chat_template_kwargs`, settings for the template such as
    `{"enable_thinking": False}`. One that can be asked both ways has `in_chat(*, thinking=False)`, which returns the
    task whose prompts are chats: `train` calls it where the model's folder has a chat template.
    """

    name: str
    max_completion_length: int
    reward_funcs: Sequence[RewardFunc]

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        """`n` problems of the training split, drawn with `rng` and nothing else, so that a seed repeats them."""
        ...

    def held_out(self, n: int) -> list[Problem]:
        """The same `n` distinct problems at every call, none of which `sample` ever returns.

        Raises ValueError when the task holds fewer than `n` back.
        """
        ...

    def is_correct(self, problem: Problem, completion: str) -> bool:
        """True if the completion solves the problem. This, not the reward, is what `eval/accuracy` counts."""
        ...
