"""The result of a gradient check, in words and in pictures."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.runtime.printing import printable

if TYPE_CHECKING:
    from mlx_grpo_kit.viz.picture import FigurePicture


@dataclass(frozen=True)
class Element:
    """One number of one input, with the two answers to "what is your derivative?"."""

    input: int
    name: str
    index: tuple[int, ...]
    analytic: float
    numeric: float

    @property
    def difference(self) -> float:
        return abs(self.analytic - self.numeric)

    @property
    def relative(self) -> float:
        largest = max(abs(self.analytic), abs(self.numeric))
        return self.difference / largest if largest else 0.0

    @property
    def where(self) -> str:
        return self.name + (f" at index {_plain(self.index)}" if self.index else "")


@printable
@dataclass(frozen=True)
class Kink:
    """A point where the slopes to the left and to the right differ."""

    where: str
    left: float
    right: float
    analytic: float
    noise: float = 0.0

    @property
    def is_subgradient(self) -> bool:
        """Any slope between the two is one; central differences see only their mean."""
        low, high = sorted((self.left, self.right))
        slack = 1e-3 * (1 + abs(low) + abs(high)) + self.noise
        return low - slack <= self.analytic <= high + slack

    def __str__(self):
        low, high = sorted((self.left, self.right))
        verdict = "is one" if self.is_subgradient else "is NOT one"
        return (
            f"{self.where}: not differentiable here. The slope is {_number(self.left)} on the left and "
            f"{_number(self.right)} on the right; any slope in [{_number(low)}, {_number(high)}] is a subgradient, "
            f"and {_number(self.analytic)}, which the engine gave, {verdict}."
        )


@printable
@dataclass(frozen=True)
class Tie(Kink):
    """Equal elements, as in a max, whose gradients add up to more than the slope when all move together.

    `left` and `right` are the slopes with all of them moved, `analytic` is the sum of their gradients.
    """

    def __str__(self):
        slopes = " to ".join(dict.fromkeys(_number(slope) for slope in sorted((self.left, self.right))))
        return (
            f"{self.where} are equal and share a gradient. Moved together, they have a slope of {slopes}, but their "
            f"gradients add up to {_number(self.analytic)}."
        )


@printable
@dataclass
class GradcheckReport:
    """The result of a check. `bool(report)` is `report.passed`; print it to read it, or let a notebook show it.

    Attributes:
        engine: the engine of the gradients.
        method: the source of the numbers that they are compared with.
        count: the number of derivatives that were compared.
        failures: the wrong ones, worst first.
        worst: the derivative with the largest difference, right or wrong.
        kinks: points where the function has no derivative.
        problems: other problems: an input that was changed, results that differ between calls.
        notes: further information.
        names: the names of the inputs.
        analytic: the engine's gradient, one array per checked input.
        numeric: the same from the function's values; nan where only sums of elements were compared.
        errors_by_step: steps, and the error of the worst element with each.
        visible: if sums were compared and agree, the smallest error of a single derivative that would be seen; else
            None.
    """

    engine: str
    method: str
    count: int
    failures: list[Element]
    worst: Element | None
    kinks: list[Kink]
    problems: list[str]
    notes: list[str]
    names: list[str]
    analytic: list[np.ndarray]
    numeric: list[np.ndarray]
    errors_by_step: Callable[[], tuple[np.ndarray, np.ndarray]] | None = field(default=None, repr=False)
    visible: float | None = None

    @property
    def passed(self) -> bool:
        return not self.failures and not self.problems and all(kink.is_subgradient for kink in self.kinks)

    def __bool__(self):
        return self.passed

    def __str__(self):
        lines = [self._headline()]
        if self.failures:
            worst = self.failures[0]
            lines += [
                f"  Worst: {worst.where}",
                f"    analytic    {_number(worst.analytic):>14}   what backward computed",
                f"    numeric     {_number(worst.numeric):>14}   what the function does: {self.method}",
                f"    difference  {_number(worst.difference):>14}",
            ]
            if np.isfinite(worst.relative):
                lines[-1] += f"   {worst.relative:.1%} of the larger"
            lines += [
                f"  Also {element.where}: {_number(element.analytic)} should be {_number(element.numeric)}"
                for element in self.failures[1:4]
            ]
            if len(self.failures) > 4:
                lines.append(f"  and {len(self.failures) - 4} more.")
            lines += [f"  {hint}" for hint in diagnose(self.names, self.analytic, self.numeric)]
        elif self.worst is not None:
            lines.append(
                f"  Largest difference {self.worst.difference:.1e}, {self.worst.where}: analytic "
                f"{_number(self.worst.analytic)}, numeric {_number(self.worst.numeric)}."
            )
        if self.visible is not None:
            numbers = np.concatenate([array.ravel() for array in self.analytic])
            lines.append(
                f"  Compared in sums: a single derivative that is off by more than {self.visible:.1e} is seen. (Their "
                f"root mean square is {_number(float(np.sqrt(np.mean(numbers**2))))}.)"
            )
        lines += [f"  {text}" for text in (*self.problems, *self.kinks[:4], *self.notes)]
        if len(self.kinks) > 4:
            lines.append(f"  {len(self.kinks) - 4} more places like these.")
        return "\n".join(lines)

    __repr__ = __str__

    def _headline(self) -> str:
        derivatives = f"{self.count:,} derivative{'' if self.count == 1 else 's'}"
        if self.passed:
            agree = "agrees" if self.count == 1 else "agree"
            return f"gradcheck passed: {derivatives} of {self.engine} {agree} with {self.method}."
        if self.failures:
            return (
                f"gradcheck FAILED: {len(self.failures):,} of {derivatives} of {self.engine} "
                f"{'is' if len(self.failures) == 1 else 'are'} wrong."
            )
        return f"gradcheck FAILED on {self.engine}."

    def plot(self) -> FigurePicture:
        """A map of the signed error of each input, and the error of the worst element against the step.

        The last line of a cell shows it; `.figure` is Matplotlib's, `.alt` the same in words.
        """
        from mlx_grpo_kit.viz.error_maps import draw_check
        from mlx_grpo_kit.viz.picture import FigurePicture

        wrong = [np.zeros(array.shape, bool) for array in self.analytic]
        for element in self.failures:
            wrong[element.input][element.index] = True
        curve = {}
        if self.errors_by_step is not None:
            steps, errors = self.errors_by_step()
            curve = {"steps": steps, "errors": errors, "where": self.worst.where}
        return FigurePicture(*draw_check(self.names, self.analytic, self.numeric, wrong, **curve))

    def _repr_html_(self) -> str:
        from mlx_grpo_kit.viz.box import colored_box

        sign, look = ("\N{CHECK MARK}", "passed") if self.passed else ("\N{BALLOT X}", "wrong")
        text = (
            '<pre style="margin:0;background:none;color:inherit;white-space:pre-wrap;line-height:1.45">'
            f"{sign} {html.escape(str(self))}</pre>"
        )
        picture = (
            "" if self.problems else f'<div style="margin-top:6px">{self.plot()._repr_mimebundle_()["text/html"]}</div>'
        )
        return colored_box(text, look) + picture


def diagnose(names: list[str], analytic: list[np.ndarray], numeric: list[np.ndarray]) -> list[str]:
    """Words on the likely cause of the errors, from their pattern."""
    hints = []
    for name, a, n in zip(names, analytic, numeric, strict=True):
        if np.allclose(a, n, rtol=1e-4, atol=1e-7, equal_nan=True):
            continue
        matters = np.isfinite(n) & (np.abs(n) > 1e-3 * np.nanmax(np.abs(n), initial=1e-12))
        ratios = a[matters] / n[matters]
        if not np.isfinite(a).all():
            hints.append(
                f"The gradient of {name} is inf or nan in {np.sum(~np.isfinite(a))} of {a.size} places. In a "
                "Tensor program T.detect_anomaly() names the operation that made it so."
            )
        elif not a.any():
            hints.append(
                f"The gradient of {name} is 0 everywhere: nothing came back to it. Was it cut off by .data, "
                ".detach(), stop_gradient or no_grad?"
            )
        elif ratios.size and np.ptp(ratios) < 1e-3 * abs(ratios[0]):
            ratio = float(np.median(ratios))
            if abs(ratio - 1) < 1e-3:
                rest = np.isfinite(n) & ~matters
                if not np.allclose(a[rest], n[rest], rtol=1e-4, atol=1e-7):
                    hints.append(
                        f"The gradient of {name} is right where it should not be 0, and wrong where it should: it "
                        "lets something through."
                    )
                continue
            what = "a wrong sign" if abs(ratio + 1) < 1e-3 else "a constant factor"
            hints.append(f"The gradient of {name} is {ratio:.4g} times the right one everywhere: {what}.")
        elif a.ndim == 2 and a.shape[0] == a.shape[1] and np.allclose(a.T, n, rtol=1e-4, atol=1e-7):
            hints.append(f"The gradient of {name} is the transpose of the right one.")
    return hints


def _plain(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(index)


def _number(number: float) -> str:
    number += 0.0  # no -0
    if 0 < abs(number) < 1e-3:
        return f"{number:.3e}"
    return f"{number:.6g}" if abs(number) >= 1 else f"{number:.5f}".rstrip("0").rstrip(".")
