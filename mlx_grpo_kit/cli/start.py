"""The start of a run: its task, its settings and its trainer, from the command line or from its folder."""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlx_grpo_kit.cli import values
from mlx_grpo_kit.files import read_json
from mlx_grpo_kit.files.manifest import sha256_of
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, estimate_memory
from mlx_grpo_kit.grpo.config import MAY_CHANGE
from mlx_grpo_kit.grpo.memory import in_bytes, machine_memory
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.prompts import RawTextWarning, check_room, length_with_room, longest_prompt
from mlx_grpo_kit.grpo.recipe import MADE_BY, TINY_NAME, default_args, model_folder
from mlx_grpo_kit.grpo.schedule import scheduled_rate
from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters, load_pretrained, load_tokenizer
from mlx_grpo_kit.qwen3.adapter_base import bases_of
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runs.folder import BEST, CHECKPOINTS, POLICY, RunFolder, RunSettings
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Task, TaskError, get_task
from mlx_grpo_kit.tasks.calls import held_out_problems
from mlx_grpo_kit.tasks.catalogue import TASKS

DATA_FILES = ("path", "held_out_path")
"""The arguments of a task that are files of problems."""

# The sizes at which both learners were measured in the same step, on two x86-64 cores, and how much less time torch's
# took (the guide on speed; tests/benchmarks/test_step.py). Nothing is said of smaller and of larger models.
MEASURED = (750_000, 700_000_000)
SAVED = "1 to 38%"


def fresh(
    options: argparse.Namespace, args: Mapping[str, Any], folder: RunFolder, world: World
) -> tuple[RunSettings, GRPOTrainer]:
    """A new run from the command line. Nothing is written yet."""
    if world.rank == 0:
        folder.check_free(options.overwrite)
    model = _name_of(options.model or TINY_NAME)
    replaced = [(folder.path / name).resolve() for name in (CHECKPOINTS, POLICY, BEST)]
    source = model_folder(model)
    for needed in (source, *bases_of(source)):
        if any(needed.resolve().is_relative_to(each) for each in replaced):
            raise ValueError(
                f"--model {options.model} needs {needed}, which the run would replace in {folder.path}. Choose another "
                "--output, or copy the model first."
            )
    task_name, task_args = named_task(options)
    settings = RunSettings(
        model=model,
        task=task_name or "addition",
        task_args=task_args or {},
        data=hashes_of_data(task_args or {}),
        max_steps=options.max_steps,
        save_every=options.save_every,
        eval_every=options.eval_every,
        eval_problems=options.eval_problems,
        log_completions=options.log_completions,
        keep_best=bool(options.keep_best),
        args=asdict(GRPOConfig(**(default_args(model, args.get("lora_r")) | args))),
    )
    tokenizer, config = load_tokenizer(source), Qwen3Config.from_dict(read_json(source, "config.json"))
    settings = put_as_chat(settings, tokenizer, options.chat)
    task = task_of(settings)
    if options.num_train_epochs:
        settings = replace(settings, max_steps=steps_of(task, GRPOConfig(**settings.args), options.num_train_epochs))
    settings = with_room(fitted(settings, task), task, tokenizer, config)
    trainer = new_trainer(settings, task, world)
    if world.rank == 0 and (words := faster_learner(trainer, args)):
        print(words, flush=True)
    return settings, trainer


