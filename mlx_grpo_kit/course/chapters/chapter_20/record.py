"""Train the stored runs of chapter 20 again, and write their curves and groups: about two minutes on one core.

python -m mlx_grpo_kit.course.chapters.chapter_20.record
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_20.loop import GROUP, Parts, train
from mlx_grpo_kit.course.chapters.chapter_20.museum import BUGS, CURVES, GROUPS, MYSTERIES
from mlx_grpo_kit.course.chapters.chapter_20.pictures.symptoms import PANELS
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer

STEPS, GROUPS_KEPT = 60, 2
KEPT = (
    *PANELS, "reward_std", "clip_ratio/region_mean", "completions/max_length",
)  # fmt: skip


def steps_of(parts: Parts, seed: int) -> list[Any]:
    """Run the loop; return the record of each step."""
    config, params = load_pretrained(TINY)
    return [*train(config, params, load_tokenizer(TINY), STEPS, parts, seed)]


def curves_of(steps: Sequence[Any]) -> dict[str, list[float | None]]:
    """The stored metrics of a run, rounded to three digits and four decimals; None for a value that is not finite."""
    return {name: [_rounded(step.metrics[name]) for step in steps] for name in KEPT}


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
    runs = {"healthy": (Parts(), 0)} | {letter: (bug.parts(), 0) for letter, bug in BUGS.items()}
    for name, (letter, seed) in MYSTERIES.items():
        runs[name] = (BUGS[letter].parts() if letter in BUGS else Parts(), seed)
    curves, groups = {}, {}
    for name, (parts, seed) in runs.items():
        steps = steps_of(parts, seed)
        curves[name] = curves_of(steps)
        if name in MYSTERIES:
            groups[name] = groups_of(steps)
        print(name, flush=True)
    for name, content in ((CURVES, curves), (GROUPS, groups)):
        Path(__file__).with_name(name).write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
