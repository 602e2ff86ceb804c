"""The exam of a training loop: other rewards, then two minutes and the kit's evaluation on problems it never saw."""

from __future__ import annotations

import inspect
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_24.small import Misfit, copied
from mlx_grpo_kit.course.compare import Told, say
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, per_token_logps
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Problem

WANTED, NEARLY = 0.85, 0.75  # of the held-out sums, more than that: to pass, and to be told what the rest needs
BUDGET = 120.0  # seconds
FIRST, EVERY = 5, 20  # steps before the first look at the exam, and between the others
PROBLEMS = 1003  # all held-out sums
STILL = 0.05  # of a run's usual way in three steps: weight decay moves parameters less than that
LUCKY = "14589"  # the last digits of the texts that another reward asks for
RISE, FALL = 0.2, 0.1  # of the share of rewarded texts, which show that a policy follows that reward, or flees it
LOOK, MOST_STEPS, SECONDS = 5, 100, 30.0  # the steps between two looks at that share, and when to give up
UNLIKELY, BRUTE = 1e-4, 0.4  # a text's probability, and the share of judged texts below it that no sampler reaches

STEPS_WELL = Told("new parameters after each step, and the same ones again for the same seed")
LEARNS = Told(f"parameters that get more than {WANTED:.0%} of the held-out sums right")
FOLLOWS = Told(
    "parameters that stay as they are where all answers to a question get the same reward, and that learn whatever the "
    "task rewards"
)
UNCHANGED = Told("the parameters that it was given, after each of its first steps")
NOT_REPEATED = Told("other parameters after the first steps when it was started again with the same seed")
ONE_SEED = Told("the same parameters after the first three steps for two different seeds")
CHANGES = Misfit("the right steps, but also new numbers in the `params` that it was given (make new arrays instead)")
ANSWERS = Told("a run that reads the right answers of its problems")
PEEKS = Told("a run that learns from the held-out problems, on which the exam is set")
FALLS = Told("parameters that are worse than those it began with")
ENDS_AT_ONCE = Told("a run that ends before its third step")
IMITATES = Told("new parameters although `task.is_correct` said False to every text")
NO_BASELINE = Told("new parameters although `task.is_correct` said True to every text, so that all answers were equal")
TORN = Told(
    "new parameters although all answers to a question got the same reward (1 for some questions, 0 for the others)"
)
BRUTE_FORCE = Told("a run that asks `task.is_correct` about texts that this policy hardly ever writes")
WRONG_WAY = Told("a policy that writes the texts that are rewarded less often than before")


class NoSteps(Misfit):
    """Words for what a loop returned where an iterator was expected."""


class NearlyThere(Told):
    """Words for a run that learned well and stopped below the mark; `ended` if its loop ended before the time did."""

    ended = True


@dataclass(frozen=True)
class Stage:
    """One part of the check of a training loop, by what it looks at."""

    how: str

    def __repr__(self) -> str:
        return self.how


FIRST_STEPS = Stage("In its first steps")
OTHER_REWARDS = Stage("In some steps with other rewards")
TWO_MINUTES = Stage("In two minutes at most")


class PeekError(Exception):
    """Raised for a training loop that asks for the held-out problems."""


class AnswerError(Exception):
    """Raised for a training loop that reads the right answer of a problem."""


class EnoughError(BaseException):
    """Raised in a loop that judges many more texts than before. `except Exception` does not catch it."""


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


Rule = Callable[[Problem, str], bool]
"""A reward: whether a text is right."""


class RewardedSums(Addition):
    """Addition in which another rule than the sum says which texts are right."""

    def __init__(self, rule: Rule):
        super().__init__(reward_funcs=[self._scores_by(rule)])
        self._rule = rule

    @staticmethod
    def _scores_by(rule: Rule) -> Callable[..., list[float]]:
        def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
            return [float(rule(*pair)) for pair in zip(problems, completions, strict=True)]

        return correct

    def is_correct(self, problem: Problem, completion: str) -> bool:
        """The verdict of the rule."""
        return self._rule(problem, completion)


class ClosedExam(RewardedSums):
    """Addition whose held-out problems are for the exam alone, and whose problems keep their answers to themselves.

    Args:
        rule: says which texts are right; by default the sums are.
        most: how many texts it judges before it raises EnoughError.

    Attributes:
        judged: (prompt, text) of each text that was judged, in order.
    """

    def __init__(self, rule: Rule | None = None, most: float = math.inf):
        self.judged: list[tuple[str, str]] = []
        judge = rule or Addition().is_correct

        def judged(problem: Problem, text: str) -> bool:
            if len(self.judged) >= most:
                raise EnoughError
            self.judged.append((problem.prompt, text))
            return judge(problem, text)

        super().__init__(judged)

    def sample(self, rng: np.random.Generator, n: int) -> list:
        """Problems to train on, without their answers."""
        return [*map(ClosedProblem, super().sample(rng, n))]

    def held_out(self, n: int) -> list:
        """Raise PeekError."""
        raise PeekError("the held-out problems are for the exam: train on `task.sample(rng, n)`")


