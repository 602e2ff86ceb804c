"""The `evaluate` command: measure how well a model answers the problems of a task or of a file."""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

from mlx_grpo_kit.cli.parser import EVAL_PROBLEMS
from mlx_grpo_kit.cli.start import fitted, named_task, put_as_chat, task_of, with_room
from mlx_grpo_kit.files import check_regular, write_file
from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.evaluation import Evaluation
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.grpo.task_survey import evaluate_task
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runs.folder import RunSettings
from mlx_grpo_kit.tasks import Task, validate_task


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit status. Raises ValueError, TypeError or OSError for bad input."""
    if options.output:
        check_output(Path(options.output))
    folder = model_folder(options.model)
    tokenizer = load_tokenizer(folder)
    settings = put_as_chat(settings_of(options), tokenizer, options.chat)
    task = task_of(settings)
    validate_task(task)
    if options.data and not options.held_out:
        _hold_out_all(task)
        settings = replace(settings, eval_problems=options.num_problems or task.num_held_out)
    config, params = load_pretrained(folder)
    settings = with_room(fitted(settings, task), task, tokenizer, config)
    args = GRPOConfig(**settings.args)
    began, numbers = time.monotonic(), (settings.eval_problems, options.seed, options.num_samples, options.temperature)
    found = evaluate_task(config, params, tokenizer, task, args, *numbers)
    seconds = time.monotonic() - began
    title = f"{Path(options.model).name} on {task.name}: {len(found.correct)} problems"
    each = f"{options.num_samples} completions each" if options.num_samples > 1 else "one completion each"
    print(f"{title}, {each} at temperature {options.temperature:g}, {seconds:.1f} s")
    print("\n".join(_lines(found)))
    if options.output:
        _write(Path(options.output), options, settings, found)
    return 0


def check_output(path: Path) -> None:
    if path.exists():
        check_regular(path)
    elif not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"--output {path}: there is no folder {path.absolute().parent}. Create it first.")


def settings_of(options: argparse.Namespace) -> RunSettings:
    task, task_args = named_task(options)
    args = {"max_completion_length": options.max_completion_length, "stop_strings": options.stop_strings}
    if options.enable_thinking is not None:
        args["chat_template_kwargs"] = {"enable_thinking": options.enable_thinking}
    return RunSettings(
        model=options.model,
        task=task or "addition",
        task_args=task_args or {},
        max_steps=1,
        save_every=1,
        eval_every=1,
        eval_problems=options.num_problems or EVAL_PROBLEMS,
        args=asdict(GRPOConfig(**args)),
    )


def _hold_out_all(task: Task) -> None:
    """Hold out every problem of a task that can list them."""
    if not hasattr(task, "all_problems"):
        raise ValueError(f"{type(task).__name__} cannot list its problems: it has no all_problems(). Add --held-out.")
    problems = [*task.all_problems()]
    task.held_out, task.num_held_out = lambda n: problems[:n], len(problems)


def _lines(found: Evaluation) -> list[str]:
    low, high = found.accuracy_interval
    names = {name.removeprefix("eval/"): value for name, value in found.metrics.items()}
    width = max(map(len, [*names, "tokens"])) + 2
    lines = [f"{name:{width}}{value:.3f}" for name, value in names.items()]
    lines[0] += f"   95% interval {low:.3f} to {high:.3f}"
    cut_off = 1 - found.finished.mean()
    return [
        *lines,
        f"{'tokens':{width}}{found.lengths.mean():.1f} per completion, {cut_off:.1%} of completions cut off",
    ]


def _write(path: Path, options: argparse.Namespace, settings: RunSettings, found: Evaluation) -> None:
    low, high = found.accuracy_interval
    metrics = {name: value if math.isfinite(value) else None for name, value in found.metrics.items()}
    content = {
        "model": options.model, "task": settings.task, "task_args": settings.task_args, "chat": settings.chat,
        "num_problems": len(found.correct), "num_samples": options.num_samples, "temperature": options.temperature,
        "seed": options.seed, "metrics": metrics, "accuracy_interval": [low, high],
        "correct": found.correct.sum(axis=1).tolist(),
    }  # fmt: skip
    write_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
