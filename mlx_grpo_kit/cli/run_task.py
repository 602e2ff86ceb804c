"""Which task a run has, by its name, its arguments, and the way it is put: as texts or as chats."""

from __future__ import annotations

import argparse
import os
import warnings
from dataclasses import replace
from typing import Any

from mlx_grpo_kit.cli.run_folder import RunSettings
from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.trainer import encode_prompts
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks import Task, get_task
from mlx_grpo_kit.tasks.calls import held_out_problems
from mlx_grpo_kit.tasks.catalogue import TASKS


def named_task(options: argparse.Namespace) -> tuple[str | None, dict[str, Any] | None]:
    """The task's name and arguments as they were given, with paths that hold in any folder; None where not."""
    name, args = options.task, dict(options.task_args or [])
    if options.data:
        if name in TASKS:
            raise ValueError(
                f"--data is given and --task {name}, which makes its own problems. Leave one of the two; a task of "
                "your own, file.py:Class, is called with path=FILE."
            )
        name, args = name or "rows", {"path": options.data} | args
    if name and name.rpartition(":")[0].endswith(".py"):
        name = os.path.abspath(name)
    args |= {key: os.path.abspath(args[key]) for key in ("path", "held_out_path") if isinstance(args.get(key), str)}
    return name, args or None


def task_of(settings: RunSettings) -> Task:
    """The run's task."""
    task = get_task(settings.task, **settings.task_args)
    if not settings.chat:
        return task
    return task.in_chat(thinking=bool((settings.args["chat_template_kwargs"] or {}).get("enable_thinking")))


def put_as_chat(settings: RunSettings, tokenizer: Tokenizer, wanted: bool | None) -> RunSettings:
    """The settings with `chat` as wanted, or by itself where the model knows chats and the task can be asked.

    Raises ValueError where it was wanted and cannot be.
    """
    task = get_task(settings.task, **settings.task_args)
    if wanted and not tokenizer.chat_template:
        raise ValueError(f"--chat needs a chat template, and {settings.model} has none. Leave --chat out.")
    if wanted and not hasattr(task, "in_chat"):
        raise ValueError(
            f"--chat needs a task that can be put as a chat; {type(task).__name__} has no in_chat(*, thinking=False)."
        )
    can = bool(tokenizer.chat_template) and hasattr(task, "in_chat")
    return replace(settings, chat=can if wanted is None else wanted)


def fitted(settings: RunSettings, task: Task) -> RunSettings:
    """The settings with no more `eval_problems` than a task holds that says how many; with a warning."""
    num = getattr(task, "num_held_out", settings.eval_problems)
    if num >= settings.eval_problems:
        return settings
    warnings.warn(
        f"The task holds {num} problems back, fewer than {settings.eval_problems}: accuracy is measured on those "
        f"{num}, and one problem is {1 / num:.1%} of it.",
        stacklevel=2,
    )
    return replace(settings, eval_problems=num)


def with_room(settings: RunSettings, task: Task, tokenizer: Tokenizer, positions: int) -> RunSettings:
    """The settings with answers that fit behind the prompts into a model's positions, if no length was asked for.

    A quarter of the room stays for prompts that are longer than those that are looked at. With a warning.
    """
    args = GRPOConfig(**settings.args)
    if args.max_completion_length:
        return settings
    problems = held_out_problems(task, settings.eval_problems)
    room = positions - max(map(len, encode_prompts(tokenizer, task, args, problems)))
    if task.max_completion_length <= room or room < 4:
        return settings
    length = room - room // 4
    warnings.warn(
        f"Answers have at most {length} tokens, not the task's {task.max_completion_length}: the model has {positions} "
        "positions for prompt and answer. --max-completion-length sets another number.",
        stacklevel=2,
    )
    return replace(settings, args=settings.args | {"max_completion_length": length})


def in_words(task: Task, args: GRPOConfig) -> str:
    """A line on how a task is put as a chat."""
    length = args.max_completion_length or task.max_completion_length
    thinks = "thinking first" if task.chat_template_kwargs["enable_thinking"] else "without thinking"
    return f"Task: {task.name}, by the chat template of the model's folder, {thinks}, at most {length} tokens an answer"
