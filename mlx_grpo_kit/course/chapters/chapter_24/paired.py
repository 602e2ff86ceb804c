"""Two versions of a run on the same seeds: the differences, seed by seed, and what they allow you to claim."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_24.small import copied
from mlx_grpo_kit.course.chapters.chapter_24.training import PROBLEMS, distance, held_out_accuracy, misfit, model
from mlx_grpo_kit.course.compare import same, say, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, Result
from mlx_grpo_kit.runtime import mx

CLAIMS = ("better", "worse", "no difference")
FEWEST = 5  # seeds
LEARNED = 0.01  # above the exam before training, for at least one version
ANOTHER_RUN = 0.5  # of the distance between two seeds: rounding on a GPU leads less far

Params = Mapping[str, mx.array]
Version = Callable[[int], Params]


@dataclass(frozen=True)
class Run:
    """What `paired` has done: enough to repeat a part of it.

    Attributes:
        before, after: the two versions, functions of a seed.
        seeds: of the runs.
        numbers: the report as it was returned.
        start: the exam before training.
        marks: for each version, by seed, a number that only these parameters have.
        first, second: the parameters of `after` with the first two seeds.
        seconds: of training, for one run of each version together.
        example: True if no exercise accepts it.
    """

    before: Version
    after: Version
    seeds: tuple[int, ...]
    numbers: Mapping[str, list]
    start: float
    marks: Mapping[str, Mapping[int, str]]
    first: Params = field(default_factory=dict, repr=False)
    second: Params = field(default_factory=dict, repr=False)
    seconds: float = 0.0
    example: bool = False

    def is_like(self, other: Run) -> bool:
        """True if the same two versions were run, in either order, on the seeds that both have."""
        shared = {*self.seeds} & {*other.seeds}
        mine, theirs = (
            [[run.marks[name][seed] for seed in sorted(shared)] for name in ("before", "after")]
            for run in (self, other)
        )
        return bool(shared) and theirs in (mine, mine[::-1])


class Report(dict):
    """{"seeds": [...], "before": [...], "after": [...]}, which remembers the run that it comes from."""

    def __init__(self, numbers: Mapping[str, list], run: Run):
        super().__init__(numbers)
        self.run = run


_passed: dict[str, Mapping] = {}  # exercise -> the report with which it passed
_examples: list[Run] = []


def paired(
    before: Version,
    after: Version,
    seeds: Sequence[int] = range(5),
    on: Any = None,
    problems: int = PROBLEMS,
    example: bool = False,
) -> Report:
    """Train both versions with each seed, let them take the exam, print the differences, and return a report.

    Args:
        before, after: functions of a seed that return trained parameters of the shipped model's shape.
        seeds: the same for both.
        on: the task of the exam, if it is not addition.
        problems: the number of held-out problems in the exam.
        example: True for a comparison that no exercise shall accept.

    Returns:
        {"seeds": [...], "before": [...], "after": [...]}: accuracies from 0 to 1, in the order of the seeds.

    Raises:
        TypeError, ValueError: a version returned something other than finite parameters.
    """
    report: dict[str, list] = {"seeds": [], "before": [], "after": []}
    marks: dict[str, dict[int, str]] = {"before": {}, "after": {}}
    kept: list[Params] = []
    began, spent = 0.0, 0.0
    start = held_out_accuracy(model()[1], problems, on=on)
    print(f"before training: {start:.1%}")
    for seed in seeds:
        report["seeds"].append(int(seed))
        for name, version in (("before", before), ("after", after)):
            began = time.perf_counter()
            params = _trained(version, seed, name)
            spent += time.perf_counter() - began
            report[name].append(round(held_out_accuracy(params, problems, on=on), 3))  # as printed
            marks[name][int(seed)] = _mark(params)
        if len(kept) < 2:
            kept.append(copied(params))
        one, other = (report[name][-1] for name in ("before", "after"))
        print(f"seed {seed}: {one:.1%} and {other:.1%}, difference {in_points(other - one)} points")
    print(in_words(report))
    if supported(report) == "no difference" and len(report["seeds"]) >= FEWEST:
        found = f"{100 * detectable(report):.1f} points in four comparisons out of five"
        print(f"with differences that scatter like these, {len(report['seeds'])} seeds find a difference of {found}")
    run = Run(
        before,
        after,
        tuple(report["seeds"]),
        {name: [*values] for name, values in report.items()},
        start,
        marks,
        *(kept if len(kept) == 2 else ()),
        seconds=spent / max(len(report["seeds"]), 1),
        example=example,
    )
    if example:
        _examples.append(run)
    return Report(report, run)


def _trained(version: Version, seed: int, name: str) -> Params:
    """What a version returns. Raises TypeError or ValueError for anything but finite parameters."""
    params = version(seed)
    if not isinstance(params, Mapping):
        raise TypeError(
            f"`{name}({seed})` returned {show(params)}, a {type(params).__name__}. Return the parameters at the end of "
            "the run, a dictionary: `paired` takes the exam itself. (If your loop is a generator `train`, the last of "
            "what it yields: `*_, params = train(...)`.)"
        )
    if (complaint := misfit(params, model()[1], "")) is not None:
        raise ValueError(f"`{name}({seed})` returned {complaint}.")
    return params


def _mark(params: Params) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(params):
        digest.update(np.asarray(mx.array(params[name]).astype(mx.float32)).tobytes())
    return digest.hexdigest()


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


def detectable(report: Mapping[str, Sequence[float]], power: float = 0.8) -> float:
    """The true mean difference that the paired t-test at 5% finds with probability `power`, with as many seeds.

    The differences of single seeds are assumed to be normal, with the standard deviation that they have in the report.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    differences = np.subtract(report["after"], report["before"])
    n = len(differences)
    bound = t.ppf(0.975, n - 1)
    in_deviations = brentq(lambda effect: nct.sf(bound, n - 1, effect * math.sqrt(n)) - power, 0.0, 3.0)
    return float(in_deviations * differences.std(ddof=1))


