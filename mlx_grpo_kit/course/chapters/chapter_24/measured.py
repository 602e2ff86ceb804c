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

import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_24.training import held_out_accuracy, model, task
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem

STORED = Path(__file__).with_name("measured.json")
SEEDS, STEPS, NUM_QUESTIONS, GROUP, RATE = range(5), 40, 16, 8, 1e-3
LONGER = 160  # steps of the second look at the baseline


def exact(problem: Problem, text: str) -> float:
    """1 for the right sum, else 0."""
    return float(text == problem.answer)


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


def accuracy(seed: int, advantages: Callable, gradient: Callable, reward: Callable, steps: int = STEPS) -> float:
    """Held-out accuracy after `steps` steps of a loop with these parts; the rate falls to 0."""
    from mlx_grpo_kit.course.chapters.chapter_24.exercises import sample

    (config, params), tokenizer, rng = model(), load_tokenizer(TINY), np.random.default_rng(seed)
    adamw = optim.AdamW(RATE, betas=[0.9, 0.999], weight_decay=0, bias_correction=True)
    for step in range(steps):
        problems = [each for each in task().sample(rng, NUM_QUESTIONS) for _ in range(GROUP)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        completions = sample(config, params, prompts, tokenizer.eos_token_ids, 4, int(rng.integers(2**31)))
        rewards = [reward(*pair) for pair in zip(problems, map(tokenizer.decode, completions), strict=True)]
        grads = gradient(config, params, prompts, completions, advantages(rewards, GROUP))
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        adamw.learning_rate = RATE * (1 - step / steps)
        params = adamw.apply_gradients(grads, params)
        mx.eval(params, adamw.state)
    return held_out_accuracy(params)


def main() -> None:
    """Measure everything and write it down."""
    from mlx_grpo_kit.course.chapters.chapter_24.exercises import advantages, gradient
    from mlx_grpo_kit.course.chapters.chapter_24.paired import paired

    plain = cache(lambda seed: accuracy(seed, advantages, gradient, exact))
    changes = {
        "loss": (plain, lambda seed: accuracy(seed, advantages, mean_of_means, exact)),
        "baseline": (plain, lambda seed: accuracy(seed, rewards_only, gradient, exact)),
        "task": (plain, lambda seed: accuracy(seed, advantages, gradient, digits)),
        "baseline, longer": (
            lambda seed: accuracy(seed, advantages, gradient, exact, LONGER),
            lambda seed: accuracy(seed, rewards_only, gradient, exact, LONGER),
        ),
    }
    reports = {}
    for name, versions in changes.items():
        print(f"-- {name}", flush=True)
        reports[name] = paired(*versions, SEEDS)
        STORED.write_text(json.dumps(reports).replace("}, ", "},\n ") + "\n")


if __name__ == "__main__":
    main()
