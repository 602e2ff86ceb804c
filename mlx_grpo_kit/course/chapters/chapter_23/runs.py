"""Five recorded runs of SmolLM2 on the task `larger`, 40 steps each, and the program that made them.

    python -m mlx_grpo_kit.course.chapters.chapter_23.runs

repeats them, which takes about half an hour on two idle cores, and writes the folder `recorded` beside this file. With
`--picture FILE.png` it trains nothing, and draws the README's picture from the records.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.course.recorded import folder_name, record_of
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, per_token_logps
from mlx_grpo_kit.grpo.recipe import ARGS_OF, SMOLLM2_NAME, model_folder
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.tasks.larger import Larger
from mlx_grpo_kit.viz.live.curves import draw_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS = GRPOConfig(backend="torch", **ARGS_OF[SMOLLM2_NAME])  # 8 groups of 8, learning rate 1e-5
RECORDED, STEPS = Path(__file__).with_name("recorded"), 40
KEPT_EVERY, KEPT = 4, 32  # steps between those whose completions are stored, and completions of each
HELD_OUT, SAMPLES = 96, 8  # problems of the exam, and completions of each


def last_number(problems: Sequence[Any], completions: Sequence[str]) -> list[float]:
    """1 if the last number in the completion is the larger one, whatever the completion says about it."""
    numbers = [re.findall("[0-9]+", each) for each in completions]
    return [float(each[-1:] == [problem.answer]) for problem, each in zip(problems, numbers, strict=True)]


RUNS = {
    "the last number counts": SETTINGS,
    "seed 0": SETTINGS,
    "seed 1": replace(SETTINGS, seed=1),
    "seed 2": replace(SETTINGS, seed=2),
    "seed 0, beta 0.04": replace(SETTINGS, beta=0.04),
}
"""The settings of each run. The first is rewarded by `last_number`, the others by the task's own function."""

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "How many days are in a week?",
    "What color is the sky on a clear day?",
    "What do bees make?",
    "Name three fruits.",
    "What is the opposite of hot?",
    "Write one sentence about a cat.",
    "Who wrote Romeo and Juliet?",
    "Why do people sleep?",
    "Is 7 an even number?",
    "Which animal is larger, a mouse or an elephant?",
)
"""Ordinary questions, which no step of the runs contains."""


def answers(model: tuple[Any, Any], tokenizer: Any, questions: Sequence[str] = QUESTIONS) -> list[str]:
    """The greedy answer of a model (its configuration and parameters) to each question, at most 24 tokens."""
    rollout = generate(
        *model, _prompts(tokenizer, questions), eos_token_ids=tokenizer.eos_token_ids, sampling=SamplingConfig(24, 0)
    )
    return [tokenizer.decode(ids).strip() for ids in rollout.completions]


def divergence(model: tuple[Any, Any], reference: Any, tokenizer: Any, questions: Sequence[str] = QUESTIONS) -> float:
    """KL(model || reference) on ordinary questions, in nats per token, from four answers of the model to each."""
    config, params = model
    prompts = [prompt for prompt in _prompts(tokenizer, questions) for _ in range(4)]
    sampling = SamplingConfig(24)
    drawn = generate(*model, prompts, eos_token_ids=tokenizer.eos_token_ids, sampling=sampling, seed=0).completions
    (ours, mask), (theirs, _) = (per_token_logps(config, each, prompts, drawn) for each in (params, reference))
    away = np.array(theirs - ours, np.float64)  # k3: exp(away) - 1 - away is never negative, and its mean is the KL
    return float((np.exp(away) - 1 - away)[np.array(mask, bool)].mean())


def _prompts(tokenizer: Any, questions: Sequence[str]) -> list[list[int]]:
    return [tokenizer.encode_prompt([{"role": "user", "content": question}]) for question in questions]


def play(
    name: str, steps: int = STEPS, watch: Callable[..., Any] = iter, held_out: int = HELD_OUT
) -> tuple[RunRecord, dict[str, Any]]:
    """Train and return the record and the exam.

    The exam has "before" and "after", the metrics of `evaluate`; "answers", three strings per ordinary question (the
    question, the answer before, the answer after); and "kl", the divergence from the model before.
    """
    config, params = load_pretrained(model_folder(SMOLLM2_NAME))
    tokenizer = load_tokenizer(model_folder(SMOLLM2_NAME))
    task = Larger([last_number] if name == "the last number counts" else None).in_chat()
    trainer = GRPOTrainer(config, params, tokenizer, task, RUNS[name])
    before = trainer.evaluate(held_out, num_samples=SAMPLES)
    record = record_of(trainer, name, steps, watch, keep=KEPT, is_correct=task.is_correct)
    after = trainer.evaluate(held_out, num_samples=SAMPLES)
    model = config, trainer.params
    said = zip(QUESTIONS, answers((config, params), tokenizer), answers(model, tokenizer), strict=True)
    exam = {"before": before, "after": after, "answers": [*map(list, said)]}
    return record, exam | {"kl": divergence(model, params, tokenizer)}


def recorded(name: str) -> tuple[RunRecord, dict[str, Any]]:
    """The stored record and exam of a run, by its name in RUNS (see `play`)."""
    exams = json.loads((RECORDED / f"{folder_name(name)}.json").read_text(encoding="utf-8"))
    return RunRecord.load(RECORDED / folder_name(name)), exams


def draw_rewards() -> Figure:
    """The rewards of three seeds, and those of the run that was paid for the last number."""
    seeds = {name: recorded(name)[0].column("reward") for name in ("seed 0", "seed 1", "seed 2")}
    paid = recorded("the last number counts")[0]
    right = [
        sum(each.correct for each in step.completions) / len(step.completions) if step.completions else math.nan
        for step in paid.steps
    ]
    history = seeds | {"reward": paid.column("reward"), "right answers": right}
    panels = {"names only the larger number": [*seeds], "the last number counts": ["reward", "right answers"]}
    return draw_curves([step.step for step in paid.steps], history, panels)


def main(arguments: list[str] | None = None) -> None:
    """Play the runs and store their records and exams."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(map(repr, RUNS))}; default: all")
    parser.add_argument("--steps", type=int, default=STEPS, help="length of each run")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="problems of the exam")
    parser.add_argument("--output", type=Path, default=RECORDED, help="folder of the records")
    parser.add_argument("--picture", type=Path, help="draw the README's picture into this file instead")
    chosen = parser.parse_args(arguments)
    if chosen.picture:
        draw_rewards().savefig(chosen.picture, dpi=140)
        return
    for name in chosen.names or RUNS:
        record, exam = play(name, chosen.steps, held_out=chosen.held_out)
        record.save(chosen.output / folder_name(name), every=KEPT_EVERY)
        text = json.dumps(exam, indent=1, ensure_ascii=False) + "\n"
        (chosen.output / f"{folder_name(name)}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {exam['before']['eval/accuracy']:.2f} -> {exam['after']['eval/accuracy']:.2f}", flush=True)


if __name__ == "__main__":
    main()
