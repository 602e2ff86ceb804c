"""The `survey` command: which of several tasks can a model do sometimes?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlx_grpo_kit.cli.evaluate import check_output, settings_of
from mlx_grpo_kit.cli.start import put_as_chat, task_of
from mlx_grpo_kit.cli.terminal import escaped
from mlx_grpo_kit.files import write_file
from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.grpo.task_survey import Survey, survey
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx

Model = tuple[Qwen3Config, Mapping[str, mx.array]]


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit status: 2 if no task could be measured."""
    if options.output:
        check_output(Path(options.output))
    folder = model_folder(options.model)
    tokenizer, model = load_tokenizer(folder), load_pretrained(folder)
    found, console = Survey(), Console(highlight=False)
    name, each = Path(options.model).name, f"{options.num_samples} completions of each"
    title = f"{name}: {options.num_problems} problems of each task, {each}, temperature {options.temperature:g}"
    console.print(title, markup=False)
    try:
        with console.status("") as status:
            for name in dict.fromkeys(each for some in options.task for each in some):
                status.update(Text(name))
                found |= _measured(name, options, tokenizer, model)
    finally:  # Ctrl-C shows the tasks that are measured
        if found:
            console.print(found.table())
    console.print("\u00b1: standard error over problems. A group teaches only if its rewards differ (mixed).")
    if options.output:
        content = {
            "model": options.model, "num_samples": options.num_samples, "temperature": options.temperature,
            "seed": options.seed, "tasks": found.rows(),
        }  # fmt: skip
        write_file(Path(options.output), (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
    return 2 if all(isinstance(each, str) for each in found.values()) else 0


def _measured(name: str, options: argparse.Namespace, tokenizer: Tokenizer, model: Model) -> Survey:
    own = argparse.Namespace(**vars(options) | {"task": name, "task_args": None, "data": None})
    try:
        settings = put_as_chat(settings_of(own), tokenizer, options.chat)
        tasks, args = {name: task_of(settings)}, GRPOConfig(**settings.args)
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        return Survey({name: escaped(" ".join(str(error).split()))})
    numbers = {"num_problems": options.num_problems, "num_samples": options.num_samples, "seed": options.seed}
    return survey(*model, tokenizer, tasks, args, **numbers, temperature=options.temperature, chat=False)
