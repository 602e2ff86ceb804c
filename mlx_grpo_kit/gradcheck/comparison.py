"""A gradient beside the slopes of the function: where do they differ?"""

from __future__ import annotations

import numpy as np

from mlx_grpo_kit.gradcheck.differences import EXACT, PRECISIONS, Place, Precision, Probe
from mlx_grpo_kit.gradcheck.report import Element, GradcheckReport, Kink

ONE_BY_ONE = 2000  # up to so many derivatives are compared one by one, more of them by sums
PROJECTIONS = 8  # sums with random signs: a single wrong derivative changes every one of them
SHOWN = 32  # wrong derivatives that a search in sums looks for before it gives up


class Comparison:
    """Every derivative in `grads`, an array for each of the probe's, against the probe's slope at its place."""

    def __init__(
        self, probe: Probe, grads: list[np.ndarray], names: list[str], is_analytic: bool = False, seed: int = 0
    ):
        self.probe, self.grads, self.names, self.is_analytic = probe, grads, names, is_analytic
        self.precision = max((PRECISIONS[array.dtype] for array in probe.arrays), key=lambda p: p.step)
        self.numeric = [np.full(grad.shape, np.nan) for grad in grads]
        self.failures: list[Element] = []
        self.kinks: list[Kink] = []
        self.worst: Element | None = None
        self.places = [(which, index) for which, grad in enumerate(grads) for index in np.ndindex(grad.shape)]
        self.method = f"central differences (step {self.precision.step:g})"
        if len(self.places) <= ONE_BY_ONE:
            for place in self.places:
                self.look_at(place)
            if self.is_analytic:
                self.method = "the complex step"
        else:
            self.method = f"central differences in {PROJECTIONS} random directions (step {self.precision.step:g})"
            self._compare_sums(np.random.default_rng(seed))

    def look_at(self, place: Place) -> None:
        """Compare one derivative."""
        which, index = place
        own = float(self.grads[which][index])
        slope, tolerance = self.probe.central(place, self.precision.step), self.precision
        if self.is_analytic:
            exact = self.probe.complex_step(place)
            if close(exact, slope, self.precision):
                slope, tolerance = exact, EXACT
            else:  # the function does more than its graph shows, as x * abs(x.data) does
                self.is_analytic = False
        if tolerance is self.precision:
            sides = self.probe.kink(place, self.precision.step)
            if sides is not None:
                self.numeric[which][index] = own
                self.kinks.append(Kink(Element(which, self.names[which], index, own, slope).where, *sides, own))
                return
            slope = self._with_smaller_steps(place, own, slope)
        self.numeric[which][index] = slope
        element = Element(which, self.names[which], index, own, slope)
        if not close(own, slope, tolerance):
            self.failures.append(element)
        if self.worst is None or not element.difference <= self.worst.difference:
            self.worst = element

    def _with_smaller_steps(self, place: Place, own: float, slope: float) -> float:
        """Near a kink or an edge a step reaches over it. Where a smaller one agrees with the gradient, that is why."""
        for factor in (10, 100):
            if close(own, slope, self.precision):
                return slope
            closer = self.probe.central(place, self.precision.step / factor)
            if close(own, closer, self.precision) or not np.isfinite(slope):
                slope = closer
        if not np.isfinite(slope):  # at the end of where the function is defined: from the one side that there is
            sides = self.probe.sides(place, self.precision.step)
            slope = next((side for side in sides if np.isfinite(side)), slope)
        return slope

    def _compare_sums(self, rng: np.random.Generator) -> None:
        for _ in range(PROJECTIONS):
            self._search(rng.choice([-1.0, 1.0], len(self.places)))
            if self.failures:
                return
        for number in rng.choice(len(self.places), 4, replace=False):  # all sums agree; to have something to show
            self.look_at(self.places[number])

    def _search(self, signs: np.ndarray) -> None:
        """Halve a set of derivatives whose sum differs until the wrong ones stand alone."""
        to_search = [np.arange(len(self.places))]
        while to_search and len(self.failures) < SHOWN:
            numbers = to_search.pop()
            if len(numbers) <= 4:
                for number in numbers:
                    self.look_at(self.places[number])
                continue
            directions = [np.zeros(grad.shape) for grad in self.grads]
            for number in numbers:
                which, index = self.places[number]
                directions[which][index] = signs[number]
            terms = np.concatenate([np.ravel(grad * d) for grad, d in zip(self.grads, directions, strict=True)])
            seen = self.probe.along(directions, self.precision.step)
            if not abs(terms.sum() - seen) <= self.precision.atol + self.precision.rtol * np.linalg.norm(terms):
                to_search += [numbers[len(numbers) // 2 :], numbers[: len(numbers) // 2]]

    def errors_by_step(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps from 0.1 to 1e-12, and how far the central difference with each is from the engine's derivative, at the
        worst element. A V where the derivative is right; flat at the bottom where it is not."""
        steps = 10.0 ** np.arange(-1, -12.5, -0.5)
        place = self.worst.input, self.worst.index
        return steps, np.array([abs(self.probe.central(place, step) - self.worst.analytic) for step in steps])

    def report(self, engine: str, notes: list[str]) -> GradcheckReport:
        failures = sorted(self.failures, key=lambda element: -np.nan_to_num(element.difference, nan=np.inf))
        outputs = self.probe.here.size
        if (failures or self.kinks) and outputs > 1:
            notes = [
                *notes,
                f"The {outputs:,} outputs were weighted at random and summed: these are derivatives of that sum.",
            ]
        return GradcheckReport(
            engine,
            self.method,
            len(self.places),
            failures,
            failures[0] if failures else self.worst,
            self.kinks,
            [],
            notes,
            self.names,
            self.grads,
            self.numeric,
            self.errors_by_step if self.worst is not None else None,
        )


def close(own: float, slope: float, precision: Precision) -> bool:
    return bool(abs(own - slope) <= precision.atol + precision.rtol * abs(slope))
