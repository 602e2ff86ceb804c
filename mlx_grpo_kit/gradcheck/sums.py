"""Many derivatives at once: sums of them with random weights, against the slope of the function along those weights.

One wrong derivative makes every sum with it wrong. It is visible if it exceeds the noise of the sum. The noise is
measured: without it, the slopes with one step and with twice that step would be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np

from mlx_grpo_kit.gradcheck.differences import Precision, Probe

ROUNDS = 4  # every derivative is part of this many sums
PARTS = 16  # the row of derivatives is split into this many parts: a shorter sum has less noise
LEAST_WEIGHT, MOST_WEIGHT = 0.5, 1.5  # sizes differ, so that two equal errors do not cancel; the signs are random
SLACK = 6  # the allowed error of a sum, as a multiple of the usual noise
FACTORS = (1, 10, 100)  # divisors of the step if it crosses a kink; the noise grows by the same factor
SEARCHED = 300  # the number of sums after which a search gives up
NEAR = 4  # this few derivatives are compared one by one


class Sum(NamedTuple):
    """One sum of derivatives: its error against the function's slope, and the difference of two steps."""

    off: float
    spread: float


class Sums:
    """Gradients, an array for each of the probe's, as one long row of derivatives, which is compared in parts.

    Attributes:
        tolerance: the allowed error of a right sum, at the step of the precision.
        visible: the smallest error of one derivative that is detected. Infinite before `compare`.
    """

    def __init__(self, probe: Probe, grads: list[np.ndarray], precision: Precision, rng: np.random.Generator):
        self.probe, self.precision, self.rng = probe, precision, rng
        self.grads = [np.asarray(grad, np.float64).ravel() for grad in grads]
        self.ends = np.cumsum([grad.size for grad in grads])
        self.reach = [np.maximum(1.0, np.abs(x.ravel().astype(np.float64))) for x in probe.arrays]  # as in step_at
        self.parts = self._parts()
        self.weights = [self._random_weights() for _ in range(ROUNDS)]
        self.sums = [[self._sum(part, weights) for part in self.parts] for weights in self.weights]
        self.tolerance = SLACK * self._noise() + self._rounding()
        usual = np.concatenate(self.grads)
        usual = usual[np.isfinite(usual)]
        self.useful = max(self.tolerance, 1e-3 * float(np.linalg.norm(usual)) / max(1.0, usual.size**0.5))
        self.visible = np.inf
        self.searched = self.wrong = 0

    def compare(self, look_at: Callable[[int], bool], enough: int) -> bool:
        """Compare every part; halve a wrong part until the wrong derivatives are isolated. True if there are none.

        Args:
            look_at: a function that returns True if the derivative with this number in the row is right.
            enough: the number of wrong derivatives after which the search stops.
        """
        bounds = np.full((ROUNDS, len(self.parts)), np.inf)
        for row, weights in enumerate(self.weights):
            for column, part in enumerate(self.parts):
                agrees, bounds[row, column] = self._verdict(part, weights, self.sums[row][column])
                if not agrees and self.wrong < enough:
                    bounds[row, column] = self._search(part, weights, look_at, enough)
            if self.wrong:
                return False
        self.visible = float(np.max(np.min(bounds, axis=0))) / LEAST_WEIGHT
        return True

    def _noise(self) -> float:
        """The usual difference of two steps. If kinks cause it, shorter steps reach over fewer of them."""
        shorter = [self._sum(part, self.weights[0], FACTORS[1]) for part in self.parts]
        noises = []
        for sums, factor in (([found for row in self.sums for found in row], 1), (shorter, FACTORS[1])):
            noises.append(median([found.spread for found in sums if np.isfinite(found.spread)] or [np.inf]) / factor)
        return min(noises) if np.isfinite(min(noises)) else 0.0

    def _rounding(self) -> float:
        """The least noise: outputs are rounded once each, and so are the terms of a sum."""
        eps = max(np.finfo(x.dtype).eps for x in self.probe.arrays)
        outputs, terms = self.probe.weights * self.probe.here, np.concatenate(self.grads)
        outputs, terms = outputs[np.isfinite(outputs)], terms[np.isfinite(terms)]
        return float(eps * np.linalg.norm(outputs) / self.precision.step + eps * np.abs(terms).sum())

    def _parts(self) -> list[tuple[int, int]]:
        """Pieces of the row, (start, end). Each is within one input."""
        longest = -(-int(self.ends[-1]) // PARTS)
        starts = [0, *map(int, self.ends[:-1])]
        return [
            (first, min(first + longest, int(end)))
            for start, end in zip(starts, self.ends, strict=True)
            for first in range(start, int(end), longest)
        ]

    def _random_weights(self) -> np.ndarray:
        count = int(self.ends[-1])
        return self.rng.choice([-1.0, 1.0], count) * self.rng.uniform(LEAST_WEIGHT, MOST_WEIGHT, count)

    def _verdict(self, part: tuple[int, int], weights: np.ndarray, first: Sum | None = None) -> tuple[bool, float]:
        """Return True if a sum agrees with the function, and the largest error that it may have."""
        for factor in FACTORS:
            found = first if first is not None and factor == 1 else self._sum(part, weights, factor)
            tolerance = self.tolerance * factor
            if tolerance > self.useful:  # the noise would hide errors
                break
            if np.isfinite(found.off) and abs(found.off) <= tolerance and found.spread <= tolerance:
                return True, abs(found.off) + tolerance
        return False, float(np.nan_to_num(abs(found.off), nan=np.inf)) + self.tolerance

    def _search(self, part: tuple[int, int], weights: np.ndarray, look_at: Callable[[int], bool], enough: int) -> float:
        """Halve a wrong part until the wrong derivatives are isolated; return the others' largest possible error."""
        to_search, bound = [part], 0.0
        while to_search and self.wrong < enough:
            start, end = to_search.pop()
            if end - start <= NEAR:
                self.wrong += sum([not look_at(number) for number in range(start, end)])
                continue
            middle = (start + end) // 2
            for half in ((middle, end), (start, middle)):
                self.searched += 1
                agrees, off = self._verdict(half, weights)
                if agrees or self.searched > SEARCHED:
                    bound = max(bound, off)
                else:
                    to_search.append(half)
        return bound

    def _sum(self, part: tuple[int, int], weights: np.ndarray, factor: int = 1) -> Sum:
        step = self.precision.step / factor
        once, twice = (self._off(part, weights, length) for length in (step, 2 * step))
        return Sum(once, abs(once - twice))

    def _off(self, part: tuple[int, int], weights: np.ndarray, step: float) -> float:
        """The distance between the function's change along the weights and the predicted change, per step."""
        above, below, predicted, start = [], [], 0.0, 0
        for x, grad, reach in zip(self.probe.arrays, self.grads, self.reach, strict=True):
            first, last = (min(max(edge - start, 0), x.size) for edge in part)
            here = slice(first, last)
            shift = (step * reach[here] * weights[start : start + x.size][here]).astype(x.dtype)
            ends = []
            for moved in (shift, -shift):
                ends.append(x.copy() if len(shift) else x)
                ends[-1].reshape(-1)[here] += moved
            above.append(ends[0])
            below.append(ends[1])
            distance = ends[0].reshape(-1)[here].astype(np.float64) - ends[1].reshape(-1)[here]  # after rounding
            predicted += float(grad[here] @ distance)
            start += x.size
        with np.errstate(all="ignore"):
            change = float(self.probe.weights @ (self.probe.evaluate(above) - self.probe.evaluate(below)))
        return (change - predicted) / (2 * step)