def resumed(
    options: argparse.Namespace, args: Mapping[str, Any], folder: RunFolder, world: World
) -> tuple[RunSettings, GRPOTrainer]:
    """The run in the folder, at its newest valid checkpoint. Every process reads it; the first prepares it."""
    before = folder.read_settings()
    saved = GRPOConfig(**before.args)
    task_name, task_args = named_task(options)
    fixed = {"model": options.model and _name_of(options.model), "task": task_name, "task_args": task_args}
    fixed |= {"chat": options.chat, **{name: value for name, value in args.items() if name not in MAY_CHANGE}}
    for name, value in fixed.items():
        of_the_run = getattr(saved if name in args else before, name)
        value, of_the_run = (list(each) if isinstance(each, tuple) else each for each in (value, of_the_run))
        if value not in (None, of_the_run):
            option = name.replace("_", "-")
            if name == "bf16":
                option = "dtype"
                value, of_the_run = ("bfloat16" if each else "float32" for each in (value, of_the_run))
            raise ValueError(
                f"--{option} {value} differs from the setting of the run in {folder.path} ({of_the_run}), and cannot "
                "change during a run. Leave it out, or start another run with another --output."
            )
    may_change = ("max_steps", "save_every", "eval_every", "eval_problems", "log_completions", "keep_best")
    given = {name: getattr(options, name) for name in may_change if getattr(options, name) is not None}
    changes = {name: value for name, value in args.items() if name in MAY_CHANGE}
    settings = replace(before, **given, args=asdict(replace(saved, **changes)))
    check_data(settings)
    task = task_of(settings)
    settings = fitted(settings, task)
    trainer = newest_trainer(folder, task, settings, world)
    if trainer is None:
        if world.rank == 0:
            folder.check_ours()
        warnings.warn(f"{folder.path} has no checkpoint yet, so its run starts again from step 0.", stacklevel=2)
        return settings, new_trainer(settings, task, world)
    if trainer.step > settings.max_steps:
        raise ValueError(
            f"--max-steps is {settings.max_steps}, but the run in {folder.path} has already done {trainer.step}."
        )
    settings = replace(settings, args=asdict(trainer.args))
    if world.rank == 0:
        say_what_it_takes(trainer.config, trainer.args, trainer.tokenizer, task, settings, world)
        _say_how_fast(trainer, before, settings)
        folder.go_on(settings, trainer.step)
    return settings, trainer


def newest_trainer(folder: RunFolder, task: Task, settings: RunSettings, world: World) -> GRPOTrainer | None:
    """The trainer at the newest complete checkpoint, with a warning for each newer one that is damaged.

    None if the run has no checkpoints. Raises ValueError if none of them can be read, and TaskError
    for a task with a prompt that cannot be trained on.
    """
    checkpoints = folder.checkpoints() if settings.begun else []
    changes = {name: settings.args[name] for name in MAY_CHANGE if name in settings.args}
    base = load_pretrained(model_folder(settings.model)) if checkpoints and settings.args.get("lora_r") else None
    for checkpoint in checkpoints:
        try:
            return GRPOTrainer.resume(checkpoint, task, world=world, base=base, **changes)
        except TaskError:  # a problem of the data, not of a checkpoint
            raise
        except (OSError, ValueError, TypeError) as error:  # TypeError: settings of another version of GRPOConfig
            warnings.warn(f"{checkpoint.name} is skipped: {error}", stacklevel=2)
    if checkpoints:
        raise ValueError(f"No checkpoint in {folder.path / CHECKPOINTS} can be read. --overwrite starts again.")
    return None


def _name_of(model: str) -> str:
    """The model's name for run.json, valid in any current folder."""
    return model if model in MADE_BY else os.path.abspath(model)


def new_trainer(settings: RunSettings, task: Task, world: World) -> GRPOTrainer:
    source, args = model_folder(settings.model), GRPOConfig(**settings.args)
    tokenizer = load_tokenizer(source)
    if world.rank == 0:  # before the model takes memory
        config = Qwen3Config.from_dict(read_json(source, "config.json"))
        longest = longest_prompt(tokenizer, task, args, settings.eval_problems)
        check_room(config, args.max_completion_length or task.max_completion_length, *([one] for one in longest))
        say_what_it_takes(config, args, tokenizer, task, settings, world)
    config, params = load_pretrained(source)
    return GRPOTrainer(config, params, tokenizer, task, args, world)


def say_what_it_takes(
    config: Qwen3Config, args: GRPOConfig, tokenizer: Tokenizer, task: Task, settings: RunSettings, world: World
) -> None:
    """Print the memory that the run will need, and warn if the machine has less, or if bfloat16 is slow."""
    if settings.chat:
        print(in_words(task, args), flush=True)
    _, prompt = longest_prompt(tokenizer, task, args, settings.eval_problems)
    longest = args.max_completion_length or task.max_completion_length
    base = read_json(model_folder(settings.model), "config.json") if args.lora_r else {}
    parts = estimate_memory(config, args, len(prompt), longest, world.size, base.get("quantization"))
    total = parts.pop("total")
    largest = sorted(parts, key=parts.get, reverse=True)[:4]
    shown = ", ".join(f"{part} {in_bytes(parts[part])}" for part in largest)
    each = " in each process" if world.size > 1 else ""
    through = "" if args.backend == "mlx" else f"; estimated for MLX, and {args.backend} uses a different amount"
    print(f"Memory: about {in_bytes(total)} at most{each} ({shown}){through}", flush=True)
    here = machine_memory()
    if total > here:
        ways = {
            "--gradient-checkpointing": not args.gradient_checkpointing,
            "--lora-r 8": not args.lora_r,
            "--optim adafactor": args.optim != "adafactor" and not args.lora_r,
            "a smaller --per-device-train-batch-size with more --gradient-accumulation-steps": True,
        }
        words = ", ".join(way for way, helps in ways.items() if helps)
        warnings.warn(
            f"This machine has {in_bytes(here)} of memory: the run may be killed. To use less, try {words}.",
            stacklevel=2,
        )
    if args.bf16 and mx.default_device() == mx.cpu:
        warnings.warn(
            "On a CPU bfloat16 takes about five times as long as float32, and saves little memory; leave --dtype out.",
            stacklevel=2,
        )