def in_words(report: Mapping[str, Sequence[float]]) -> str:
    """The mean difference with its interval in percentage points, and what may be claimed."""
    mean, low, high = map(in_points, interval(report))
    verdict = {
        "better": "the second version is better",
        "worse": "the second version is worse",
        "no difference": "no difference was shown",
    }[supported(report)]
    return f"mean difference {mean} points, 95% interval {low} to {high}: {verdict}"


def in_points(share: float) -> str:
    """Percentage points with one decimal; more only where an end of an interval would look like 0 and is not."""
    points = round(100 * share, 6)
    text = f"{points:+.1f}"
    return text if points == 0 or float(text) != 0 else f"{points:+.1g}"


class Extension(Exercise):
    """An exercise whose answer is (claim, report): a change of the reader's own, judged by what it claims."""

    def _examine_value(self, answer: Any) -> Result:
        named = {mistake.name: mistake for mistake in self.mistakes}
        complaint = None if same(answer, self.solution) else _complaint(answer, self.id)
        if complaint is None:
            _passed[self.id] = answer[1]
            return Result(self, "passed", f"{in_words(answer[1])}.")
        if complaint in named:
            return self._wrong(named[complaint].message, named[complaint])
        return Result(self, "not yet", complaint, 2)


def _complaint(answer: Any, id: str) -> str | None:
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
    if not isinstance(report, Report) or not same(dict(report), report.run.numbers):
        return "numbers of one's own"
    run = report.run
    if run.example or any(map(run.is_like, _examples)):
        return "the example"
    for other, theirs in _passed.items():
        if other != id and isinstance(theirs, Report) and (theirs is report or run.is_like(theirs.run)):
            return f"That is the comparison with which {other} passed. Measure another change."
    if len({*run.seeds}) < len(run.seeds):
        return "a seed twice"
    if len(run.seeds) < FEWEST:
        return "too few seeds"
    if run.marks["before"] == run.marks["after"] or report["before"] == report["after"]:
        return "the same program twice"
    if any(len({*marks.values()}) < len(marks) for marks in run.marks.values()):
        return "the seed ignored"
    if max(map(np.mean, (report["before"], report["after"]))) <= run.start + LEARNED:
        return "nothing learned"
    if claim != supported(report):
        if supported(report) == "no difference":
            return "more than was shown"
        return "less than was shown" if claim == "no difference" else "the wrong direction"
    return _repeated(run)


