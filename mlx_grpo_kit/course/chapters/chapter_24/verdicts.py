"""The verdict on exercise 24.9: a line and a number for each of three programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mlx_grpo_kit.course.compare import show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, Result

WITHIN = 0.01  # of the right number


@dataclass(frozen=True)
class Fault:
    """The fault of one program.

    Attributes:
        lines: every line that may be named.
        number: what proves it.
        other_lines: a message for each wrong line that readers name.
        other_numbers: a message for each wrong number that readers compute.
    """

    lines: tuple[int, ...]
    number: float
    other_lines: dict[int, str]
    other_numbers: dict[float, str]

    def complaint(self, line: int, number: float) -> str:
        """Words for a wrong line or, after a right line, for a wrong number. Empty if both are right."""
        if line not in self.lines:
            return self.other_lines.get(line, f"line {line} does what it should.")
        if close(number, self.number):
            return ""
        known = [words for other, words in self.other_numbers.items() if close(number, other)]
        return f"the line is right, and {number:.4g} is not the number. {' '.join(known[:1])}".rstrip()


def close(number: float, other: float) -> bool:
    """True if a number is within 1% of another one, or both are almost 0."""
    return math.isclose(number, other, rel_tol=WITHIN, abs_tol=1e-6)


def mistakes_of(faults: tuple[Fault, ...]) -> tuple[Mistake, ...]:
    """A mistake for each wrong line and number: the right answer with this one in it."""
    right = [(each.lines[0], each.number) for each in faults]
    found = []
    for place, fault in enumerate(faults):
        wrong = [((line, fault.number), words) for line, words in fault.other_lines.items()]
        wrong += [((fault.lines[0], number), words) for number, words in fault.other_numbers.items()]
        for pair, words in wrong:
            answer = [*right[:place], pair, *right[place + 1 :]]
            found.append(Mistake(f"program {place + 1}: {pair}", answer, words, place + 1))
    return tuple(found)


class NamedFaults(Exercise):
    """An exercise whose answer is a list of pairs (line, number), and whose cases are one Fault each."""

    def _examine_value(self, answer: Any) -> Result:
        try:
            pairs = [(int(line), float(number)) for line, number in answer]
        except (TypeError, ValueError):
            pairs = []
        if len(pairs) != len(self.cases):
            return self._wrong(f"{show(answer)} is not a list of {len(self.cases)} pairs (line, number).")
        complaints = [fault.complaint(*pair) for (fault,), pair in zip(self.cases, pairs, strict=True)]
        if not any(complaints):
            return Result(self, "passed", self.explain)
        place, words = next((place, words) for place, words in enumerate(complaints, start=1) if words)
        right = complaints.count("")
        share = f" {right} of the {len(pairs)} programs {'is' if right == 1 else 'are'} right."
        known = (each.name for each in self.mistakes if each.hint == place and words.endswith(each.message))
        return Result(self, "not yet", f"Program {place}: {words}{share}", place, next(known, ""))
