"""Derivatives from a function's values alone.

A `Probe` is a function of arrays whose outputs are weighted and summed to one number, and the point it is examined at:
what remains is one derivative for each element of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

COMPLEX_STEP = 1e-20

Place = tuple[int, tuple[int, ...]]  # which input, which element of it


@dataclass(frozen=True)
class Precision:
    """What central differences can tell in a floating-point format.

    Attributes:
        step: relative to max(1, |x|): large enough against rounding, small enough against curvature.
        rtol: how far a derivative may be off, relative to itself.
        atol: and beside that.
    """

    step: float
    rtol: float
    atol: float


EXACT = Precision(1e-5, 1e-9, 1e-12)  # of the complex step
PRECISIONS = {np.dtype(np.float64): Precision(1e-5, 1e-5, 1e-7), np.dtype(np.float32): Precision(2e-3, 1e-2, 2e-3)}


class Probe:
    """A function of arrays at a point, with its outputs weighted and summed to one number.

    Attributes:
        evaluate: list of arrays -> the outputs as one vector.
        arrays: the point, one array for each input.
        weights: of the outputs in the sum whose derivatives are compared.
        here: the outputs at the point.
    """

    def __init__(
        self, evaluate: Callable[[list[np.ndarray]], np.ndarray], arrays: list[np.ndarray], weights: np.ndarray
    ):
        self.evaluate, self.arrays, self.weights = evaluate, arrays, weights
        self.here = evaluate(arrays)

    def step_at(self, place: Place, relative: float) -> float:
        return relative * max(1.0, abs(float(self.arrays[place[0]][place[1]])))

    def moved(self, place: Place, distance: complex) -> tuple[np.ndarray, float]:
        """The outputs with one element moved, and how far it did move after rounding to its dtype."""
        which, index = place
        arrays = list(self.arrays)
        kind = np.complex128 if isinstance(distance, complex) else arrays[which].dtype
        arrays[which] = arrays[which].astype(kind)  # a copy
        arrays[which][index] += distance
        return self.evaluate(arrays), arrays[which][index] - self.arrays[which][index]

    def _slope(self, outputs: np.ndarray, before: np.ndarray, distance: float) -> float:
        with np.errstate(all="ignore"):
            return float(self.weights @ (outputs - before)) / float(distance)

    def central(self, place: Place, relative: float) -> float:
        """(f(x + h) - f(x - h)) / 2h: the error shrinks with h**2, until rounding takes over."""
        step = self.step_at(place, relative)
        (above, up), (below, down) = self.moved(place, step), self.moved(place, -step)
        return self._slope(above, below, up - down)

    def sides(self, place: Place, relative: float) -> tuple[float, float]:
        """The slopes to the left and to the right."""
        step = self.step_at(place, relative)
        (above, up), (below, down) = self.moved(place, step), self.moved(place, -step)
        return self._slope(below, self.here, down), self._slope(above, self.here, up)

    def complex_step(self, place: Place) -> float:
        """Im f(x + ih) / h: nothing is subtracted, so h may be tiny and the result is exact to rounding.

        Only for functions that are analytic (Squire and Trapp, 1998).
        """
        outputs, _ = self.moved(place, complex(0, COMPLEX_STEP))
        return float(self.weights @ outputs.imag) / COMPLEX_STEP

    def kink(self, place: Place, relative: float) -> tuple[float, float] | None:
        """The two slopes where they differ, however near one looks; None where the function is smooth."""
        left, right = self.sides(place, relative)
        gap = abs(left - right)
        suspicious = 50 * relative + 1e-2 * max(abs(left), abs(right))
        if not np.isfinite(gap) or gap < suspicious:
            return None
        left, right = self.sides(place, relative / 10)  # curvature would shrink the gap to a tenth
        return (left, right) if abs(left - right) > 0.5 * gap else None
