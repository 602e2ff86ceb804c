"""A survey before training: which of several tasks can a model do sometimes?

    found = survey(config, params, tokenizer, {"sums": Addition(max_operand=9), "gcd": GymTask("gcd")})
    print(found)

A policy learns from a group of completions only if their rewards differ. In the terminal: `survey --task T,T`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.evaluation import Evaluation, evaluate
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.prompts import check_room, length_with_room, longest_prompt
from mlx_grpo_kit.grpo.rewards import TaskRewards
from mlx_grpo_kit.grpo.trainer import task_sampler
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks.catalogue import validate_task
from mlx_grpo_kit.tasks.chat import InChat
from mlx_grpo_kit.tasks.task import Task
from mlx_grpo_kit.tasks.tools import environment_rewards


def evaluate_task(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    task: Task,
    args: GRPOConfig,
    num_problems: int,
    seed: int,
    num_samples: int,
    temperature: float,
) -> Evaluation:
    """`evaluate` for a model and a task, with the task's own rewards.

    Raises ValueError, and TaskError for a prompt that cannot be encoded or is too long for the model.
    """
    longest = args.max_completion_length or task.max_completion_length
    check_room(config, longest, *([one] for one in longest_prompt(tokenizer, task, args, num_problems)))
    sampler = task_sampler(tokenizer, task, args)
    rewards = TaskRewards([*task.reward_funcs, *environment_rewards(task)], args, sampler.max_completion_length)
    policy = Policy.begin(config, params, args)
    return evaluate(policy, sampler, rewards, num_problems, seed, num_samples, temperature)


class Survey(dict[str, "Evaluation | str"]):
    """The `Evaluation` of each task by its name, or the reason why there is none. `print` shows a table."""

    def rows(self) -> list[dict[str, Any]]:
        """The numbers as JSON: means, and standard errors over problems as `NAME_error`; None where there is none."""
        return [{"task": name, **_as_json(each)} for name, each in self.items()]

    def table(self) -> Group:
        """The table for a `rich` console: n problems of each task, means and standard errors; reasons are below it."""
        measured = {name: each for name, each in self.items() if not isinstance(each, str)}
        names = list(dict.fromkeys(key for each in measured.values() for key in each.estimates))
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("task", overflow="fold")
        for heading in ("n", *names, "tokens"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, each in self.items():
            if name not in measured:
                table.add_row(Text(name))
                continue
            cells = [_cell(*each.estimates[key]) if key in each.estimates else "" for key in names]
            table.add_row(Text(name), str(len(each.correct)), *cells, f"{each.lengths.mean():.0f}")
        reasons = [Text(f"{name}: {each}") for name, each in self.items() if name not in measured]
        return Group(table, *reasons)

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=120, force_terminal=False, force_jupyter=False)
        console.print(self.table())
        return console.file.getvalue().strip("\n")

    __repr__ = __str__


def survey(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    tasks: Mapping[str, Task],
    args: GRPOConfig | None = None,
    *,
    num_problems: int = 32,
    num_samples: int = 8,
    seed: int = 0,
    temperature: float = 1.0,
    chat: bool = True,
) -> Survey:
    """Let a model answer held-out problems of several tasks, each `num_samples` times.

    If the model has too few positions for
    a task's `max_completion_length`, completions are shorter, with a warning.

    Args:
        tasks: {name: task}.
        chat: ask a task as a chat (`in_chat`) if it can be and the tokenizer has a chat template.
        args: `max_completion_length`, `stop_strings` and settings of the chat template; the others have no effect.

    A task that fails does not end the survey. Its reason is the words of the error.
    """
    found, args = Survey(), args or GRPOConfig()
    for name, task in tasks.items():
        try:
            if chat and tokenizer.chat_template and hasattr(task, "in_chat") and not isinstance(task, InChat):
                task = task.in_chat()
            validate_task(task)
            length = length_with_room(config, tokenizer, task, args, num_problems)
            own = replace(args, max_completion_length=length)
            found[name] = evaluate_task(
                config, params, tokenizer, task, own, num_problems, seed, num_samples, temperature
            )
        except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
            found[name] = " ".join(str(error).split())
    return found


def _cell(mean: float, error: float) -> str:
    return "" if math.isnan(mean) else f"{mean:.2f}" + ("" if math.isnan(error) else f" \u00b1 {error:.2f}")


def _as_json(found: Evaluation | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"reason": found}
    numbers = {
        name: number
        for name, pair in found.estimates.items()
        for name, number in zip((name, f"{name}_error"), pair, strict=True)
    }
    numbers |= {"tokens": float(found.lengths.mean()), "cut_off": float(1 - found.finished.mean())}
    return {"num_problems": len(found.correct)} | {
        key: value if math.isfinite(value) else None for key, value in numbers.items()
    }
