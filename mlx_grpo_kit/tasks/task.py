"""The protocol between a task and the trainer: problems, completions, rewards."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


class TaskError(ValueError):
    """A task failed or returned something invalid; the message names the task or its reward function."""


@dataclass(frozen=True)
class Problem:
    """One prompt with the data that the task needs to judge an answer.

    Attributes:
        prompt: the text that the policy continues; or a chat, a list of messages such as `{"role": "user", "content":
            "12+34?"}`, which the chat template of the model's folder renders as text.
        answer: one right answer, for showing and for supervised training. Others may be right too.
        data: the task's own data, such as `{"numbers": (3, 5, 8), "target": 24}`.
        place: the source of the problem, such as a line of a file, for error messages; '' if there is none.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    answer: str
    data: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash((self.text, self.answer))

    @property
    def text(self) -> str:
        """The prompt in short, for people: the last message of a chat."""
        return prompt_text(self.prompt)


def prompt_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """A prompt in short: a string unchanged, or the content of a chat's last message."""
    return prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")


def is_chat(prompt: object) -> bool:
    """True if a prompt is a chat: messages with a role and a content, both strings.

    A message with tool calls may lack content, or have None for it, as in OpenAI's format. Content in parts, as for
    models that see pictures, returns False: Qwen3's template would render it as nothing.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not prompt:
        return False
    return all(
        isinstance(each, Mapping)
        and isinstance(each.get("role"), str)
        and (isinstance(content := each.get("content"), str) or (content is None and bool(each.get("tool_calls"))))
        for each in prompt
    )


RewardFunc = Callable[..., "list[float | None] | Awaitable[list[float | None]]"]
"""A function that scores completions, one number each. Its `__name__` names the metric (`rewards/{name}/mean`).

It has one of two forms, which the names of the parameters distinguish before a run starts:

    def correct(problems, completions):                         # the kit's: a list of Problem and a list of str
        return [float(c == p.answer) for p, c in zip(problems, completions)]

    def correct(prompts, completions, answer, **kwargs):        # TRL's: each argument by name, a list of values
        return [float(c == a) for c, a in zip(completions, answer)]

A function that takes `**kwargs` has TRL's form, unless a parameter is called `problems` (`takes_names` has all rules).

TRL's form gets the prompts, the completions, `completion_ids`, the problems' `answer`, and each key of `Problem.data`
that all problems have, as TRL passes the columns of a data set. A completion is a string if its prompt is a string, and
`[{"role": "assistant", "content": text}]` if its prompt is a chat. (The kit's form always gets strings.) If the chat
template opens a thought, that `<think>` is the beginning of the completion, although it is in the prompt
(`Tokenizer.read`): so nothing needs to add it.
`trainer_state`, `log_extra` and `log_metric` are not passed. A function of either form may be a coroutine function
(`async def`), for example to wait for a judge on another machine: all coroutine functions of a task are awaited
together, in one event loop that lasts as long as the process.

None means that the function does not apply to that completion; NaN raises an error. If a task has several functions,
their values are added. If a function raises, the run ends with an error that names the function and the completion;
with `GRPOConfig(on_reward_error="skip")` that completion counts as None, and the run continues.
"""


class Task(Protocol):
    """The members that `GRPOTrainer` needs. Any class with them is a task; there is nothing to inherit from.

    Attributes:
        name: a short name for logs and file names.
        max_completion_length: enough tokens for any sensible answer and the end-of-sequence token.
        reward_funcs: one or more `RewardFunc`s.

    A task whose problems can be listed may have `all_problems()`, which returns every one of them: the trainer then
    checks their prompts before the first step. It may also have `in_order(seed, start, n)`: `n` problems from position
    `start` on of an endless list in which every epoch has each training problem once, in a new order. The trainer then
    calls that instead of `sample`, and `num_train` is the number of problems in an epoch.

    A task whose prompts are chats may have `tools`, a list of functions that the model may call, and
    `environment_factory`, which makes an object for each completion whose methods it may call
    (mlx_grpo_kit/tasks/tools.py). A completion then has several turns.

    If prompts are chats it may also have `chat_template_kwargs`, settings for the template such as
    `{"enable_thinking": False}`. A task with both styles has `in_chat(*, thinking=False)`, which returns the task whose
    prompts are chats: `train` calls it if the model's folder has a chat template.
    """

    name: str
    max_completion_length: int
    reward_funcs: Sequence[RewardFunc]

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        """`n` problems of the training split, drawn only with `rng`, so that a seed repeats them."""
        ...

    def held_out(self, n: int) -> list[Problem]:
        """The same `n` distinct problems at every call; `sample` never returns any of them.

        Raises ValueError if the task has fewer than `n` held-out problems.
        """
        ...

    def is_correct(self, problem: Problem, completion: str) -> bool:
        """True if the completion solves the problem. `eval/accuracy` counts this, not the reward."""
        ...
