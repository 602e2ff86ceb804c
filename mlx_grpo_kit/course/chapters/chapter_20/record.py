"""Train the stored runs of chapter 20 again, and write their curves and groups: about four minutes on one core.

python -m mlx_grpo_kit.course.chapters.chapter_20.record
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_grpo_kit.assets import TINY, TINY_STEPS
from mlx_grpo_kit.course.chapters.chapter_20.loop import GROUP, Functions, adamw, train
from mlx_grpo_kit.course.chapters.chapter_20.museum import BUGS, CURVES, GROUPS, LONG, MYSTERIES
from mlx_grpo_kit.course.chapters.chapter_20.pictures.symptoms import PANELS
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import LongSum

STEPS, GROUPS_KEPT = 60, 2
LONG_SEEDS, LONG_STEPS, LONG_KEPT = (0, 1, 2), 40, ("accuracy", "completions/mean_length", "completions/clipped_ratio")
KEPT = (
    *PANELS, "reward_std", "clip_ratio/region_mean", "completions/max_length",
)  # fmt: skip


def steps_of(functions: Functions, seed: int) -> list[Any]:
    """Run the loop; return the record of each step."""
    config, params = load_pretrained(TINY)
    return [*train(config, params, load_tokenizer(TINY), STEPS, functions, seed)]


def long_steps_of(functions: Functions, seed: int, max_steps: int = LONG_STEPS) -> list[Any]:
    """Run the loop on long sums, in smaller steps and batches; return the record of each step."""
    config, params = load_pretrained(TINY_STEPS)
    task = LongSum()
    functions = replace(functions, reward=lambda problem, text: float(task.is_correct(problem, text)))
    settings = {"task": task, "num_prompts": 8, "optimizer": adamw(1e-4)}
    return [*train(config, params, load_tokenizer(TINY_STEPS), max_steps, functions, seed, **settings)]


def curves_of(steps: Sequence[Any], kept: Sequence[str] = KEPT) -> dict[str, list[float | None]]:
    """The stored metrics of a run, rounded to three digits and four decimals; None for a value that is not finite."""
    return {name: [_rounded(step.metrics[name]) for step in steps] for name in kept}


def groups_of(steps: Sequence[Any]) -> list[list[list[Any]]]:
    """The first groups of each step, each as prompt, texts, rewards, advantages."""
    return [
        [_group(step.completions[start : start + GROUP]) for start in range(0, GROUPS_KEPT * GROUP, GROUP)]
        for step in steps
    ]


def _group(completions: Sequence[Any]) -> list[Any]:
    columns = zip(*((one.completion, one.reward, round(one.advantage, 3)) for one in completions), strict=True)
    return [completions[0].prompt, *map(list, columns)]


def _rounded(value: float) -> float | None:
    return round(float(f"{value:.3g}"), 4) if math.isfinite(value) else None


def main() -> None:
    runs = {"healthy": (Functions(), 0)} | {letter: (bug.functions(), 0) for letter, bug in BUGS.items()}
    for name, (letter, seed) in MYSTERIES.items():
        runs[name] = (BUGS[letter].functions() if letter in BUGS else Functions(), seed)
    curves, groups = {}, {}
    for name, (functions, seed) in runs.items():
        steps = steps_of(functions, seed)
        curves[name] = curves_of(steps)
        if name in MYSTERIES:
            groups[name] = groups_of(steps)
        print(name, flush=True)
    long = {}
    for name, functions in (("healthy", Functions()), ("M", BUGS["M"].functions())):
        by_seed = [curves_of(long_steps_of(functions, seed), LONG_KEPT) for seed in LONG_SEEDS]
        long[name] = {metric: [each[metric] for each in by_seed] for metric in LONG_KEPT}
        print(f"long sums: {name}", flush=True)
    for name, content in ((CURVES, curves), (GROUPS, groups), (LONG, long)):
        Path(__file__).with_name(name).write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
