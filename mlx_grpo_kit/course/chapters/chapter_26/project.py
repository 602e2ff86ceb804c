"""The closing project: a checklist of what a result has to show. A program checks the items that it can.

    print(checklist(task, runs, attacks=["46 or 47", "<answer>" * 50]))

`runs` has an entry for each seed: the accuracy before and after training, both on the same held-out problems.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.tasks import Problem, Task, TaskError, validate_task
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems, sample_problems

SOME = 64
LAZY = ("", " ", "0", "1", "yes", "<answer></answer>", "<answer>" * 20, "I do not know.", "0123456789", "\\boxed{}")
"""Texts that policies learned to write because they were rewarded; tried on every task, in addition to your attacks."""


@printable
@dataclass(frozen=True)
class Item:
    """One item of the checklist: True if it holds, None if only you can say, and the reason in words."""

    name: str
    holds: bool | None
    words: str

    def __str__(self) -> str:
        mark = {True: "\N{CHECK MARK}", False: "\N{BALLOT X}", None: "?"}[self.holds]
        return f"{mark} {self.name}: {self.words}"


@printable
class Checklist(list):
    """A list of items; `print` shows one per line."""

    def __str__(self) -> str:
        done = sum(item.holds is True for item in self)
        return "\n".join([*map(str, self), f"{done} of {len(self)} hold."])


def checklist(
    task: Task,
    runs: Sequence[Mapping[str, float]],
    attacks: Sequence[str] = (),
    num_held_out: int = 256,
) -> Checklist:
    """Check what a result of training on `task` shows, and what is missing.

    Args:
        task: your task, as in training.
        runs: one entry per seed, such as `{"seed": 0, "before": 0.44, "after": 0.61}`.
        attacks: your own examples of texts that a lazy policy might write.
        num_held_out: the number of problems on which accuracy was measured.
    """
    items = Checklist([_whole(task)])
    if items[0].holds:
        held_out = held_out_problems(task, num_held_out)
        items += [_repeats(task), _apart(task, held_out), _answers(task, held_out), _attacked(task, held_out, attacks)]
        items.append(_size(held_out))
    items += [_seeds(runs), _gain(runs)]
    items.append(
        Item(
            "read",
            None,
            "thirty completions of the last step, and the ten shortest: are they what you wanted?",
        )
    )
    return items


def _whole(task: Task) -> Item:
    try:
        validate_task(task)
        sample_problems(task, np.random.default_rng(0), 4)
        held_out_problems(task, 1)
    except (TypeError, TaskError) as error:
        return Item("a task", False, str(error))
    return Item("a task", True, f"{task.name!r} has everything that the trainer needs")


def _repeats(task: Task) -> Item:
    one, same, other = (sample_problems(task, np.random.default_rng(seed), SOME) for seed in (0, 0, 1))
    if one != same:
        return Item("seeds", False, "`sample` returns different problems for the same seed: draw with `rng` only")
    return Item(
        "seeds",
        one != other,
        "`sample` repeats itself for a seed" if one != other else "`sample` returns the same problems for every seed",
    )


def _apart(task: Task, held_out: Sequence[Problem]) -> Item:
    known = {problem.text for problem in held_out}
    if len(known) < len(held_out):
        return Item("held out", False, f"{len(held_out) - len(known)} of {len(held_out)} held-out problems occur twice")
    drawn = sample_problems(task, np.random.default_rng(2), 32 * SOME)
    if seen := {problem.text for problem in drawn} & known:
        return Item("held out", False, f"training asks held-out problems, such as {min(seen)!r}")
    return Item("held out", True, f"none of {len(held_out)} problems is among {len(drawn)} training draws")


def _answers(task: Task, held_out: Sequence[Problem]) -> Item:
    some = [problem for problem in held_out[:SOME] if problem.answer]
    if not some:
        return Item(
            "right answers",
            None,
            "the problems store no answers: check yourself that right answers are accepted",
        )
    right = are_correct(task, some, [problem.answer for problem in some])
    total, _ = compute_rewards(task.reward_funcs, some, [problem.answer for problem in some])
    wrong = [problem for problem, each in zip(some, right, strict=True) if not each]
    if wrong:
        return Item("right answers", False, f"{wrong[0].answer!r} is not accepted for {wrong[0].text!r}")
    return Item("right answers", True, f"{len(some)} of {len(some)} are accepted, and rewarded with {total.mean():.3g}")


def _attacked(task: Task, held_out: Sequence[Problem], attacks: Sequence[str]) -> Item:
    """Search for a text that is rewarded on most problems like a right answer, without being right."""
    some = [problem for problem in held_out[:SOME] if problem.answer]
    best = compute_rewards(task.reward_funcs, some, [each.answer for each in some])[0].mean() if some else 1.0
    answers = [problem.answer for problem in some]
    attacks = [attacks] if isinstance(attacks, str) else attacks
    for text in (*LAZY, *attacks, *(problem.text for problem in held_out[:1])):
        rewards, _ = compute_rewards(task.reward_funcs, held_out[:SOME], [text] * len(held_out[:SOME]))
        right = np.mean(are_correct(task, held_out[:SOME], [text] * len(held_out[:SOME])))
        if rewards.mean() > max(best, 0) / 2 and right < 0.5:
            paid = f"{text[:40]!r} is paid {rewards.mean():.3g} on average, and a right answer {best:.3g}"
            return Item("attacks", False, f"{paid}; it is right on {right:.0%} of the problems")
        commonest = max(map(answers.count, answers), default=0) / max(len(answers), 1)
        if answers and right >= 0.5 > commonest:
            return Item(
                "attacks",
                False,
                f"{text[:40]!r} counts as right on {right:.0%}, though their answers differ",
            )
    if not attacks:
        return Item(
            "attacks", False, f"the {len(LAZY)} lazy texts are not rewarded; now think of some of your own (`attacks`)"
        )
    return Item("attacks", True, f"{len(LAZY)} lazy texts and {len(attacks)} of yours are not rewarded")


def _size(held_out: Sequence[Problem]) -> Item:
    error = math.sqrt(0.25 / len(held_out))
    return Item(
        "enough problems",
        len(held_out) >= 100,
        f"with {len(held_out)} problems, accuracy is known to about {2 * error:.1%} either way",
    )


def _seeds(runs: Sequence[Mapping[str, float]]) -> Item:
    seeds = {run.get("seed") for run in runs}
    whole = [run for run in runs if {"seed", "before", "after"} <= run.keys()]
    if len(whole) < len(runs):
        return Item("a baseline", False, 'a run lacks "seed", "before" or "after": measure before training, too')
    return Item("several seeds", len(seeds) >= 3, f"{len(seeds)} of at least 3, each measured before and after")


def _gain(runs: Sequence[Mapping[str, float]]) -> Item:
    gains = [run["after"] - run["before"] for run in runs if {"before", "after"} <= run.keys()]
    if len(gains) < 2:
        return Item("a gain", False, "nobody can say whether a single run was luck")
    error = float(np.std(gains, ddof=1) / math.sqrt(len(gains)))
    words = f"{np.mean(gains):+.3f}, with a standard error of {error:.3f} over {len(gains)} runs"
    return Item("a gain", bool(np.mean(gains) > 2 * error and np.mean(gains) > 0), words)
