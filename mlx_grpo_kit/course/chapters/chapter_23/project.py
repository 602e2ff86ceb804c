"""The closing project: a list of what a result has to show, which checks itself where it can.

    print(checklist(task, runs, attacks=["46 or 47", "<answer>" * 50]))

`runs` has an entry for each seed: the accuracy on held-out problems before and after, both of the same problems.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.tasks import Problem, Task, TaskError, validate_task
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems, sample_problems

SOME = 64
LAZY = ("", " ", "0", "1", "yes", "<answer></answer>", "<answer>" * 20, "I do not know.", "0123456789", "\\boxed{}")
"""What policies come to who were paid for it; tried on every task, beside your own attacks."""


@dataclass(frozen=True)
class Item:
    """One line of the list: whether it holds (None: nobody but you can say), and why."""

    name: str
    holds: bool | None
    words: str

    def __str__(self) -> str:
        mark = {True: "\N{CHECK MARK}", False: "\N{BALLOT X}", None: "?"}[self.holds]
        return f"{mark} {self.name}: {self.words}"


class Checklist(list):
    """Items; `print` shows them one below the other."""

    def __str__(self) -> str:
        done = sum(item.holds is True for item in self)
        return "\n".join([*map(str, self), f"{done} of {len(self)} hold."])


def checklist(
    task: Task,
    runs: Sequence[Mapping[str, float]],
    attacks: Sequence[str] = (),
    num_held_out: int = 256,
) -> Checklist:
    """What a result of training on `task` shows, and what it does not.

    Args:
        task: yours, as it was trained on.
        runs: for each seed `{"seed": 0, "before": 0.44, "after": 0.61}`.
        attacks: texts that a lazy policy might write, of your own.
        num_held_out: problems that accuracy was measured on.
    """
    items = Checklist([_whole(task)])
    if items[0].holds:
        held_out = held_out_problems(task, num_held_out)
        items += [_repeats(task), _apart(task, held_out), _answers(task, held_out), _attacked(task, held_out, attacks)]
        items.append(_size(held_out))
    items += [_seeds(runs), _gain(runs)]
    items.append(
        Item("read", None, "thirty completions of the last step, and the ten shortest: is it what you wanted?")
    )
    return items


def _whole(task: Task) -> Item:
    try:
        validate_task(task)
        sample_problems(task, np.random.default_rng(0), 4)
        held_out_problems(task, 1)
    except (TypeError, TaskError) as error:
        return Item("a task", False, str(error))
    return Item("a task", True, f"{task.name!r} has all that the trainer asks for")


def _repeats(task: Task) -> Item:
    one, same, other = (sample_problems(task, np.random.default_rng(seed), SOME) for seed in (0, 0, 1))
    if one != same:
        return Item(
            "seeds", False, "`sample` returns other problems for the same seed: draw with `rng` and nothing else"
        )
    return Item("seeds", one != other, "`sample` repeats itself for a seed" + ("" if one != other else ", and for any"))


def _apart(task: Task, held_out: Sequence[Problem]) -> Item:
    known = {problem.text for problem in held_out}
    if len(known) < len(held_out):
        return Item("held out", False, f"{len(held_out) - len(known)} of {len(held_out)} held-out problems stand twice")
    drawn = sample_problems(task, np.random.default_rng(2), 32 * SOME)
    if seen := {problem.text for problem in drawn} & known:
        return Item("held out", False, f"training asks held-out problems, such as {min(seen)!r}")
    return Item("held out", True, f"none of {len(held_out)} problems among {len(drawn)} draws of training")


def _answers(task: Task, held_out: Sequence[Problem]) -> Item:
    some = [problem for problem in held_out[:SOME] if problem.answer]
    if not some:
        return Item("right answers", None, "the problems have none to try: is one that you know to be right accepted?")
    right = are_correct(task, some, [problem.answer for problem in some])
    total, _ = compute_rewards(task.reward_funcs, some, [problem.answer for problem in some])
    wrong = [problem for problem, each in zip(some, right, strict=True) if not each]
    if wrong:
        return Item("right answers", False, f"{wrong[0].answer!r} is not accepted for {wrong[0].text!r}")
    return Item("right answers", True, f"{len(some)} of {len(some)} are accepted, and rewarded with {total.mean():.3g}")


def _attacked(task: Task, held_out: Sequence[Problem], attacks: Sequence[str]) -> Item:
    """A text that is paid as well as right answers are, on most problems, without being one."""
    some = [problem for problem in held_out[:SOME] if problem.answer]
    best = compute_rewards(task.reward_funcs, some, [each.answer for each in some])[0].mean() if some else 1.0
    answers = [problem.answer for problem in some]
    attacks = [attacks] if isinstance(attacks, str) else attacks
    for text in (*LAZY, *attacks, *(problem.text for problem in held_out[:1])):
        rewards, _ = compute_rewards(task.reward_funcs, held_out[:SOME], [text] * len(held_out[:SOME]))
        right = np.mean(are_correct(task, held_out[:SOME], [text] * len(held_out[:SOME])))
        if rewards.mean() > max(best, 0) / 2 and right < 0.5:
            paid = f"{text[:40]!r} is paid {rewards.mean():.3g} on average and a right answer {best:.3g}"
            return Item("attacks", False, f"{paid}; it is right on {right:.0%}")
        commonest = max(map(answers.count, answers), default=0) / max(len(answers), 1)
        if answers and right >= 0.5 > commonest:
            return Item("attacks", False, f"{text[:40]!r} counts as right on {right:.0%}, though their answers differ")
    if not attacks:
        return Item(
            "attacks", False, f"the {len(LAZY)} lazy texts are not paid; now think of some of your own (`attacks`)"
        )
    return Item("attacks", True, f"{len(LAZY)} lazy texts and {len(attacks)} of yours are not paid")


def _size(held_out: Sequence[Problem]) -> Item:
    error = math.sqrt(0.25 / len(held_out))
    return Item(
        "enough problems",
        len(held_out) >= 100,
        f"accuracy on {len(held_out)} problems is known to about {2 * error:.1%} either way, by their number alone",
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
        return Item("a gain", False, "of one run nobody can say whether it was luck")
    error = float(np.std(gains, ddof=1) / math.sqrt(len(gains)))
    words = f"{np.mean(gains):+.3f}, with a standard error of {error:.3f} over {len(gains)} runs"
    return Item("a gain", bool(np.mean(gains) > 2 * error and np.mean(gains) > 0), words)
