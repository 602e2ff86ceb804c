"""The comparison of a gradient with the slopes of the function."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from mlx_grpo_kit.gradcheck.differences import EXACT, PRECISIONS, Place, Probe
from mlx_grpo_kit.gradcheck.report import Element, GradcheckReport, Kink, Tie
from mlx_grpo_kit.gradcheck.sums import Sums

ONE_BY_ONE = 2000  # up to this many derivatives are compared one by one, more of them by sums
SHOWN = 32  # wrong derivatives that a search in sums looks for before it stops


class Comparison:
    """Compare every derivative in `grads`, one array per array of the probe, with the probe's slope at its position."""

    def __init__(
        self,
        probe: Probe,
        grads: list[np.ndarray],
        names: list[str],
        is_analytic: bool = False,
        seed: int = 0,
        step: float | None = None,
    ):
        self.probe, self.grads, self.names, self.is_analytic = probe, grads, names, is_analytic
        self.precision = max((PRECISIONS[array.dtype] for array in probe.arrays), key=lambda p: p.step)
        if step is not None:
            self.precision = replace(self.precision, step=step)
        self.largest = max(np.abs(grad[np.isfinite(grad)]).max(initial=0.0) for grad in grads)
        self.numeric = [np.full(grad.shape, np.nan) for grad in grads]
        self.failures: list[Element] = []
        self.kinks: dict[Place, Kink] = {}
        self.ties: list[Tie] = []
        self.unseen: set[Place] = set()  # places where rounding of the outputs hides the derivative
        self.hidden = 0.0  # the largest error that rounding may hide there
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
        self._move_ties_together()

    def place(self, number: int) -> Place:
        """The position of the derivative of that number, counted through all inputs."""
        for which, grad in enumerate(self.grads):
            if number < grad.size:
                return which, tuple(int(i) for i in np.unravel_index(number, grad.shape))
            number -= grad.size
        raise IndexError(number)

    def look_at(self, place: Place) -> bool:
        """Compare one derivative. False if it is wrong."""
        which, index = place
        own = float(self.grads[which][index])
        element = self._exactly(place, own) if self.is_analytic else None
        if element is None:
            steps, sides = self.probe.surroundings(place, self.precision.step)
            if sides is not None:
                self.numeric[which][index] = own
                noise = self.probe.rounding(place, self.precision.step / 10)
                self.kinks[place] = Kink(self.where(place), *sides, own, noise)
                return True
            slope, agrees = self._measure(place, own, steps)
            element = Element(which, self.names[which], index, own, slope)
        else:
            agrees = bool(abs(own - element.numeric) <= EXACT.atol + EXACT.rtol * abs(element.numeric))
        self.numeric[which][index] = element.numeric
        if not agrees:
            self.failures.append(element)
        if self.worst is None or not element.difference <= self.worst.difference:
            self.worst = element
        return agrees

    def where(self, place: Place) -> str:
        return Element(place[0], self.names[place[0]], place[1], 0.0, 0.0).where

    def _exactly(self, place: Place, own: float) -> Element | None:
        """Compare by the complex step; None if the function does more than its graph shows, like x * abs(x.data)."""
        exact = self.probe.complex_step(place)
        if self._measure(place, exact, self.probe.surroundings(place, self.precision.step)[0])[1]:
            return Element(place[0], self.names[place[0]], place[1], own, exact)
        self.is_analytic = False
        return None

    def _measure(self, place: Place, own: float, steps: list[float]) -> tuple[float, bool]:
        """Return the slope, and True if it agrees with `own` for one of the steps.

        A shorter step is for strong curvature, a longer one for functions that round inside, like (x + 1e7) - 1e7.
        """
        step, slopes = self.precision.step, []
        for length in steps:
            slopes.append(self.probe.central(place, length))
            if self.probe.rounding(place, step) > self._tolerance(slopes[0]):
                return self._despite_rounding(place, own)
            if self._agrees(own, slopes[-1], max(1.0, step / length)):
                return slopes[-1], True
        if not np.isfinite(slopes).any():  # at the edge of fn's domain: use the side that exists
            slopes = list(self.probe.sides(step, place))
        slope = min((slope for slope in slopes if np.isfinite(slope)), key=lambda s: abs(own - s), default=np.nan)
        return slope, self._agrees(own, slope)

    def _despite_rounding(self, place: Place, own: float) -> tuple[float, bool]:
        """The same for outputs so large that rounding matters: with the longest step over which fn is linear."""
        steps = self.precision.step * np.array([100, 30, 10, 3, 1, 0.3, 0.1])
        scatter = self.probe.scatter(place, steps[0])
        for longer, shorter in itertools.pairwise(steps):
            slope, check = self.probe.central(place, longer), self.probe.central(place, shorter)
            noise = self.probe.rounding(place, shorter, scatter)
            if abs(slope - check) <= noise + self.precision.rtol * abs(slope):
                break
        agrees = bool(abs(own - slope) <= self._tolerance(slope) + noise)
        if agrees and noise > 0.1 * max(abs(own), abs(slope), self.largest, 0.01):
            self.unseen.add(place)
        self.hidden = max(self.hidden, noise)
        return slope, agrees

    def _tolerance(self, slope: float, factor: float = 1) -> float:
        """The allowed difference of two slopes; the noise grows as the step shrinks by `factor`."""
        return min(self.precision.atol, self.noise * factor) + self.precision.rtol * abs(slope)

    def _agrees(self, own: float, slope: float, factor: float = 1) -> bool:
        return bool(np.isfinite(slope) and abs(own - slope) <= self._tolerance(slope, factor))

    def _move_ties_together(self) -> None:
        """Compare sums of gradients over equal elements at kinks.

        Each of the largest numbers may take any part of the gradient of their maximum, but all of them only one whole.
        Unrelated kinks add up, and are valid one by one.
        """
        equal: dict[float, list[Place]] = {}
        for place in self.kinks:
            equal.setdefault(self.probe.value(place), []).append(place)
        for places in equal.values():
            step = self.precision.step / 10 / len(places)
            noise = self.probe.rounding(places[0], step)
            kinks = [self.kinks[place] for place in places]
            left, right = self.probe.sides(step, *places)
            apart = max(abs(left - sum(kink.left for kink in kinks)), abs(right - sum(kink.right for kink in kinks)))
            if len(places) > 1 and apart > 1e-2 * (1 + max(abs(left), abs(right))) + 10 * noise:
                names = [kink.where for kink in kinks]
                names[3:] = [f"{len(names) - 3} more"] * (len(names) > 3)
                where = f"{', '.join(names[:-1])} and {names[-1]}"
                tie = Tie(where, left, right, sum(kink.analytic for kink in kinks), noise)
                self.ties += [tie] * (not tie.is_subgradient)

    def _compare_sums(self, rng: np.random.Generator) -> None:
        sums = Sums(self.probe, self.grads, self.precision, rng)
        self.noise = sums.tolerance  # a single derivative has less noise, and gets no more tolerance
        if sums.compare(lambda number: self.look_at(self.place(number)), SHOWN):
            self.visible = sums.visible + self.precision.rtol * max(
                np.abs(grad).max(initial=0.0) for grad in self.grads
            )
            for number in rng.choice(
                self.count, 4, replace=False
            ):  # all sums agree; measure a few elements for the report
                self.look_at(self.place(int(number)))

    def errors_by_step(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps from 0.1 to 1e-12, and the error of the central difference with each against the engine's derivative.

        This is for the worst element. The curve is a V if the derivative is right, and flat at the bottom if it is
        wrong.
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
        size = f"The outputs reach {np.abs(self.probe.here).max(initial=0.0):.1e}"
        problems = []
        if self.unseen and not failures:
            problems = [
                f"{size}, and their rounding hides {len(self.unseen):,} of these derivatives. Subtract what does not "
                "depend on the inputs."
            ]
        elif self.visible is not None and self.visible > self.largest > 0:
            problems = [
                "Compared in sums, an error as large as the largest derivative would not be seen. Check up to "
                f"{ONE_BY_ONE:,} elements at a time: these are compared one by one."
            ]
        elif self.hidden:
            notes = [*notes, f"{size}: their rounding hides errors below {self.hidden:.1e} in a derivative."]
        return GradcheckReport(
            engine,
            self.method,
            self.count,
            failures,
            failures[0] if failures else self.worst,
            [*self.ties, *self.kinks.values()],
            problems,
            notes,
            self.names,
            self.grads,
            self.numeric,
            self.errors_by_step if self.worst is not None else None,
            self.visible,
        )
