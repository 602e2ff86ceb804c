"""Short runs of many variants with several seeds, on the default task, and their stored results.

    python -m mlx_grpo_kit.course.chapters.chapter_19.runs

repeats the measurement, which takes about ten minutes, and writes `runs.json` next to this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import VARIANTS, GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.recipe import TINY_ARGS
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition

STORED = Path(__file__).with_name("runs.json")
SEEDS = (0, 1, 2, 3, 4)
PROBLEMS = 512
"The number of held-out problems for measuring accuracy."

WINDOW = 6
"The number of updates that are averaged into one point of a curve."

REGIMES: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "one update from each batch": (
        {"num_iterations": 1},
        72,
        ("dapo", "grpo", "bnpo", "dr_grpo", "rloo", "batch scaling", "gdpo", "dynamic sampling", "overlong penalty",
         "kl penalty", "moving reference", "entropy bonus", "top entropy"),
    ),
    "four updates from each batch": (
        {"num_iterations": 4},
        20,
        ("dapo", "grpo", "two-sided clip", "gspo", "luspo", "cispo", "sapo", "vespo", "reinforce", "rloo"),
    ),
}  # fmt: skip
"Settings, steps, and the variants that differ under these settings. With one update every ratio is 1."


def run(name: str, seed: int, num_iterations: int, steps: int) -> dict[str, Any]:
    """Train the shipped model with a variant; return {"accuracy": final, "entropy": final, "rewards": by step}.

    The settings are those of the default run, except for the number of steps: the learning rate falls to 0 at the
    last step. The reward is the mean over all drawn completions.
    """
    settings = TINY_ARGS | {"num_iterations": num_iterations, "seed": seed} | dict(VARIANTS[name].settings)
    trainer = GRPOTrainer(*_model(), load_tokenizer(TINY), Addition(), GRPOConfig(**settings))
    metrics = [step.metrics for step in trainer.train(steps)]
    rewards = [each.get("dynamic_sampling/reward", each["rewards/correct/mean"]) for each in metrics]
    accuracy = trainer.evaluate(PROBLEMS)["eval/accuracy"]
    return {"accuracy": accuracy, "entropy": metrics[-1]["entropy"], "rewards": rewards}


def measure(seeds: tuple[int, ...] = SEEDS) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Yield (regime, variant, seed, result of `run`), seed by seed, so that partial results are balanced."""
    for seed in seeds:
        for regime, (settings, steps, names) in REGIMES.items():
            for name in names:
                yield regime, name, seed, run(name, seed, settings["num_iterations"], steps)


def stored() -> dict[str, dict[str, dict[str, list[float]]]]:
    """The stored results: {regime: {variant: {"accuracy": by seed, "entropy": by seed, "curve": mean over seeds}}}."""
    return json.loads(STORED.read_text())


def summary(runs: list[tuple[str, str, int, dict[str, Any]]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Summarize runs in the form of `stored`."""
    out: dict[str, dict[str, dict[str, list[float]]]] = {}
    for regime, (settings, steps, names) in REGIMES.items():
        for name in names:
            found = [result for where, which, _, result in runs if (where, which) == (regime, name)]
            window = WINDOW if settings["num_iterations"] == 1 else 2
            curve = np.mean([each["rewards"] for each in found], axis=0).reshape(steps // window, window).mean(axis=1)
            out.setdefault(regime, {})[name] = {
                "accuracy": [round(each["accuracy"], 4) for each in found],
                "entropy": [round(each["entropy"], 3) for each in found],
                "curve": curve.round(3).tolist(),
            }
    return out


@cache
def _model() -> tuple:
    return load_pretrained(TINY)


def main() -> None:
    """Measure everything and write `runs.json`."""
    runs = []
    for regime, name, seed, result in measure():
        runs.append((regime, name, seed, result))
        print(f"{regime}, {name}, seed {seed}: {result['accuracy']:.3f}", flush=True)
    STORED.write_text(json.dumps(summary(runs), separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