def never(problem: Problem, text: str) -> bool:
    """No text is right."""
    return False


def always(problem: Problem, text: str) -> bool:
    """Every text is right."""
    return True


def by_question(problem: Problem, text: str) -> bool:
    """Every text is right, or none, by the question."""
    return bool(zlib.crc32(problem.prompt.encode()) >> 7 & 1)


def by_last_digit(problem: Problem, text: str) -> bool:
    """A text is right if its last digit is one of LUCKY, which no prompt gives away."""
    return text[-1:] != "" and text[-1] in LUCKY


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
    trainer = GRPOTrainer(config, copied(params), load_tokenizer(TINY), on or task(), GRPOConfig(num_generations=2))
    return float(np.mean([trainer.evaluate(problems, seed=seed)["eval/accuracy"] for seed in range(draws)]))


def train_and_judge(train: Callable[..., Any], stage: Stage, tell: Callable[[str], Any] = print) -> Any:
    """Run a reader's loop for some steps, or until it passes the exam, and say in words how it went.

    Args:
        train: the loop.
        stage: FIRST_STEPS, OTHER_REWARDS or TWO_MINUTES. A stage begins with those before it, unless this loop has just
            gone through them.
        tell: called with a line after each look at the exam.
    """
    stages = {FIRST_STEPS: _first_steps, OTHER_REWARDS: _other_rewards}
    good = {FIRST_STEPS: STEPS_WELL, OTHER_REWARDS: FOLLOWS, TWO_MINUTES: LEARNS}
    loop = inspect.unwrap(train)
    if stage == FIRST_STEPS or _seen.get("loop") is not loop:
        _seen.clear()
        _seen["loop"] = loop
    try:
        for each, judge in stages.items():
            if each not in _seen:
                _seen[each] = _in_words(judge, train)
            if (complaint := _seen[each]) is not None or each == stage:
                return good[stage] if complaint is None else complaint
        complaint = _in_words(_two_minutes, train, tell)
        return good[stage] if complaint is None else complaint
    finally:
        if stage == TWO_MINUTES:
            _seen.clear()  # the names that a loop reads may mean other things next time


_seen: dict[Any, Any] = {}  # the loop that is being checked, and the complaints of its stages so far


def _in_words(judge: Callable[..., Told | None], *arguments: Any) -> Told | None:
    try:
        return judge(*arguments)
    except PeekError:
        return PEEKS
    except AnswerError:
        return ANSWERS


def _start(train: Callable[..., Any], seed: int, params: dict[str, mx.array] | None = None, exam: Any = None) -> Any:
    config, start = model()
    return train(config, copied(start) if params is None else params, load_tokenizer(TINY), exam or ClosedExam(), seed)


def _first_steps(train: Callable[..., Any]) -> Told | None:
    given = copied(model()[1])
    run = _start(train, 1, given)
    if not isinstance(run, Iterator):
        kind = "None" if run is None else f"a {type(run).__name__}"
        return NoSteps(f"{kind}, where `for params in train(...)` needs something that yields after each step")
    _, start = model()
    after = []
    for params in run:
        if (complaint := misfit(params, start)) is not None:
            return complaint
        after.append(copied(params))
        if len(after) == 3:
            break
    if len(after) < 3:
        return ENDS_AT_ONCE
    if all(distance(each, start) == 0 for each in after):
        return UNCHANGED
    if misfit(given, start) is not None or distance(given, start) > 0:
        return CHANGES
    again, other = (_third(_start(train, seed)) for seed in (1, 2))
    if again is None or distance(again, after[2]) > 0.1 * distance(after[2], start):  # rounding is no other run
        return NOT_REPEATED
    return ONE_SEED if other is not None and distance(other, after[2]) == 0 else None


def _other_rewards(train: Callable[..., Any]) -> Told | None:
    """Whether a loop learns from rewards, and compares answers to one question alone.

    If the reward depends on the question only, all answers of a group are equal and nothing may be learned. A loop that
    imitates sums of its own learns all the same, and so does one whose groups contain several questions. Then a rule
    that no prompt gives away is rewarded, and the policy has to learn it.
    """
    _, start = model()
    exam = ClosedExam()
    third = _third(_start(train, 1, exam=exam))
    if third is None:
        return ENDS_AT_ONCE
    usual = distance(third, start)
    most = 20 * len(exam.judged) + 1000

    def moves(rule: Rule) -> bool | Told:
        moved = _way_of(train, rule, most)
        return moved if isinstance(moved, Told) else moved > STILL * usual

    found = moves(by_question)
    if isinstance(found, Told):
        return found
    if found:
        if moves(never) is True:
            return IMITATES
        return NO_BASELINE if moves(always) is True else TORN
    return _another_reward(train)


