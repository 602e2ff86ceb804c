"""Runs with long answers: what a loss does to the length of right and of wrong answers, and the stored results.

    python -m mlx_grpo_kit.course.chapters.chapter_19.long_runs

repeats the measurement, which takes about six minutes on one core, and writes `long_runs.json` next to this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlx_grpo_kit.assets import TINY_STEPS
from mlx_grpo_kit.grpo import Completion, GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import LongSum

STORED = Path(__file__).with_name("long_runs.json")
SEEDS, STEPS, WINDOW = (0, 1, 2), 60, 10
"Seeds, steps of a run, and the number of steps whose answers form one point of a curve."

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "dapo, masked": {"loss_type": "dapo", "mask_truncated_completions": True},
}
"Settings by name. All have the same advantages: only the weight of a token differs, and masking sets it to 0."


class Answer(NamedTuple):
    """Measurements of a completion: is it right, how many tokens has it, did it end, and how often does it add 0?"""

    is_right: bool
    length: int
    ended: bool
    zeros: int


def run(name: str, seed: int, steps: int = STEPS) -> tuple[list[list[Answer]], float]:
    """Train `tiny-steps` on long sums; return the answers of every step, and the accuracy on 256 held-out sums."""
    config, params, tokenizer = _model()
    settings = {"learning_rate": 1e-4, "per_device_train_batch_size": 64, "seed": seed} | LOSSES[name]
    trainer = GRPOTrainer(config, params, tokenizer, LongSum(), GRPOConfig(**settings))
    ends = set(tokenizer.eos_token_ids)
    answers = [[_measured(each, ends) for each in step.completions] for step in trainer.train(steps)]
    return answers, trainer.evaluate(256)["eval/accuracy"]


def lengths_of(answers: Sequence[Sequence[Answer]]) -> dict[str, list[float]]:
    """Curves of a run, one number for every `WINDOW` steps: mean lengths, and the shares of right and cut answers."""
    curves: dict[str, list[float]] = {name: [] for name in ("right", "wrong", "share right", "share cut off")}
    for start in range(0, len(answers), WINDOW):
        found = [answer for step in answers[start : start + WINDOW] for answer in step]
        for name, chosen in (("right", True), ("wrong", False)):
            curves[name].append(_mean([each.length for each in found if each.is_right == chosen]))
        curves["share right"].append(_mean([each.is_right for each in found]))
        curves["share cut off"].append(_mean([not each.ended for each in found]))
    return curves


def stored() -> dict[str, dict[str, Any]]:
    """The stored results: {loss: {"accuracy": by seed, and each curve of `lengths_of`: [seed, point]}}."""
    return json.loads(STORED.read_text())


def summary(results: Mapping[str, Sequence[tuple[Sequence[Sequence[Answer]], float]]]) -> dict[str, dict[str, Any]]:
    """Summarize runs, {loss: a result of `run` per seed}, in the form of `stored`."""
    out: dict[str, dict[str, Any]] = {}
    for name, runs in results.items():
        curves = [lengths_of(answers) for answers, _ in runs]
        out[name] = {"accuracy": [round(accuracy, 4) for _, accuracy in runs]}
        out[name] |= {each: [[round(value, 3) for value in curve[each]] for curve in curves] for each in curves[0]}
    return out


def _measured(completion: Completion, ends: set[int]) -> Answer:
    ids, text = completion.completion_ids, completion.completion
    return Answer(completion.reward == 1, len(ids), ids[-1] in ends, text.count("+0="))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


@cache
def _model() -> tuple:
    return *load_pretrained(TINY_STEPS), load_tokenizer(TINY_STEPS)


def main() -> None:
    """Measure everything and write `long_runs.json`."""
    results: dict[str, list] = {name: [] for name in LOSSES}
    for seed in SEEDS:
        for name in LOSSES:
            results[name].append(run(name, seed))
            print(f"{name}, seed {seed}: {results[name][-1][1]:.3f}", flush=True)
    STORED.write_text(json.dumps(summary(results), separators=(",", ":")).replace("},", "},\n") + "\n")


if __name__ == "__main__":
    main()
