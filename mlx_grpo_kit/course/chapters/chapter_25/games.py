"""Two recorded runs of the guessing game, 30 steps each, and the program that made them.

    python -m mlx_grpo_kit.course.chapters.chapter_25.games

plays them again, which takes a minute or two, and writes the folder `games` beside this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.course.recorded import folder_name, record_of
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.tasks import GuessTheNumber

GAMES = GRPOConfig(learning_rate=1e-3, num_generations=16, per_device_train_batch_size=64)  # 4 groups of 16
STORED, STEPS = Path(__file__).with_name("games"), 30
KEPT_EVERY = 5  # steps between those whose completions are stored


def calls_made(prompts, completions, **columns):
    """1 for each call."""
    return [1.0 * sum(len(message.get("tool_calls", [])) for message in messages) for messages in completions]


RUNS: dict[str, Callable[[], GuessTheNumber]] = {
    "guess the number": GuessTheNumber,
    "paid for each call": partial(GuessTheNumber, reward_funcs=[calls_made]),
}


def play(name: str, steps: int = STEPS, seed: int = 0, watch: Callable[..., Any] = iter) -> RunRecord:
    """Train on a game and return the record; its metric "won" is the share of games that were won.

    Args:
        name: of the run, a key of RUNS.
        steps: of 64 games each.
        seed: of the games and the draws.
        watch: passes the steps on, such as `LivePlot(...).watch`.
    """
    args = replace(GAMES, seed=seed)
    trainer = GRPOTrainer(*load_pretrained(TINY_TOOLS), load_tokenizer(TINY_TOOLS), RUNS[name](), args)
    return record_of(trainer, name, steps, watch, more=_won)


def _won(step: Any) -> dict[str, float]:
    return {"won": sum(each.rewards["Game"] > 0 for each in step.completions) / len(step.completions)}


def stored(name: str) -> RunRecord:
    """The stored record of a run, by its name in RUNS."""
    return RunRecord.load(STORED / folder_name(name))


def main(arguments: list[str] | None = None) -> None:
    """Play the runs and store their records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="length of each run")
    parser.add_argument("--output", type=Path, default=STORED, help="folder of the records")
    chosen = parser.parse_args(arguments)
    for name in RUNS:
        record = play(name, chosen.steps)
        record.save(chosen.output / folder_name(name), every=KEPT_EVERY)
        print(f"{name}: reward {record.steps[-1].metrics['reward']:.2f} in step {len(record)}", flush=True)


if __name__ == "__main__":
    main()
