"""The records of a run, and statistics for the diagnosis: of the latest steps, and of several points in the past.

At the end of the file is the form of numbers and texts in its messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any

RECENT = 20  # the number of steps that a symptom must last
SOON = 10  # the number of latest steps that are enough if there is no noise
MOST_TEXTS = 256  # the number of latest completions that are read
PLACES, NEIGHBOURS = 12, 5  # the number of points in the past, and of steps averaged at each, because one step is noisy
PATIENCE = 3  # this many steps in a row without a symptom end it


@dataclass
class History:
    """The records of a run, and the statistics that define symptoms."""

    records: Sequence[Any]

    def __post_init__(self):
        count = len(self.records)
        self.recent = [self.records[i] for i in range(max(count - RECENT, 0), count)]
        # The points in the past: the beginning, then evenly spaced up to the recent steps.
        last = max(count - RECENT - NEIGHBOURS, 0)
        starts = sorted({round(last * i / (PLACES - 1)) for i in range(PLACES)})
        self.past = [[self.records[i] for i in range(a, min(a + NEIGHBOURS, count))] for a in starts]

    @property
    def long_enough(self) -> bool:
        return len(self.records) >= RECENT

    def has(self, name: str) -> bool:
        return name in metrics_of(self.recent[-1])

    def names(self) -> Iterable[str]:
        return metrics_of(self.recent[-1]).keys()

    def now(self, name: str, count: int = RECENT) -> float:
        """Return the mean over the latest `count` steps; NaN if fewer than half of them have a value."""
        values = [number_of(record, name) for record in self.recent[-count:]]
        return mean_of(values) if 2 * sum(map(math.isnan, values)) <= len(values) else math.nan

    def before(self, name: str) -> list[tuple[float, int]]:
        """List (mean, step) for each point in the past."""
        means = [(mean_of(number_of(record, name) for record in place), step_of(place[0])) for place in self.past]
        return [each for each in means if not math.isnan(each[0])]

    def first(self, name: str) -> float:
        return next((mean for mean, _ in self.before(name)), math.nan)

    def start(self, name: str) -> float:
        """Return the value in the first step, whose completions come from the policy before any update."""
        return number_of(self.records[0], name)

    def values(self, name: str, first: bool = False) -> list[float]:
        """List the known values of the latest RECENT steps, or of the first RECENT steps if `first` is True."""
        records = [self.records[i] for i in range(min(RECENT, len(self.records)))] if first else self.recent
        return [value for record in records if not math.isnan(value := number_of(record, name))]

    def moved(self, name: str) -> float:
        """Return the difference between the means of the latest and the first RECENT steps, in standard errors.

        It is NaN without enough values.
        """
        before, now = self.values(name, first=True), self.values(name)
        if min(len(before), len(now)) < RECENT // 2:
            return math.nan
        error = math.sqrt(variance_of(before) / len(before) + variance_of(now) / len(now))
        change = mean_of(now) - mean_of(before)
        return change / error if error else math.copysign(math.inf, change) if change else 0.0

    def noise(self, name: str) -> float:
        """Return the standard deviation from step to step, within each point in the past and the latest steps."""
        places = [[number_of(record, name) for record in place] for place in self.past] + [self.values(name)]
        known = [[value for value in place if not math.isnan(value)] for place in places]
        freedom = sum(len(place) - 1 for place in known if place)
        squares = sum((len(place) - 1) * variance_of(place) for place in known if len(place) > 1)
        return math.sqrt(squares / freedom) if freedom else math.nan

    def best(self, name: str) -> tuple[float, int]:
        return max(self.before(name), default=(math.nan, 0))

    def since(self, test: Callable[[Mapping[str, Any]], bool]) -> int:
        """Return the step since which `test` has been true, apart from a few exceptions."""
        first, missed = step_of(self.records[-1]), 0
        for i in range(len(self.records) - 1, -1, -1):
            if test(metrics_of(self.records[i])):
                first, missed = step_of(self.records[i]), 0
            elif not math.isnan(number_of(self.records[i], "reward")):
                missed += 1
                if missed == PATIENCE:
                    break
        return first

    @cached_property
    def latest(self) -> list[Any]:
        """The latest completions, MOST_TEXTS at most."""
        return list(islice((c for record in reversed(self.recent) for c in completions_of(record)), MOST_TEXTS))

    @cached_property
    def earliest(self) -> list[Any]:
        """The completions of the first steps."""
        count = min(NEIGHBOURS, len(self.records))
        return [completion for i in range(count) for completion in completions_of(self.records[i])]

    @cached_property
    def commonest(self) -> tuple[str, float, int, bool | None]:
        """The most common completion: (text, share of the latest, number of different prompts, right answers differ).

        The prompts and right answers are those of all the latest completions. The last item is True or False, or None
        if right answers are unknown.
        """
        each = self.latest
        if not each:
            return "", 0.0, 0, None
        text, times = Counter(field_of(c, "completion") for c in each).most_common(1)[0]
        answers = {answer_of(c) for c in each} - {None}
        return (
            text,
            times / len(each),
            len({field_of(c, "prompt") for c in each}),
            len(answers) > 1 if answers else None,
        )

    @property
    def solved(self) -> bool:
        """True if rewards are about as high as ever, and so high for their spread that nine of ten are right."""
        mean, spread = self.now("reward"), self.now("reward_std")
        return mean > 0 and mean >= 3 * spread and not mean < 0.9 * self.best("reward")[0]

    @property
    def is_tied(self) -> bool:
        return self.long_enough and self.now("frac_reward_zero_std") >= 0.9

    @property
    def has_learned(self) -> bool:
        """True if the run is solved and its rewards once differed, which a constant reward never does."""
        return self.solved and not self.never_differed

    @property
    def never_differed(self) -> bool:
        return all(mean >= 0.9 for mean, _ in self.before("frac_reward_zero_std"))


def right_share(completions: Iterable[Any]) -> float:
    """Return the share of right completions among those where this is known; NaN if there are none."""
    return mean_of(map(is_right, completions))


def is_right(completion: Any) -> float:
    """Return 1.0 for a right completion, 0.0 for a wrong one, NaN if this is unknown.

    A record may have the task's verdict (`correct`). Without it, a completion is right if it equals the right answer,
    but only if that is a whole number, because other answers can be written in several ways.
    """
    verdict, answer = field_of(completion, "correct"), answer_of(completion)
    if verdict is None and answer is not None and str(answer).isdecimal():
        verdict = field_of(completion, "completion").strip() == str(answer)
    return math.nan if verdict is None else float(verdict)


def groups_of(completions: Iterable[Any]) -> list[list[Any]]:
    """Group adjacent completions of the same prompt, and leave out prompts with only one."""
    parts = groupby(completions, key=lambda each: (field_of(each, "group"), field_of(each, "prompt")))
    return [group for _, part in parts if len(group := list(part)) > 1]


def alike_share(groups: Sequence[Sequence[Any]]) -> float:
    """Return the share of groups in which all completions are the same text."""
    return mean_of(float(len({field_of(each, "completion") for each in group}) == 1) for group in groups)


def metrics_of(record: Any) -> Mapping[str, Any]:
    return record if isinstance(record, Mapping) else record.metrics


def step_of(record: Any) -> int:
    return field_of(record, "step")


def completions_of(record: Any) -> Sequence[Any]:
    return field_of(record, "completions") or ()


def field_of(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


def answer_of(completion: Any) -> str | None:
    problem = field_of(completion, "problem")
    return field_of(completion, "answer") if problem is None else field_of(problem, "answer")


def number_of(record: Any, name: str) -> float:
    """Return a metric; NaN if the step does not have it. In a file, NaN is null."""
    value = metrics_of(record).get(name)
    return math.nan if value is None else value


def mean_of(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def variance_of(values: Sequence[float]) -> float:
    mean = mean_of(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else 0.0


def correlation_of(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return (correlation of two columns, slope of y over x); NaN if a column is constant or has a NaN."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    product = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    of_x, of_y = (sum((value - mean) ** 2 for value in each) for each, mean in ((xs, mean_x), (ys, mean_y)))
    return (product / math.sqrt(of_x * of_y), product / of_x) if of_x * of_y > 0 else (math.nan, math.nan)


def short(value: float) -> str:
    """Write a number with three digits, or two below 0.01: 0.4567 -> "0.457". Anything below 0.0001 is "0"."""
    return f"{value:.{3 if abs(value) >= 0.01 else 2}g}" if abs(value) >= 1e-4 else "0"


def quoted(text: str) -> str:
    """Put a text in quotation marks, with control characters escaped, cut off after 40 characters."""
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