def _repeated(run: Run) -> str | None:
    """What is wrong with one more run of each version: `after` with a seed of the report, `before` with a new one."""
    print(f"check trains both versions once more (seconds: about {run.seconds:.0f}) ...")
    old, new = run.seeds[0], max(run.seeds) + 1
    found = {}
    for name, version, seed in (("after", run.after, old), ("before", run.before, new)):
        try:
            found[name] = _trained(version, seed, name)
        except Exception as error:
            return (
                f"check called `{name}({seed})` once more, and it raised {type(error).__name__}: {say(error)}. "
                "Both versions must be functions that train from the beginning, with any seed."
            )
    if _mark(found["after"]) != run.marks["after"][old]:
        moved = distance(found["after"], run.first)
        if moved > ANOTHER_RUN * distance(run.second, run.first):
            return (
                f"check called `after({old})` once more, and it returned other parameters than for the report. If a "
                "run does not repeat with its seed, the luck of both versions does not cancel. Make all random numbers "
                "from the seed, and make the optimizer, running means and other state inside the function."
            )
    if _mark(found["before"]) in run.marks["before"].values():
        return "the seed ignored"
    return None


def mistakes_with(numbers: Mapping[str, Sequence[float]]) -> tuple[Mistake, ...]:
    """The mistakes of a claim, as wrong answers made from numbers whose interval contains 0."""
    seeds, before = list(numbers["seeds"]), list(numbers["before"])
    report = as_if_run(numbers)
    up = as_if_run({**numbers, "after": [each + 0.1 + 0.001 * n for n, each in enumerate(before)]})
    return (
        Mistake(
            "numbers of one's own",
            ("no difference", dict(numbers)),
            "These numbers do not come from `paired` as they are: they were typed, copied or changed, or come from an "
            'earlier session. Pass what `paired` returned: `report = paired(...)`, then `("better", report)` or '
            "another claim. The check runs both versions once more, and the report remembers them.",
            2,
        ),
        Mistake(
            "the example",
            ("no difference", as_if_run(numbers, example=True)),
            "That is the comparison of the example, which the notebook made for you. Change something else.",
            1,
        ),
        Mistake(
            "too few seeds",
            ("no difference", as_if_run({name: list(values)[:3] for name, values in numbers.items()})),
            "Fewer than five seeds. With three the interval reaches 4.3 standard errors to both sides, which hides "
            "nearly every difference. Run at least five.",
            2,
        ),
        Mistake(
            "a seed twice",
            ("no difference", as_if_run({**numbers, "seeds": [seeds[0], *seeds[:-1]]})),
            "A seed occurs twice. The same run counted twice makes the interval narrower and teaches nothing.",
            2,
        ),
        Mistake(
            "the seed ignored",
            ("no difference", as_if_run(numbers, marks=["the same"] * len(seeds))),
            "Two seeds gave exactly the same parameters. If the seed has no influence, all differences are one and the "
            "same measurement, and the interval is much too narrow. Draw problems and completions with the seed.",
            2,
        ),
        Mistake(
            "nothing learned",
            ("no difference", as_if_run(numbers, start=0.9)),
            "Neither version learned anything: both means are at most one point above the exam before training, which "
            "`paired` prints first. Two runs that do not learn say nothing about the change. Check that each version "
            "returns the parameters of its last step, or train for more steps.",
            2,
        ),
        Mistake(
            "the same program twice",
            ("no difference", as_if_run({**numbers, "after": before})),
            "Both versions gave exactly the same numbers with every seed. Either your second version does not reach "
            "the line that you changed, or the change multiplies the gradient by a constant, which Adam cancels. "
            "Leave-one-out, for example, is the reward minus the mean, times G / (G - 1). Measure another "
            "change.",
            1,
        ),
        Mistake(
            "more than was shown",
            ("better", report),
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
            (report, "no difference"),
            "The claim comes first, then the report.",
            1,
        ),
    )


def as_if_run(
    numbers: Mapping[str, Sequence[float]],
    start: float = 0.0,
    marks: Sequence[str] | None = None,
    example: bool = False,
    versions: tuple[Version, Version] | None = None,
) -> Report:
    """A report with these numbers, of runs that never took place: for mistakes and tests."""
    numbers = {name: list(values) for name, values in numbers.items()}
    made = {
        name: {
            seed: mark
            for seed, mark in zip(numbers["seeds"], marks or [object() for _ in numbers["seeds"]], strict=True)
        }
        for name in ("before", "after")
    }
    if marks:
        made["after"] = dict.fromkeys(numbers["seeds"], "another")
    before, after = versions or (None, None)
    run = Run(
        before,
        after,
        tuple(numbers["seeds"]),
        {name: [*values] for name, values in numbers.items()},
        start,
        made,
        example=example,
    )
    return Report(numbers, run)
