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
) -> dict[str, mx.array]:
    """The parameters of the shipped model after some steps of GRPO with these parts; the rate falls to 0.

    Args:
        seed: of the questions and the draws.
        sample, advantages, gradient: as in the exercises 24.1, 24.3 and 24.4.
        reward: (problem, text) -> a number.
        steps: of 128 answers each.
    """
    (config, params), tokenizer, rng = model(), load_tokenizer(TINY), np.random.default_rng(seed)
    adamw = optim.AdamW(RATE, betas=[0.9, 0.999], weight_decay=0, bias_correction=True)
    for step in range(steps):
        problems = [each for each in task().sample(rng, NUM_QUESTIONS) for _ in range(GROUP)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        draw, longest = int(rng.integers(2**31)), task().max_completion_length
        completions = sample(config, params, prompts, tokenizer.eos_token_ids, longest, draw)
        completions = [[*map(int, each)] for each in completions]  # in case they are NumPy's integers
        rewards = [reward(*pair) for pair in zip(problems, map(tokenizer.decode, completions), strict=True)]
        grads = gradient(config, params, prompts, completions, advantages(rewards, GROUP))
        grads, _ = optim.clip_grad_norm({name: mx.array(grad) for name, grad in grads.items()}, 1.0)
        adamw.learning_rate = RATE * (1 - step / steps)
        params = adamw.apply_gradients(grads, params)
        mx.eval(params, adamw.state)
    return params
