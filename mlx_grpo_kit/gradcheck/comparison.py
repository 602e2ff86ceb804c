"""A gradient beside the slopes of the function: where do they differ?"""

from __future__ import annotations

import numpy as np

from mlx_grpo_kit.gradcheck.differences import EXACT, PRECISIONS, Place, Precision, Probe
from mlx_grpo_kit.gradcheck.report import Element, GradcheckReport, Kink
from mlx_grpo_kit.gradcheck.sums import Sums

ONE_BY_ONE = 2000  # up to so many derivatives are compared one by one, more of them by sums
SHOWN = 32  # wrong derivatives that a search in sums looks for before it stops


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
        self.count = sum(grad.size for grad in grads)
        self.visible: float | None = None
        self.noise = np.inf
        self.method = f"central differences (step {self.precision.step:g})"
        if self.count <= ONE_BY_ONE:
            for number in range(self.count):
                self.look_at(self.place(number))
            if self.is_analytic:
                self.method = "the complex step"
        else:
            self.method = f"random sums of central differences (step {self.precision.step:g})"
            self._compare_sums(np.random.default_rng(seed))

    def place(self, number: int) -> Place:
        """Where the derivative of that number stands, counted through all inputs."""
        for which, grad in enumerate(self.grads):
            if number < grad.size:
                return which, tuple(int(i) for i in np.unravel_index(number, grad.shape))
            number -= grad.size
        raise IndexError(number)

    def look_at(self, place: Place) -> bool:
        """Compare one derivative. False if it is wrong."""
        which, index = place
        own = float(self.grads[which][index])
        slope = self.probe.central(place, self.precision.step)
        element = self._exactly(place, own, slope) if self.is_analytic else None
        if element is None:
            sides = self.probe.kink(place, self.precision.step)
            if sides is not None:
                self.numeric[which][index] = own
                self.kinks.append(Kink(Element(which, self.names[which], index, own, slope).where, *sides, own))
                return True
            slope, agrees = self._with_smaller_steps(place, own, slope)
            element = Element(which, self.names[which], index, own, slope)
        else:
            agrees = close(own, element.numeric, EXACT)
        self.numeric[which][index] = element.numeric
        if not agrees:
            self.failures.append(element)
        if self.worst is None or not element.difference <= self.worst.difference:
            self.worst = element
        return agrees

    def _exactly(self, place: Place, own: float, slope: float) -> Element | None:
        """With the complex step; None if the function does more than its graph shows, as x * abs(x.data) does."""
        exact = self.probe.complex_step(place)
        if close(exact, slope, self.precision):
            return Element(place[0], self.names[place[0]], place[1], own, exact)
        self.is_analytic = False
        return None

    def _with_smaller_steps(self, place: Place, own: float, slope: float) -> tuple[float, bool]:
        """The slope, and whether it agrees.

        Near a kink or an edge a step reaches over it. Where a smaller one agrees with the gradient, that is why.
        """
        agrees = self._close(own, slope)
        for factor in (10, 100):
            if agrees:
                break
            closer = self.probe.central(place, self.precision.step / factor)
            agrees = self._close(own, closer, factor)
            if agrees or not np.isfinite(slope):
                slope = closer
        if not np.isfinite(slope):  # at the end of where the function is defined: from the one side that there is
            sides = self.probe.sides(place, self.precision.step)
            slope = next((side for side in sides if np.isfinite(side)), slope)
            agrees = self._close(own, slope)
        return slope, agrees

    def _close(self, own: float, slope: float, factor: int = 1) -> bool:
        """Whether two slopes agree; the noise grows as the step shrinks by `factor`."""
        atol = min(self.precision.atol, self.noise * factor)
        return close(own, slope, Precision(self.precision.step, self.precision.rtol, atol))

    def _compare_sums(self, rng: np.random.Generator) -> None:
        sums = Sums(self.probe, self.grads, self.precision, rng)
        self.noise = sums.tolerance  # a single derivative has less, and is forgiven no more
        if sums.compare(lambda number: self.look_at(self.place(number)), SHOWN):
            self.visible = sums.visible + self.precision.rtol * max(
                np.abs(grad).max(initial=0.0) for grad in self.grads
            )
            for number in rng.choice(self.count, 4, replace=False):  # all sums agree; to have something to show
                self.look_at(self.place(int(number)))

    def errors_by_step(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps from 0.1 to 1e-12, and how far the central difference with each is from the engine's derivative.

        At the worst element. A V where the derivative is right; flat at the bottom where it is not.
        """
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
            self.count,
            failures,
            failures[0] if failures else self.worst,
            self.kinks,
            [],
            notes,
            self.names,
            self.grads,
            self.numeric,
            self.errors_by_step if self.worst is not None else None,
            self.visible,
        )


def close(own: float, slope: float, precision: Precision) -> bool:
    return bool(abs(own - slope) <= precision.atol + precision.rtol * abs(slope))
