"""Recorded runs of the guessing game, 30 steps each, and the program that made them.

    python -m mlx_grpo_kit.course.chapters.chapter_25.games

plays them again and writes the folder `games` beside this file: two runs with their games, and the curves of six that
compare one advantage per game with one per turn. It takes about ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.course.chapters.chapter_25.exercises import credit as credit_of_kit
from mlx_grpo_kit.course.recorded import folder_name, record_of
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, compute_advantages
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.tasks import GuessTheNumber

GAMES = GRPOConfig(learning_rate=1e-3, num_generations=16, per_device_train_batch_size=64)  # 4 groups of 16
STORED, STEPS = Path(__file__).with_name("games"), 30
KEPT_EVERY = 5  # steps between those whose completions are stored
CURVES, SEEDS = "curves.json", 3  # of the comparison


def calls_made(prompts, completions, **columns):
    """1 for each call."""
    return [1.0 * sum(len(message.get("tool_calls", [])) for message in messages) for messages in completions]


RUNS: dict[str, Callable[[], GuessTheNumber]] = {
    "guess the number": GuessTheNumber,
    "paid for each call": partial(GuessTheNumber, reward_funcs=[calls_made]),
}


def turn_rewards(messages, reward):
    """The rewards of a game's turns: `reward` for the turn that found the number, 0 for all others."""
    paid = []
    for message in messages:
        if message["role"] == "assistant":
            paid.append(0.0)
        elif message["content"] == "right":
            paid[-1] = reward
    return paid


def by_turn(credit, gamma=1.0):
    """Advantages that compare a turn's credit with that of the same turn in the other games of its group."""

    def advantages(completions, scores):
        rewards = scores.values.sum(axis=1)
        worth = np.zeros((len(rewards), completions.lengths.max()))  # [games, tokens]
        turn = np.zeros(worth.shape, int)  # 1, 2, ...; 0 for a result, and for a token that gets no advantage
        for game, mask in enumerate(completions.token_mask):
            mask, reward = np.array(mask, int), rewards[game]
            paid = turn_rewards(completions.conversations[game].messages, reward)
            of_token = mask * np.cumsum(np.diff(mask, prepend=0) == 1)
            last = paid.index(reward) + 1 if reward else len(paid)  # after a right guess nothing is left to decide
            turn[game, : len(mask)] = np.where(of_token <= last, of_token, 0)
            worth[game, : len(mask)] = credit(mask.tolist(), paid, gamma)
        compared = np.zeros(worth.shape)
        for number in range(1, turn.max() + 1):
            here = turn == number
            of_turn = [row[at][0] if at.any() else None for row, at in zip(worth, here, strict=True)]
            compared += here * np.array(compute_advantages(of_turn, completions.num_generations))[:, None]
        return rewards, compared

    return advantages


def play(
    name: str, steps: int = STEPS, seed: int = 0, watch: Callable[..., Any] = iter, advantages: Any = None
) -> RunRecord:
    """Train on a game and return the record; its metric "won" is the share of games that were won.

    Args:
        name: of the run, a key of RUNS.
        steps: of 64 games each.
        seed: of the games and the draws.
        watch: passes the steps on, such as `LivePlot(...).watch`.
        advantages: the part of a step, such as `by_turn(credit)`; GRPO's by default.
    """
    model, args = (*load_pretrained(TINY_TOOLS), load_tokenizer(TINY_TOOLS)), replace(GAMES, seed=seed)
    trainer = GRPOTrainer(*model, RUNS[name](), args, advantages=advantages)
    return record_of(trainer, name, steps, watch, more=_won)


def _won(step: Any) -> dict[str, float]:
    return {"won": sum(each.rewards["Game"] > 0 for each in step.completions) / len(step.completions)}


def stored(name: str) -> RunRecord:
    """The stored record of a run, by its name in RUNS."""
    return RunRecord.load(STORED / folder_name(name))


def compare(steps: int = STEPS, seeds: int = SEEDS) -> dict[str, list[list[float]]]:
    """The game's mean reward at each step, [seeds][steps], with one advantage per game and with one per turn."""
    ways = {"one per game": None, "one per turn": by_turn(credit_of_kit)}
    return {
        way: [
            [round(reward, 4) for reward in record.column("rewards/Game/mean")]
            for record in (play("guess the number", steps, seed, advantages=part) for seed in range(seeds))
        ]
        for way, part in ways.items()
    }


def stored_curves() -> dict[str, list[list[float]]]:
    """The stored result of `compare`."""
    return json.loads((STORED / CURVES).read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    """Play the runs and store their records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="length of each run")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each kind in the comparison")
    parser.add_argument("--output", type=Path, default=STORED, help="folder of the records")
    chosen = parser.parse_args(arguments)
    for name in RUNS:
        record = play(name, chosen.steps)
        record.save(chosen.output / folder_name(name), every=KEPT_EVERY)
        print(f"{name}: reward {record.steps[-1].metrics['reward']:.2f} in step {len(record)}", flush=True)
    curves = compare(chosen.steps, chosen.seeds)
    (chosen.output / CURVES).write_text(json.dumps(curves) + "\n", encoding="utf-8")
    print({way: [rewards[-1] for rewards in of_seeds] for way, of_seeds in curves.items()})


if __name__ == "__main__":
    main()
