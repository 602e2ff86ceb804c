"""Derivatives from a function's values alone.

A `Probe` is a function of arrays whose outputs are weighted and summed to one number, and the point of the check: so
there is one derivative per element of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

COMPLEX_STEP = 1e-20
LONGEST = 0.02  # relative step for a function whose curvature is not known
ROUNDING = 4  # units in the last place by which outputs may differ: they are sums of rounded numbers

Place = tuple[int, tuple[int, ...]]  # (number of the input, index of the element)


@dataclass(frozen=True)
class Precision:
    """The precision of central differences in a floating-point format.

    Attributes:
        step: relative to max(1, |x|): large enough against rounding, small enough against curvature.
        rtol: the allowed error of a derivative, relative to itself.
        atol: the allowed absolute error in addition.
    """

    step: float
    rtol: float
    atol: float


EXACT = Precision(1e-5, 1e-9, 1e-12)  # for the complex step
PRECISIONS = {np.dtype(np.float64): Precision(1e-5, 1e-5, 1e-7), np.dtype(np.float32): Precision(2e-3, 1e-2, 2e-3)}


class Probe:
    """A function of arrays at a point, with its outputs weighted and summed to one number.

    Attributes:
        evaluate: list of arrays -> the outputs as one vector.
        arrays: the point, one array for each input.
        weights: the weights of the outputs in the sum whose derivatives are compared.
        here: the outputs at the point.
    """

    def __init__(
        self, evaluate: Callable[[list[np.ndarray]], np.ndarray], arrays: list[np.ndarray], weights: np.ndarray
    ):
        self.evaluate, self.arrays, self.weights = evaluate, arrays, weights
        self.here = evaluate(arrays)
        self.last_places = np.abs(np.nan_to_num(weights * self.here)) * max(np.finfo(x.dtype).eps for x in arrays)
        self._last_ends: tuple = (None, [])
        self.all_changed = self._scatter(self.last_places)

    def value(self, place: Place) -> float:
        return float(self.arrays[place[0]][place[1]])

    def step_at(self, place: Place, relative: float) -> float:
        return relative * max(1.0, abs(self.value(place)))

    def closer(self, place: Place, relative: float) -> list[float]:
        """Smaller steps, down to a small part of the element itself, which may be nearer than `relative` to an edge."""
        size = abs(self.value(place))
        return [relative / 10, relative / 100, *([relative * size] if 0 < size < 0.01 else [])]

    def rounding(self, place: Place, relative: float, scatter: float | None = None) -> float:
        """The largest error that rounding of the outputs adds to a slope."""
        return (self.all_changed if scatter is None else scatter) / (2 * self.step_at(place, relative))

    def scatter(self, place: Place, relative: float) -> float:
        """The largest distance that rounding puts between two sums of the outputs that change with the element."""
        (above, _), (below, _) = self.ends(relative, place)
        changed = above != below
        return self._scatter(self.last_places[changed if changed.any() else [self.last_places.argmax()]])

    def _scatter(self, last_places: np.ndarray) -> float:
        return ROUNDING * float(last_places.max(initial=0.0)) * last_places.size**0.5

    def moved(self, places: Sequence[Place], distance: complex) -> tuple[np.ndarray, float]:
        """The outputs with elements moved, and how far these did move after rounding to their dtype."""
        arrays, kind = list(self.arrays), np.complex128 if isinstance(distance, complex) else None
        for which in {which for which, _ in places}:
            arrays[which] = arrays[which].astype(kind or arrays[which].dtype)  # a copy
        for which, index in places:
            arrays[which][index] += distance
        which, index = places[0]
        try:
            outputs = self.evaluate(arrays)
        except (ArithmeticError, ValueError):  # raised by Value where a function is not defined
            outputs = np.full_like(self.here, np.nan)
        return outputs, arrays[which][index] - self.arrays[which][index]

    def ends(self, relative: float, *places: Place) -> list[tuple[np.ndarray, float]]:
        """`moved` forward and back by one step; the last results are cached, because they are needed again."""
        if self._last_ends[0] != (relative, places):
            step = self.step_at(places[0], relative)
            self._last_ends = (relative, places), [self.moved(places, step), self.moved(places, -step)]
        return self._last_ends[1]

    def _slope(self, outputs: np.ndarray, before: np.ndarray, distance: float) -> float:
        with np.errstate(all="ignore"):
            return float(self.weights @ (outputs - before)) / float(distance)

    def central(self, place: Place, relative: float) -> float:
        """(f(x + h) - f(x - h)) / 2h: the error shrinks with h**2, until rounding takes over."""
        (above, up), (below, down) = self.ends(relative, place)
        return self._slope(above, below, up - down)

    def sides(self, relative: float, *places: Place) -> tuple[float, float]:
        """The slopes to the left and to the right, with all of the elements moved alike."""
        (above, up), (below, down) = self.ends(relative, *places)
        return self._slope(below, self.here, down), self._slope(above, self.here, up)

    def complex_step(self, place: Place) -> float:
        """Im f(x + ih) / h: nothing is subtracted, so h may be tiny and the result is exact to rounding.

        Only for functions that are analytic (Squire and Trapp, 1998).
        """
        outputs, _ = self.moved([place], complex(0, COMPLEX_STEP))
        return float(self.weights @ outputs.imag) / COMPLEX_STEP

    def surroundings(self, place: Place, relative: float) -> tuple[list[float], tuple[float, float] | None]:
        """The steps that cross no edge or kink nearby, and the slopes to both sides if this point is a kink."""
        closer = self.closer(place, relative)
        longer = [step for step in (10 * relative, 100 * relative) if step <= LONGEST]
        left, right = self.sides(relative, place)
        gap = abs(left - right)
        if gap < 50 * relative + 1e-2 * max(abs(left), abs(right)) + 10 * self.rounding(place, relative):
            return [relative, *closer, *longer], None
        found = None
        for number, step in enumerate(closer):
            if found and self.rounding(place, step) > 0.1 * gap:
                break
            left, right = self.sides(step, place)
            part = abs(left - right) / gap
            if 0.05 < part < 0.2:  # curvature: the gap shrinks as the step does
                return [relative, *closer, *longer], None
            if not 0.5 < part < 2:  # nothing within this step, or a pole
                return closer[number:], None
            found = found or (left, right)
        return closer, found
