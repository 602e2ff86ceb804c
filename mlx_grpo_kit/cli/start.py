"""The start of a run: its settings and its trainer, from the command line or from its folder."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from mlx_grpo_kit.cli.faster_learner import faster_learner
from mlx_grpo_kit.cli.run_task import (
    check_data,
    fitted,
    hashes_of_data,
    in_words,
    named_task,
    put_as_chat,
    steps_of,
    task_of,
    with_room,
)
from mlx_grpo_kit.files import read_json
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, estimate_memory
from mlx_grpo_kit.grpo.config import MAY_CHANGE
from mlx_grpo_kit.grpo.memory import in_bytes, machine_memory
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.prompts import check_room, longest_prompt
from mlx_grpo_kit.grpo.recipe import MADE_BY, TINY_NAME, default_args, model_folder
from mlx_grpo_kit.grpo.schedule import scheduled_rate
from mlx_grpo_kit.grpo.sharding import check_sharded
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer
from mlx_grpo_kit.qwen3.adapter_base import bases_of
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runs.folder import BEST, CHECKPOINTS, POLICY, SETTINGS, RunFolder, RunSettings
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Task, TaskError


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
    settings = with_room(fitted(settings, task), task, tokenizer, config.max_position_embeddings)
    trainer = new_trainer(settings, task, world)
    if world.rank == 0 and (words := faster_learner(trainer, args)):
        print(words, flush=True)
    return settings, trainer


def resumed(
    options: argparse.Namespace, args: Mapping[str, Any], folder: RunFolder, world: World
) -> tuple[RunSettings, GRPOTrainer]:
    """The run in the folder, at its newest valid checkpoint. Every process reads it; the first prepares it."""
    settings = folder.read_settings()
    model = options.model and _name_of(options.model)
    changes = {name: value for name, value in args.items() if name in MAY_CHANGE}
    task_name, task_args = named_task(options)
    given = {"model": model, "task": task_name, "task_args": task_args, "chat": options.chat}
    fixed = {**given, **{name: args[name] for name in args.keys() - changes.keys()}}
    saved_args = asdict(GRPOConfig(**settings.args))
    for name, value in fixed.items():
        of_the_run = saved_args[name] if name in args else getattr(settings, name)
        value, of_the_run = (list(each) if isinstance(each, tuple) else each for each in (value, of_the_run))
        if value not in (None, of_the_run):
            option = name.replace("_", "-")
            if name == "bf16":
                option, value, of_the_run = (
                    "dtype",
                    *("bfloat16" if each else "float32" for each in (value, of_the_run)),
                )
            raise ValueError(
                f"--{option} {value} differs from the setting of the run in {folder.path} ({of_the_run}), and cannot "
                "change during a run. Leave it out, or start another run with another --output."
            )
    may_change = ("max_steps", "save_every", "eval_every", "eval_problems", "log_completions", "keep_best")
    given = {name: getattr(options, name) for name in may_change}
    given = {name: value for name, value in given.items() if value is not None}
    before = settings
    settings = replace(settings, **given, args=asdict(GRPOConfig(**(settings.args | changes))))
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
            trainer = GRPOTrainer.resume(checkpoint, task, world=world, base=base, **changes)
            if asdict(trainer.args) != settings.args:
                raise ValueError(f"{checkpoint} belongs to a run with other settings than those in {SETTINGS}.")
        except TaskError:  # a problem of the data, not of a checkpoint
            raise
        except (OSError, ValueError, TypeError) as error:  # TypeError: settings of another version of GRPOConfig
            warnings.warn(f"{checkpoint.name} is skipped: {error}", stacklevel=2)
            continue
        return trainer
    if checkpoints:
        raise ValueError(f"No checkpoint in {folder.path / CHECKPOINTS} can be read. --overwrite starts again.")
    return None


def _name_of(model: str) -> str:
    """The model's name for run.json, valid in any current folder."""
    return model if model in MADE_BY else os.path.abspath(model)


def new_trainer(settings: RunSettings, task: Task, world: World) -> GRPOTrainer:
    source, args = model_folder(settings.model), GRPOConfig(**settings.args)
    if world.sharded:
        check_sharded(args, world.size)
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
    parts = estimate_memory(
        config, args, len(prompt), longest, world.size, base.get("quantization"), sharded=world.sharded
    )
    total = parts.pop("total")
    largest = sorted(parts, key=parts.get, reverse=True)[:4]
    shown = ", ".join(f"{part} {in_bytes(parts[part])}" for part in largest)
    each = " in each process" if world.size > 1 else ""
    through = "" if args.backend == "mlx" else f"; estimated for MLX, and {args.backend} uses a different amount"
    print(f"Memory: about {in_bytes(total)} at most{each} ({shown}){through}", flush=True)
    here = machine_memory()
    if total > here:
        ways = {
            "more processes": world.sharded,
            "--gradient-checkpointing": not (args.gradient_checkpointing or world.sharded),
            "--lora-r 8": not (args.lora_r or world.sharded),
            "--optim adafactor": args.optim != "adafactor" and not (args.lora_r or world.sharded),
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
