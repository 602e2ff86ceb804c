"""The task of a run: its name, its arguments, and the form of its prompts, texts or chats."""

from __future__ import annotations

import argparse
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files.manifest import sha256_of
from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.prompts import RawTextWarning, longest_prompt
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runs.folder import RunSettings
from mlx_grpo_kit.tasks import Task, get_task
from mlx_grpo_kit.tasks.calls import held_out_problems
from mlx_grpo_kit.tasks.catalogue import TASKS

DATA_FILES = ("path", "held_out_path")
"""The arguments of a task that are files of problems."""


def named_task(options: argparse.Namespace) -> tuple[str | None, dict[str, Any] | None]:
    """The task's name and arguments from the command line, with absolute paths; None if not given."""
    name, args = options.task, dict(options.task_args or [])
    if options.data:
        if name in TASKS:
            raise ValueError(
                f"--data is given together with --task {name}, which makes its own problems. Leave out one of the two; "
                "your own task, file.py:Class, gets path=FILE."
            )
        name, args = name or "rows", {"path": options.data} | args
    if name and name.rpartition(":")[0].endswith(".py"):
        name = os.path.abspath(name)
    args |= {key: os.path.abspath(args[key]) for key in DATA_FILES if isinstance(args.get(key), str)}
    return name, args or None


def hashes_of_data(task_args: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of each file that a task reads its problems from, by path."""
    paths = [task_args[key] for key in DATA_FILES if isinstance(task_args.get(key), str)]
    return {path: sha256_of(Path(path)) for path in paths if Path(path).is_file()}


def check_data(settings: RunSettings) -> None:
    """Raise ValueError if a file of problems has changed since the run started."""
    now = hashes_of_data(settings.task_args)
    for path, then in settings.data.items():
        if path in now and now[path] != then:
            raise ValueError(
                f"{path} has changed since the run started, so --resume would continue with other problems. Put the "
                "file back, or start another run on it: --model with this run's policy/, and another --output."
            )


def task_of(settings: RunSettings) -> Task:
    """The run's task."""
    task = get_task(settings.task, **settings.task_args)
    if not settings.chat:
        warnings.simplefilter("ignore", RawTextWarning)  # the user chose texts, or the run cannot use chats
        return task
    return task.in_chat(thinking=bool((settings.args["chat_template_kwargs"] or {}).get("enable_thinking")))


def put_as_chat(settings: RunSettings, tokenizer: Tokenizer, wanted: bool | None) -> RunSettings:
    """The settings with `chat` as wanted; by default True if the model has a chat template and the task allows it.

    Raises ValueError if chats are wanted but impossible, and for template settings if prompts are texts.
    """
    task = get_task(settings.task, **settings.task_args)
    if wanted and not tokenizer.chat_template:
        raise ValueError(f"--chat needs a chat template, and {settings.model} has none. Leave --chat out.")
    if wanted and not hasattr(task, "in_chat"):
        raise ValueError(
            f"--chat needs a task that can be asked as a chat; {type(task).__name__} has no in_chat(*, thinking=False)."
        )
    can = bool(tokenizer.chat_template) and hasattr(task, "in_chat")
    settings = replace(settings, chat=can if wanted is None else wanted)
    if settings.args["chat_template_kwargs"] and not settings.chat and isinstance(_a_prompt(task), str):
        why = "--no-chat is given"
        if not can:
            lacks = f"{type(task).__name__} has no in_chat(*, thinking=False)"
            why = lacks if tokenizer.chat_template else f"{settings.model} has no chat template"
        raise ValueError(
            "--enable-thinking and --chat-template-kwargs are for chats, but the prompts of this run are texts: "
            f"{why}. Leave them out."
        )
    return settings


def _a_prompt(task: Task) -> str | Sequence[Mapping[str, Any]]:
    return held_out_problems(task, 1)[0].prompt


def fitted(settings: RunSettings, task: Task) -> RunSettings:
    """The settings with `eval_problems` lowered, with a warning, to the number of held-out problems."""
    num = len(held_out_problems(task, settings.eval_problems))
    if num == settings.eval_problems:
        return settings
    warnings.warn(
        f"The task has only {num} held-out problems, fewer than {settings.eval_problems}: accuracy is measured on "
        f"those {num}, and each counts {1 / num:.1%}.",
        stacklevel=2,
    )
    return replace(settings, eval_problems=num)


def steps_of(task: Task, args: GRPOConfig, num_epochs: float) -> int:
    """The number of steps for that many passes over all problems.

    Raises ValueError for a task with endless problems.
    """
    if not hasattr(task, "in_order"):
        raise ValueError(
            f"--num-train-epochs counts passes over all problems, but {task.name!r} makes problems without end. Set "
            "--max-steps instead."
        )
    return math.ceil(num_epochs * task.num_train / args.num_groups)


def with_room(settings: RunSettings, task: Task, tokenizer: Tokenizer, positions: int) -> RunSettings:
    """The settings with answers short enough for the model's positions, if the user set no length.

    This gives a warning. If a task cannot list its problems, only held-out ones are checked, and a quarter of the room
    is left for longer prompts.
    """
    args = GRPOConfig(**settings.args)
    if args.max_completion_length:
        return settings
    room = positions - len(longest_prompt(tokenizer, task, args, settings.eval_problems)[1])
    if task.max_completion_length <= room or room < 4:
        return settings
    length = room if hasattr(task, "all_problems") else room - room // 4
    warnings.warn(
        f"Answers have at most {length} tokens, not the task's {task.max_completion_length}: the model has {positions} "
        "positions for prompt and answer. Set another number with --max-completion-length.",
        stacklevel=2,
    )
    return replace(settings, args=settings.args | {"max_completion_length": length})


def in_words(task: Task, args: GRPOConfig) -> str:
    """A line that describes how a task is asked as a chat."""
    length = args.max_completion_length or task.max_completion_length
    thinks = "thinking first" if task.chat_template_kwargs["enable_thinking"] else "without thinking"
    return (
        f"Task: {task.name}, by the chat template of the model's folder, {thinks}, at most {length} tokens per answer"
    )
