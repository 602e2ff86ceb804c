"""A short run of GRPO whose parts are arguments: for comparisons of two versions."""

from __future__ import annotations

from collections.abc import Callable

import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_24.training import model, task
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem

NUM_QUESTIONS, GROUP, RATE = 16, 8, 1e-3


def exact(problem: Problem, text: str) -> float:
    """1 for the right sum, else 0."""
    return float(text == problem.answer)


def short_run(
    seed: int,
    sample: Callable,
    advantages: Callable,
    gradient: Callable,
    reward: Callable[[Problem, str], float] = exact,
    steps: int = 8,
    two_updates: Callable | None = None,
) -> dict[str, mx.array]:
    """The parameters of the shipped model after some steps of GRPO with these parts; the rate falls to 0.

    Args:
        seed: of the questions and the draws.
        sample, advantages, gradient: as in the exercises 24.1, 24.3 and 24.4.
        reward: (problem, text) -> a number.
        steps: of 128 answers each.
        two_updates: as in exercise 24.10, instead of one update with `gradient`; with a clip of 0.2 and without a KL.
    """
    (config, params), tokenizer, rng = model(), load_tokenizer(TINY), np.random.default_rng(seed)
    adamw = optim.AdamW(RATE, betas=[0.9, 0.999], weight_decay=0, bias_correction=True)

    def update(grads: dict, params: dict) -> dict:
        grads, _ = optim.clip_grad_norm({name: mx.array(grad) for name, grad in grads.items()}, 1.0)
        params = adamw.apply_gradients(grads, params)
        mx.eval(params, adamw.state)
        return params

    start = params
    for step in range(steps):
        problems = [each for each in task().sample(rng, NUM_QUESTIONS) for _ in range(GROUP)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        draw, longest = int(rng.integers(2**31)), task().max_completion_length
        completions = sample(config, params, prompts, tokenizer.eos_token_ids, longest, draw)
        completions = [[*map(int, each)] for each in completions]  # in case they are NumPy's integers
        rewards = [reward(*pair) for pair in zip(problems, map(tokenizer.decode, completions), strict=True)]
        batch = prompts, completions, advantages(rewards, GROUP)
        adamw.learning_rate = RATE * (1 - step / steps)
        if two_updates is None:
            params = update(gradient(config, params, *batch), params)
        else:
            params = two_updates(config, params, *batch, update, start, 0.2, 0.0)
    return params
