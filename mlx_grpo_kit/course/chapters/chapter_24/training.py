"""The exam of a training loop: two minutes at most, and the kit's own evaluation on problems that it never saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_24.small import Misfit, copied
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Problem

WANTED = 0.85  # of the held-out sums, more than that
BUDGET = 120.0  # seconds
FIRST, EVERY = 5, 20  # steps before the first look at the exam, and between the others
PROBLEMS = 1003  # all held-out sums

STEPS_WELL = Told("new parameters after each step, and the same ones again for the same seed")
LEARNS = Told(f"parameters that get more than {WANTED:.0%} of the held-out sums right")
UNCHANGED = Told("the parameters that it was given, after each of its first steps")
NOT_REPEATED = Told("other parameters after the first steps when it was started again with the same seed")
ONE_SEED = Told("the same parameters after the first three steps for two different seeds")
CHANGES = Misfit("the right steps, but also new numbers in the `params` that it was given (make new arrays instead)")
ANSWERS = Told("a run that reads the right answers of its problems")
PEEKS = Told("a run that learns from the held-out problems, on which the exam is set")
FALLS = Told("parameters that are worse than those it began with")
ENDS_AT_ONCE = Told("a run that ends before its third step")


@dataclass(frozen=True)
class Stage:
    """One part of the check of a training loop, by what it looks at."""

    words: str

    def __repr__(self) -> str:
        return self.words


FIRST_STEPS = Stage("the first steps")
TWO_MINUTES = Stage("two minutes at most")


class PeekError(Exception):
    """Raised for a training loop that asks for the held-out problems."""


class AnswerError(Exception):
    """Raised for a training loop that reads the right answer of a problem."""


class ClosedProblem(Problem):
    """A problem without its answer: the task's `is_correct` and reward functions can still judge texts."""

    def __init__(self, problem: Problem):
        for name in ("prompt", "data", "place"):
            object.__setattr__(self, name, getattr(problem, name))

    @property
    def answer(self) -> str:
        """Raise AnswerError."""
        raise AnswerError("GRPO learns from rewards, not from right answers: use `task.is_correct(problem, text)`")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClosedProblem) and self.prompt == other.prompt

    def __hash__(self) -> int:
        return hash(self.prompt)

    def __repr__(self) -> str:
        return f"Problem(prompt={self.prompt!r})"


class ClosedExam(Addition):
    """Addition whose held-out problems are for the exam alone, and whose problems keep their answers to themselves."""

    def sample(self, rng: np.random.Generator, n: int) -> list:
        """Problems to train on, without their answers."""
        return [*map(ClosedProblem, super().sample(rng, n))]

    def held_out(self, n: int) -> list:
        """Raise PeekError."""
        raise PeekError("the held-out problems are for the exam: train on `task.sample(rng, n)`")


@cache
def model() -> tuple:
    """(config, params) of the shipped model."""
    return load_pretrained(TINY)


@cache
def task() -> Addition:
    """The sums of the exam."""
    return Addition()


def held_out_accuracy(
    params: Mapping[str, mx.array], problems: int = PROBLEMS, draws: int = 1, on: Any = None
) -> float:
    """The share of held-out problems that a policy answers rightly, drawn at temperature 1, by the kit's trainer.

    Args:
        params: of the shipped model's shape.
        problems: how many; the default is all held-out sums.
        draws: how many answers to each problem.
        on: another task than addition.
    """
    config, _ = model()
    trainer = GRPOTrainer(config, dict(params), load_tokenizer(TINY), on or task(), GRPOConfig(num_generations=2))
    return float(np.mean([trainer.evaluate(problems, seed=seed)["eval/accuracy"] for seed in range(draws)]))


def train_and_judge(train: Callable[..., Any], stage: Stage, tell: Callable[[str], Any] = print) -> Any:
    """Run a reader's loop for some steps, or until it passes the exam, and say in words how it went.

    Args:
        train: the loop.
        stage: FIRST_STEPS or TWO_MINUTES.
        tell: called with a line after each look at the exam.
    """
    try:
        complaint = _first_steps(train)
        if complaint is not None or stage == FIRST_STEPS:
            return STEPS_WELL if complaint is None else complaint
        return _two_minutes(train, tell)
    except PeekError:
        return PEEKS
    except AnswerError:
        return ANSWERS


