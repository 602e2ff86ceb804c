"""Two versions of a run on the same seeds: the differences, seed by seed, and what they allow you to claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlx_grpo_kit.course.compare import show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, Result

CLAIMS = ("better", "worse", "no difference")
FEWEST = 5  # seeds

_passed: dict[str, dict[str, list]] = {}  # exercise -> the report with which it passed


def paired(before: Callable[[int], float], after: Callable[[int], float], seeds: Sequence[int] = range(5)) -> dict:
    """Run both versions with each seed, print the differences, and return them as a report.

    Args:
        before, after: functions of a seed that return a number, such as an accuracy.
        seeds: the same for both.

    Returns:
        {"seeds": [...], "before": [...], "after": [...]}: plain numbers, in the order of the seeds.
    """
    report: dict[str, list] = {"seeds": [], "before": [], "after": []}
    for seed in seeds:
        numbers = round(float(before(seed)), 4), round(float(after(seed)), 4)
        for name, value in zip(report, (int(seed), *numbers), strict=True):
            report[name].append(value)
        print(f"seed {seed}: {numbers[0]:.3f} and {numbers[1]:.3f}, difference {numbers[1] - numbers[0]:+.3f}")
    print(in_words(report))
    return report


def interval(report: Mapping[str, Sequence[float]]) -> tuple[float, float, float]:
    """(mean difference, lower end, upper end): 95% of such intervals contain the difference of all seeds there are.

    Student's interval for the mean of paired differences, after minus before.
    """
    from scipy.stats import t

    differences = np.subtract(report["after"], report["before"])
    n = len(differences)
    if n < 2:
        return float(differences.mean()), -math.inf, math.inf
    mean, error = differences.mean(), differences.std(ddof=1) / math.sqrt(n)
    reach = float(t.ppf(0.975, n - 1)) * error
    return float(mean), float(mean - reach), float(mean + reach)


def supported(report: Mapping[str, Sequence[float]]) -> str:
    """The claim that the report supports: "better", "worse", or "no difference" where the interval contains 0."""
    _, low, high = interval(report)
    return "better" if low > 0 else "worse" if high < 0 else "no difference"


def in_words(report: Mapping[str, Sequence[float]]) -> str:
    """The mean difference with its interval, and what may be claimed."""
    mean, low, high = interval(report)
    verdict = {
        "better": "the second version is better",
        "worse": "the second version is worse",
        "no difference": "no difference was shown",
    }[supported(report)]
    return f"mean difference {mean:+.3f}, 95% interval {low:+.3f} to {high:+.3f}: {verdict}"


class Extension(Exercise):
    """An exercise whose answer is (claim, report): a change of the reader's own, judged by what it claims."""

    def _examine_value(self, answer: Any) -> Result:
        named = {mistake.name: mistake for mistake in self.mistakes}
        complaint = _complaint(answer)
        if complaint is None:
            numbers = {name: list(values) for name, values in answer[1].items()}
            if other := next((id for id, theirs in _passed.items() if theirs == numbers and id != self.id), None):
                complaint = f"That is the report with which {other} passed. Measure another change."
        if complaint is None:
            _passed[self.id] = numbers
            return Result(self, "passed", f"{in_words(answer[1])}.")
        if complaint in named:
            return Result(self, "not yet", named[complaint].message, named[complaint].hint)
        return Result(self, "not yet", complaint, 1)


def _complaint(answer: Any) -> str | None:
    """The name of a mistake, other words for what is wrong, or None."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        return f"{show(answer)} is not a tuple of a claim and a report of `paired`."
    claim, report = answer
    if isinstance(claim, Mapping) and isinstance(report, str):
        return "the other way round"
    if claim not in CLAIMS:
        return f'{show(claim)} is not one of the claims "better", "worse" and "no difference".'
    if not isinstance(report, Mapping) or {*report} != {"seeds", "before", "after"}:
        return f"{show(report)} is not a report of `paired`."
    seeds, before, after = (list(report[name]) for name in ("seeds", "before", "after"))
    if not len(seeds) == len(before) == len(after):
        return "unpaired"
    if not all(map(math.isfinite, [*before, *after])):
        return "The report contains a number that is not finite."
    if beyond := [each for each in (*before, *after) if not 0 <= each <= 1]:
        return f"The report contains {show(beyond[0])}, and an accuracy is a share, from 0 to 1."
    if len({*seeds}) < len(seeds):
        return "a seed twice"
    if len(seeds) < FEWEST:
        return "too few seeds"
    if before == after:
        return "the same program twice"
    if claim == supported(report):
        return None
    if supported(report) == "no difference":
        return "more than was shown"
    return "less than was shown" if claim == "no difference" else "the wrong direction"


def mistakes_with(report: Mapping[str, Sequence[float]]) -> tuple[Mistake, ...]:
    """The mistakes of a claim, as wrong answers made from a report whose interval contains 0."""
    seeds, before = list(report["seeds"]), list(report["before"])
    up = {"seeds": seeds, "before": before, "after": [each + 0.1 + 0.001 * n for n, each in enumerate(before)]}
    few = {name: list(values)[:3] for name, values in report.items()}
    return (
        Mistake(
            "too few seeds",
            ("no difference", few),
            "Fewer than five seeds. With three the interval reaches 4.3 standard errors to both sides, which hides "
            "nearly every difference. Run at least five.",
            2,
        ),
        Mistake(
            "a seed twice",
            ("no difference", {**report, "seeds": [seeds[0], *seeds[:-1]]}),
            "A seed occurs twice. The same run counted twice makes the interval narrower and teaches nothing.",
            2,
        ),
        Mistake(
            "unpaired",
            ("no difference", {**report, "after": list(report["after"])[:-1]}),
            "`before` and `after` differ in length: every seed needs a run of both versions.",
            2,
        ),
        Mistake(
            "the same program twice",
            ("no difference", {**report, "after": before}),
            "Both versions gave exactly the same numbers with every seed. Either your second version does not reach "
            "the line that you changed, or the change multiplies the gradient by a constant, which Adam cancels. "
            "Leave-one-out, for example, is the reward minus the mean, times G / (G - 1). Measure another "
            "change.",
            1,
        ),
        Mistake(
            "more than was shown",
            ("better", dict(report)),
            "The interval contains 0, so these runs do not show that difference. That is a result too: claim "
            '"no difference", or run more seeds.',
            3,
        ),
        Mistake(
            "less than was shown",
            ("no difference", up),
            "The interval does not contain 0: there is a difference. Say which way it goes.",
            3,
        ),
        Mistake(
            "the wrong direction",
            ("worse", up),
            "The difference has the other sign: it is `after` minus `before`.",
            3,
        ),
        Mistake(
            "the other way round",
            (dict(report), "no difference"),
            "The claim comes first, then the report.",
            1,
        ),
    )
