"""The end of a reader's own file: `my_code("my_grpo.py", "24")` writes this function after the answers."""

import argparse
import itertools
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

from mlx_grpo_kit import assets
from mlx_grpo_kit.course.chapters.chapter_24.training import held_out_accuracy
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition


def learn_addition(train):
    """Run a training loop, print its exams, and save the curve as a picture and as numbers in the current folder."""
    parser = argparse.ArgumentParser(description="Train the tiny model with your own GRPO.")
    parser.add_argument("--steps", type=int, default=1000, help="the most steps (default: until the loop ends)")
    parser.add_argument("--seconds", type=float, default=120, help="stop after this time (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of the run (default: 0)")
    wish = parser.parse_args()
    (config, params), tokenizer, task = load_pretrained(assets.TINY), load_tokenizer(assets.TINY), Addition()
    step, curve = 0, {0: held_out_accuracy(params)}
    print(f"before training: {curve[0]:.1%} of 1,003 held-out sums right", flush=True)
    began, run = time.monotonic(), train(config, params, tokenizer, task, wish.seed)
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
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axis = figure.subplots()
    axis.plot(list(curve), [100 * each for each in curve.values()])
    axis.set(xlabel="step", ylabel="held-out sums right, %", title="your own GRPO")
    picture, numbers = (Path(sys.argv[0]).stem + end for end in (".png", ".csv"))
    figure.savefig(picture)
    lines = ["step,accuracy", *(f"{step},{accuracy:.4f}" for step, accuracy in curve.items())]
    Path(numbers).write_text("\n".join(lines) + "\n")
    print(f"The curve is in {picture}, its numbers are in {numbers}.")
