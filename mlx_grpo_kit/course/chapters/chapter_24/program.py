"""The end of a reader's own file: `my_code("my_grpo.py", "24")` writes these functions after the answers."""

import argparse
import itertools
import sys
import time
from pathlib import Path

import mlx.optimizers as optim
import numpy as np
from matplotlib.figure import Figure

from mlx_grpo_kit import assets
from mlx_grpo_kit.course.chapters.chapter_24.training import held_out_accuracy
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition


def learn_addition(train, parts):
    """Run a training loop, print its exams, and save the curve as a picture and as numbers in the current folder."""
    can_reuse = {"24.1", "24.3", "24.10"} <= parts.keys()
    parser = argparse.ArgumentParser(description="Train the tiny model with your own GRPO.")
    parser.add_argument("--steps", type=int, default=1000, help="the most steps (default: until the loop ends)")
    parser.add_argument("--seconds", type=float, default=120, help="stop after this time (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of the run (default: 0)")
    parser.add_argument(
        "--updates",
        type=int,
        choices=(1, 2),
        default=1 + can_reuse,
        help="of the parameters per batch; 1 runs `train` as it is, 2 runs `in_two_updates`",
    )
    wish = parser.parse_args()
    if wish.updates == 2 and not can_reuse:
        parser.error("two updates per batch need 24.1, 24.3 and 24.10: pass them, then call my_code again.")
    (config, params), tokenizer, task = load_pretrained(assets.TINY), load_tokenizer(assets.TINY), Addition()
    step, curve = 0, {0: held_out_accuracy(params)}
    print(f"before training: {curve[0]:.1%} of 1,003 held-out sums right", flush=True)
    print(f"updates per batch: {wish.updates}", flush=True)
    more = [parts[id] for id in ("24.1", "24.3", "24.10")] if wish.updates == 2 else []
    loop = in_two_updates if wish.updates == 2 else train
    began, run = time.monotonic(), loop(config, params, tokenizer, task, wish.seed, *more)
    for step, params in enumerate(itertools.islice(run, wish.steps), start=1):
        if step % 20 == 0:
            curve[step] = held_out_accuracy(params)
            print(f"step {step:4}, {time.monotonic() - began:3.0f} seconds: {curve[step]:.1%}", flush=True)
        if time.monotonic() - began > wish.seconds:
            break
    if step == 0:
        sys.exit("`train` has to yield the parameters after each step, and it yielded nothing.")
    if step not in curve:
        curve[step] = held_out_accuracy(params)
        print(f"step {step:4}, {time.monotonic() - began:3.0f} seconds: {curve[step]:.1%}")
    save(curve)


def in_two_updates(config, params, tokenizer, task, seed, sample, advantages, two_updates):
    """Yield the parameters after each step, like `train`, with your 24.10 in the place of gradient and update."""
    steps, num_questions, group_size, peak, epsilon, beta = 160, 16, 8, 1e-3, 0.2, 0.001
    rng, start = np.random.default_rng(seed), params
    adamw = optim.AdamW(peak, betas=[0.9, 0.999], weight_decay=0, bias_correction=True)

    def update(grads, params):
        grads, _ = optim.clip_grad_norm({name: mx.array(grad) for name, grad in grads.items()}, 1.0)
        params = adamw.apply_gradients(grads, params)
        mx.eval(params, adamw.state)
        return params

    for step in range(steps):
        problems = [each for each in task.sample(rng, num_questions) for _ in range(group_size)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        draw, longest = int(rng.integers(2**31)), task.max_completion_length
        completions = sample(config, params, prompts, tokenizer.eos_token_ids, longest, draw)
        completions = [[*map(int, each)] for each in completions]
        texts = map(tokenizer.decode, completions)
        rewards = [float(task.is_correct(*pair)) for pair in zip(problems, texts, strict=True)]
        pushes = [*map(float, advantages(rewards, group_size))]
        adamw.learning_rate = peak * (1 - step / steps)
        params = two_updates(config, params, prompts, completions, pushes, update, start, epsilon, beta)
        yield params


def save(curve):
    """Save the accuracies, by step, as a picture and as numbers, named after the program."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axis = figure.subplots()
    axis.plot(list(curve), [100 * each for each in curve.values()])
    axis.set(xlabel="step", ylabel="held-out sums right, %", title="your own GRPO")
    picture, numbers = (Path(sys.argv[0]).stem + end for end in (".png", ".csv"))
    figure.savefig(picture)
    lines = ["step,accuracy", *(f"{step},{accuracy:.4f}" for step, accuracy in curve.items())]
    Path(numbers).write_text("\n".join(lines) + "\n")
    print(f"The curve is in {picture}, its numbers are in {numbers}.")
