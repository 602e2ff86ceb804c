"""The records of a run, and the numbers in them that a diagnosis asks for: the latest steps, and places of the past."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any

RECENT = 20  # steps that a symptom has to last
SOON = 10  # latest steps that are enough where there is no noise
MOST_TEXTS = 256  # latest completions that are read
PLACES, NEIGHBOURS = 12, 5  # where the past is looked at, and steps at each place, averaged because one step is noise
PATIENCE = 3  # steps in a row without a symptom end it


@dataclass
class History:
    """The records of a run, and the numbers in them that symptoms are judged by."""

    records: Sequence[Any]

    def __post_init__(self):
        count = len(self.records)
        self.recent = [self.records[i] for i in range(max(count - RECENT, 0), count)]
        # Places of the past: the beginning, then evenly spaced up to the recent steps.
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
        """The mean over the latest `count` steps; NaN where fewer than half of them have a value."""
        values = [number_of(record, name) for record in self.recent[-count:]]
        return mean_of(values) if 2 * sum(map(math.isnan, values)) <= len(values) else math.nan

    def before(self, name: str) -> list[tuple[float, int]]:
        """The places of the past: (mean, step)."""
        means = [(mean_of(number_of(record, name) for record in place), step_of(place[0])) for place in self.past]
        return [each for each in means if not math.isnan(each[0])]

    def first(self, name: str) -> float:
        return next((mean for mean, _ in self.before(name)), math.nan)

    def start(self, name: str) -> float:
        """The number of the first step, whose completions are those of the policy before any update."""
        return number_of(self.records[0], name)

    def values(self, name: str, first: bool = False) -> list[float]:
        """The known values of the latest RECENT steps, or of the first."""
        records = [self.records[i] for i in range(min(RECENT, len(self.records)))] if first else self.recent
        return [value for record in records if not math.isnan(value := number_of(record, name))]

    def moved(self, name: str) -> float:
        """The distance of the latest RECENT steps above the first, in standard errors; NaN without enough values."""
        before, now = self.values(name, first=True), self.values(name)
        if min(len(before), len(now)) < RECENT // 2:
            return math.nan
        error = math.sqrt(variance_of(before) / len(before) + variance_of(now) / len(now))
        change = mean_of(now) - mean_of(before)
        return change / error if error else math.copysign(math.inf, change) if change else 0.0

    def noise(self, name: str) -> float:
        """The standard deviation from step to step, within each place of the past and within the latest steps."""
        places = [[number_of(record, name) for record in place] for place in self.past] + [self.values(name)]
        known = [[value for value in place if not math.isnan(value)] for place in places]
        freedom = sum(len(place) - 1 for place in known if place)
        squares = sum((len(place) - 1) * variance_of(place) for place in known if len(place) > 1)
        return math.sqrt(squares / freedom) if freedom else math.nan

    def best(self, name: str) -> tuple[float, int]:
        return max(self.before(name), default=(math.nan, 0))

    def since(self, test: Callable[[Mapping[str, Any]], bool]) -> int:
        """The step from which on `test` has held, a few exceptions aside."""
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
        """(text, its share of the latest completions, different prompts, whether the right answers differ).

        The last is None where no right answers are known.
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
        """True if rewards are as high as they ever were, and high for their spread: nine of ten right."""
        mean, spread = self.now("reward"), self.now("reward_std")
        return mean > 0 and mean >= 3 * spread and not mean < 0.9 * self.best("reward")[0]

    @property
    def is_tied(self) -> bool:
        return self.long_enough and self.now("frac_reward_zero_std") >= 0.9

    @property
    def has_learned(self) -> bool:
        """True if it is solved and was not solved from the first step on, as a constant reward seems to be."""
        return self.solved and not self.never_differed

    @property
    def never_differed(self) -> bool:
        return all(mean >= 0.9 for mean, _ in self.before("frac_reward_zero_std"))


def right_share(completions: Iterable[Any]) -> float:
    """The share of right completions; NaN where it is known of none."""
    return mean_of(map(is_right, completions))


def is_right(completion: Any) -> float:
    """Return 1.0 for a right completion, 0.0 for a wrong one, NaN where it is not known.

    A record may have the task's verdict (`correct`). Otherwise a completion is right if it is the right answer, where
    that is a number: other texts may be right in several forms.
    """
    verdict, answer = field_of(completion, "correct"), answer_of(completion)
    if verdict is None and answer is not None and str(answer).isdecimal():
        verdict = field_of(completion, "completion").strip() == str(answer)
    return math.nan if verdict is None else float(verdict)


def groups_of(completions: Iterable[Any]) -> list[list[Any]]:
    """Completions next to each other to one prompt; those without a neighbour are left out."""
    parts = groupby(completions, key=lambda each: (field_of(each, "group"), field_of(each, "prompt")))
    return [group for _, part in parts if len(group := list(part)) > 1]


def alike_share(groups: Sequence[Sequence[Any]]) -> float:
    """The share of the groups whose completions are all one text."""
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
    """A metric; NaN where the step has none. A file has null for NaN."""
    value = metrics_of(record).get(name)
    return math.nan if value is None else value


def mean_of(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def variance_of(values: Sequence[float]) -> float:
    mean = mean_of(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else 0.0


def correlation_of(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """(the correlation of two columns, the slope of y over x); NaN where one of them is constant or has a NaN."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    product = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    of_x, of_y = (sum((value - mean) ** 2 for value in each) for each, mean in ((xs, mean_x), (ys, mean_y)))
    return (product / math.sqrt(of_x * of_y), product / of_x) if of_x * of_y > 0 else (math.nan, math.nan)