def _say_how_fast(trainer: GRPOTrainer, before: RunSettings, settings: RunSettings) -> None:
    """Print the learning rate at which a falling schedule continues, if the length of the run has changed."""
    args, step = trainer.args, trainer.step
    if before.max_steps == settings.max_steps or not 0 < step < settings.max_steps:
        return
    old = GRPOConfig(**before.args)
    last = scheduled_rate(
        old.learning_rate, old.lr_scheduler_type, step - 1, max(before.max_steps, step), old.warmup_steps
    )
    if (now := trainer.learning_rate(settings.max_steps)) != last:
        print(
            f"Learning rate: {args.lr_scheduler_type} over all {settings.max_steps} steps, so it continues at "
            f"{now:.3g} (the previous step had {last:.3g})",
            flush=True,
        )


def faster_learner(trainer: GRPOTrainer, given: Mapping[str, Any]) -> str:
    """The line to print once before a run, or an empty text where MLX is as fast or nothing was measured.

    Args:
        trainer: of the run, before its first step.
        given: the settings that the user gave. A backend among them is the user's choice, and nothing is said.
    """
    args, parameters = trainer.args, count_total_parameters(trainer.config)
    fits = args.backend == "mlx" and not (args.lora_r or args.bf16 or args.gradient_checkpointing)
    here = mx.default_device() == mx.cpu and platform.machine() in ("x86_64", "AMD64") and trainer.world.size == 1
    measured = MEASURED[0] <= parameters <= MEASURED[1] and trainer.policy.dtype == mx.float32
    if "backend" in given or not (fits and here and measured) or find_spec("torch") is None:
        return ""
    return (
        f"Speed: with --backend torch a step of a model of {parameters / 1e6:.1f} million parameters took {SAVED} less "
        "time on two cores; the run is the same to rounding."
    )


def named_task(options: argparse.Namespace) -> tuple[str | None, dict[str, Any] | None]:
    """The task's name and arguments from the command line, with absolute paths; None if not given.

    From then on your own tasks in the current folder can be imported, as with `python -m`.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name, args = values.task(options.task) if options.task else (None, {})
    args |= dict(options.task_args or [])
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
    for_chats = settings.args["chat_template_kwargs"] and not settings.chat
    if for_chats and isinstance(held_out_problems(task, 1)[0].prompt, str):
        why = "--no-chat is given"
        if not can:
            lacks = f"{type(task).__name__} has no in_chat(*, thinking=False)"
            why = lacks if tokenizer.chat_template else f"{settings.model} has no chat template"
        raise ValueError(
            "--enable-thinking and --chat-template-kwargs are for chats, but the prompts of this run are texts: "
            f"{why}. Leave them out."
        )
    return settings


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


def with_room(settings: RunSettings, task: Task, tokenizer: Tokenizer, config: Qwen3Config) -> RunSettings:
    """The settings with answers short enough for the model's positions (`length_with_room`)."""
    length = length_with_room(config, tokenizer, task, GRPOConfig(**settings.args), settings.eval_problems)
    return replace(settings, args=settings.args | {"max_completion_length": length})


def in_words(task: Task, args: GRPOConfig) -> str:
    """A line that describes how a task is asked as a chat."""
    length = args.max_completion_length or task.max_completion_length
    thinks = "thinking first" if task.chat_template_kwargs["enable_thinking"] else "without thinking"
    return (
        f"Task: {task.name}, by the chat template of the model's folder, {thinks}, at most {length} tokens per answer"
    )
