"""Three changes of the loop, each on five seeds: what was measured once, and the program that measured it.

    python -m mlx_grpo_kit.course.chapters.chapter_24.measured

repeats the measurement, which takes about ten minutes, and writes `measured.json` beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.chapters.chapter_24.short_run import exact, short_run
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem

STORED = Path(__file__).with_name("measured.json")
SEEDS, STEPS = range(5), 40
LONGER = 160  # steps of the second look at the baseline


def digits(problem: Problem, text: str) -> float:
    """The share of digits that are right, of an answer of the right length."""
    right = sum(map(str.__eq__, text, problem.answer)) / len(problem.answer)
    return right if len(text) == len(problem.answer) else 0.0


def rewards_only(rewards: list[float], group_size: int) -> list[float]:
    """No baseline at all."""
    return [*rewards]


def mean_of_means(config: Any, params: dict, prompts: list, completions: list, advantages: list[float]) -> dict:
    """The gradient of the paper's GRPO: a mean over answers of the mean over the tokens of each."""
    from mlx_grpo_kit.course.chapters.chapter_24.exercises import completion_logps

    def loss(params: dict) -> mx.array:
        logps, mask = completion_logps(config, params, prompts, completions)
        ratio = mx.exp(logps - mx.stop_gradient(logps))
        of_answers = (ratio * mask).sum(axis=1) / mask.sum(axis=1)
        return -(of_answers * mx.array(advantages)).mean()

    return mx.grad(loss)(params)


def trained(seed: int, advantages: Callable, gradient: Callable, reward: Callable, steps: int = STEPS) -> dict:
    """The parameters after `steps` steps of a loop with these parts and the kit's sampler."""
    from mlx_grpo_kit.course.chapters.chapter_24.exercises import sample

    return short_run(seed, sample, advantages, gradient, reward, steps)


def main() -> None:
    """Measure everything and write it down."""
    from mlx_grpo_kit.course.chapters.chapter_24.exercises import advantages, gradient
    from mlx_grpo_kit.course.chapters.chapter_24.paired import paired

    plain = cache(lambda seed: trained(seed, advantages, gradient, exact))
    changes = {
        "loss": (plain, lambda seed: trained(seed, advantages, mean_of_means, exact)),
        "baseline": (plain, lambda seed: trained(seed, rewards_only, gradient, exact)),
        "task": (plain, lambda seed: trained(seed, advantages, gradient, digits)),
        "baseline, longer": (
            lambda seed: trained(seed, advantages, gradient, exact, LONGER),
            lambda seed: trained(seed, rewards_only, gradient, exact, LONGER),
        ),
    }
    reports = {}
    for name, versions in changes.items():
        print(f"-- {name}", flush=True)
        reports[name] = paired(*versions, SEEDS)
        STORED.write_text(json.dumps(reports).replace("}, ", "},\n ") + "\n")


if __name__ == "__main__":
    main()