def _start(train: Callable[..., Any], seed: int, params: dict[str, mx.array] | None = None) -> Any:
    config, start = model()
    return train(config, copied(start) if params is None else params, load_tokenizer(TINY), ClosedExam(), seed)


def _first_steps(train: Callable[..., Any]) -> Told | None:
    given = copied(model()[1])
    run = _start(train, 1, given)
    if not isinstance(run, Iterator):
        kind = "None" if run is None else f"a {type(run).__name__}"
        return Misfit(f"{kind}, where `for params in train(...)` needs something that yields after each step")
    _, start = model()
    after = []
    for params in run:
        if (complaint := _misfit(params, start)) is not None:
            return complaint
        after.append(copied(params))
        if len(after) == 3:
            break
    if len(after) < 3:
        return ENDS_AT_ONCE
    if all(_distance(each, start) == 0 for each in after):
        return UNCHANGED
    if _misfit(given, start) is not None or _distance(given, start) > 0:
        return CHANGES
    again, other = (_third(_start(train, seed)) for seed in (1, 2))
    if again is None or _distance(again, after[2]) > 0.1 * _distance(after[2], start):  # rounding is no other run
        return NOT_REPEATED
    return ONE_SEED if other is not None and _distance(other, after[2]) == 0 else None


def _third(run: Iterator) -> Any:
    """What a loop yields after its third step; its first steps may change nothing, such as a warm-up from rate 0."""
    return next(islice(run, 2, None), None)


def _two_minutes(train: Callable[..., Any], tell: Callable[[str], Any]) -> Told:
    """Train until the exam is passed. Time counts where it is shorter: on the clock, or on the processor."""
    _, start = model()
    best = before = held_out_accuracy(start)
    tell(f"before training: {before:.1%} of {PROBLEMS:,} held-out sums right")
    steps, spent, params = 0, 0.0, start
    run = _start(train, 0)
    while spent < BUDGET:
        began = time.perf_counter(), time.process_time()
        several = [*islice(run, EVERY if steps else FIRST)]
        mx.eval(several[-1:])
        spent += min(time.perf_counter() - began[0], time.process_time() - began[1])
        if not several:
            break
        steps, params = steps + len(several), several[-1]
        if (complaint := _misfit(params, start)) is not None:
            return complaint
        accuracy = held_out_accuracy(params)
        best = max(best, accuracy)
        tell(f"step {steps:4}, {spent:3.0f} seconds: {accuracy:.1%}")
        if accuracy > WANTED:
            if (mean := held_out_accuracy(params, draws=3)) > WANTED:
                return LEARNS
            tell(f"           two more exams: {mean:.1%} is the mean of all three, so the run continues")
        if accuracy < 0.6 * before:
            return FALLS
    return Told(f"{held_out_accuracy(params):.1%} of the held-out sums after {steps} steps and {spent:.0f} seconds")


def _misfit(params: Any, start: Mapping[str, mx.array]) -> Told | None:
    """What is wrong with yielded parameters, without a look at what they have learned."""
    if not isinstance(params, Mapping):
        return Told(f"a {type(params).__name__} from its `yield`, where the dictionary of parameters was expected")
    if params.keys() != start.keys():
        return Told("a dictionary from its `yield` whose names are not those of the parameters")
    for name, value in start.items():
        if getattr(params[name], "shape", None) != value.shape:
            return Told(f"parameters in which {name} has another shape")
    if not all(mx.isfinite(value).all().item() for value in params.values()):
        return Told("parameters that are not finite")
    return None


def _distance(one: Mapping[str, mx.array], other: Mapping[str, mx.array]) -> float:
    """The sum of all differences, without their signs."""
    return sum(mx.abs(one[name] - value).sum().item() for name, value in other.items())