def _way_of(train: Callable[..., Any], rule: Rule, most: int) -> float | Told:
    """How far three steps lead whose rewards a rule gives; or words for parameters or an error that they end with."""
    _, start = model()
    moved = 0.0
    try:
        for params in islice(_start(train, 1, exam=ClosedExam(rule, most)), 3):
            if (complaint := misfit(params, start)) is not None:
                return Misfit(
                    f"{complaint} after a step in which all answers to each question got the same reward. The standard "
                    "deviation of such a group is 0: add a small number before you divide by it"
                )
            moved = max(moved, distance(params, start))
    except EnoughError:  # it draws until a group has different rewards, and has learned nothing until then
        return moved
    except (PeekError, AnswerError):
        raise
    except Exception as error:
        return Misfit(
            f"{type(error).__name__} ({say(error)}) in a step in which all answers to each question got the same "
            "reward. All advantages are 0 then, and if you leave out such rows, none is left: skip the update, and "
            "yield the same parameters once more"
        )
    return moved


def _another_reward(train: Callable[..., Any]) -> Told | None:
    """Whether the policy learns to write texts that nothing but the rewards can tell it."""
    _, start = model()
    exam, open_exam = ClosedExam(by_last_digit), RewardedSums(by_last_digit)
    share = before = held_out_accuracy(start, PROBLEMS, on=open_exam)
    steps, began, run = 0, time.process_time(), _start(train, 1, exam=exam)
    while steps < MOST_STEPS and time.process_time() - began < SECONDS:
        several = [*islice(run, LOOK if steps else 1)]
        if not steps and _unlikely(exam.judged, start) > BRUTE:
            return BRUTE_FORCE
        if not several:
            break
        steps, params = steps + len(several), several[-1]
        if (complaint := misfit(params, start)) is not None:
            return complaint
        share = held_out_accuracy(params, PROBLEMS, on=open_exam)
        if share > before + RISE:
            return None
        if share < before - FALL:
            return WRONG_WAY
    return Misfit(
        f"a policy that did not follow another reward. For {steps} steps `task.is_correct` was True for texts that end "
        f"in one of five digits, and not for sums: {before:.0%} of the answers were rewarded before, {share:.0%} "
        "afterwards. A loop that learns from the rewards of `task.is_correct` raises that share"
    )


def _unlikely(judged: Sequence[tuple[str, str]], params: Mapping[str, mx.array]) -> float:
    """The share of different judged texts with a probability below UNLIKELY for this policy."""
    config, _ = model()
    tokenizer, rows = load_tokenizer(TINY), []
    limit, end = Addition().max_completion_length, [*tokenizer.eos_token_ids][:1]
    for prompt, text in sorted({*judged}):
        try:
            tokens = tokenizer.encode(text)
        except (ValueError, KeyError, TypeError):
            continue
        tokens = tokens if len(tokens) >= limit else [*tokens, *end]
        rows.append((tokenizer.encode(prompt), tokens[:limit]))
    if not rows:
        return 0.0
    rows = rows[:: len(rows) // 2000 + 1]
    logps, mask = per_token_logps(config, params, *map(list, zip(*rows, strict=True)))
    return float(((logps * mask).sum(axis=1) < math.log(UNLIKELY)).astype(mx.float32).mean().item())


def _third(run: Iterator) -> Any:
    """What a loop yields after its third step; its first steps may change nothing, such as a warm-up from rate 0."""
    return next(islice(run, 2, None), None)


def _two_minutes(train: Callable[..., Any], tell: Callable[[str], Any]) -> Told | None:
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
        if (complaint := misfit(params, start)) is not None:
            return complaint
        accuracy = held_out_accuracy(params)
        best = max(best, accuracy)
        tell(f"step {steps:4}, {spent:3.0f} seconds: {accuracy:.1%}")
        if accuracy > WANTED:
            if (mean := held_out_accuracy(params, draws=3)) > WANTED:
                return None
            tell(f"           two more exams: {mean:.1%} is the mean of all three, so the run continues")
        if accuracy < 0.6 * before:
            return FALLS
    last = held_out_accuracy(params)
    words = f"{last:.1%} of the held-out sums after {steps} steps and {spent:.0f} seconds"
    if last <= NEARLY:
        return Told(words)
    found = NearlyThere(words)
    found.ended = spent < BUDGET
    return found


def misfit(params: Any, start: Mapping[str, mx.array], whence: str = " from its `yield`") -> Told | None:
    """What is wrong with trained parameters, without a look at what they have learned."""
    if not isinstance(params, Mapping):
        return Told(f"a {type(params).__name__}{whence}, where the dictionary of parameters was expected")
    if params.keys() != start.keys():
        return Told(f"a dictionary{whence} whose names are not those of the parameters")
    for name, value in start.items():
        if getattr(params[name], "shape", None) != value.shape:
            return Told(f"parameters in which {name} has another shape")
    if not all(mx.isfinite(mx.array(value)).all().item() for value in params.values()):
        return Told("parameters that are not finite")
    return None


def distance(one: Mapping[str, mx.array], other: Mapping[str, mx.array]) -> float:
    """The sum of all differences, without their signs."""
    return sum(mx.abs(mx.array(one[name]) - value).sum().item() for name, value in other.items())
