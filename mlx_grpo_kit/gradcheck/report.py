"""What a gradient check found, in words and in pictures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


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


@dataclass(frozen=True)
class Kink:
    """A place where the slope differs to the left and to the right."""

    where: str
    left: float
    right: float
    analytic: float

    @property
    def is_subgradient(self) -> bool:
        """Any slope between the two is one; central differences see only their mean."""
        low, high = sorted((self.left, self.right))
        slack = 1e-3 * (1 + abs(low) + abs(high))
        return low - slack <= self.analytic <= high + slack

    def __str__(self):
        low, high = sorted((self.left, self.right))
        verdict = "is one" if self.is_subgradient else "is NOT one"
        return (f"{self.where}: not differentiable here. The slope is {_number(self.left)} on the left and "
                f"{_number(self.right)} on the right; any slope in [{_number(low)}, {_number(high)}] is a subgradient, "
                f"and {_number(self.analytic)}, which the engine gave, {verdict}.")


@dataclass
class GradcheckReport:
    """The result of a check. `bool(report)` is `report.passed`; print it to read it, or let a notebook show it.

    count      how many derivatives were compared
    failures   those that are wrong, the worst first
    worst      the one with the largest difference, right or wrong
    kinks      where the function has no derivative
    problems   what else is wrong: an input that was changed, results that differ from call to call
    notes      what is good to know
    analytic   the engine's gradient, an array for each input that was checked
    numeric    the same from the function's values; nan where only sums of elements were compared
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

    @property
    def passed(self) -> bool:
        return not self.failures and not self.problems and all(kink.is_subgradient for kink in self.kinks)

    def __bool__(self):
        return self.passed

    def __str__(self):
        lines = [self._headline()]
        if self.failures:
            worst = self.failures[0]
            lines += [f"  Worst: {worst.where}",
                      f"    analytic    {_number(worst.analytic):>14}   what backward computed",
                      f"    numeric     {_number(worst.numeric):>14}   what the function does: {self.method}",
                      f"    difference  {_number(worst.difference):>14}"]
            if np.isfinite(worst.relative):
                lines[-1] += f"   {worst.relative:.1%} of the larger"
            lines += [f"  Also {element.where}: {_number(element.analytic)} should be {_number(element.numeric)}"
                      for element in self.failures[1:4]]
            if len(self.failures) > 4:
                lines.append(f"  and {len(self.failures) - 4} more.")
            lines += [f"  {hint}" for hint in diagnose(self.names, self.analytic, self.numeric)]
        elif self.worst is not None:
            lines.append(f"  Largest difference {self.worst.difference:.1e}, {self.worst.where}: analytic "
                         f"{_number(self.worst.analytic)}, numeric {_number(self.worst.numeric)}.")
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
            return (f"gradcheck FAILED: {len(self.failures):,} of {derivatives} of {self.engine} "
                    f"{'is' if len(self.failures) == 1 else 'are'} wrong.")
        return f"gradcheck FAILED on {self.engine}."

    def plot(self):
        """A matplotlib figure: the signed error of each element, and the error of the worst against the step."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4 * (len(self.analytic) + 1), 3.2), layout="constrained")
        axes = figure.subplots(1, len(self.analytic) + 1, squeeze=False)[0]
        for axis, name, analytic, numeric in zip(axes, self.names, self.analytic, self.numeric, strict=False):
            error = _as_picture(analytic - numeric)
            limit = np.nanmax(np.abs(error), initial=1e-6)  # what is below that is rounding, and should look like it
            image = axis.imshow(error, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
            figure.colorbar(image, ax=axis, format="%.0e")
            axis.set(title=f"{name}: analytic - numeric", xticks=[], yticks=[])
        if self.errors_by_step is not None:
            steps, errors = self.errors_by_step()
            axes[-1].loglog(steps, np.maximum(errors, 1e-18), marker="o")
            axes[-1].set(title=self.worst.where, xlabel="step", ylabel="|central difference - analytic|",
                         ylim=(1e-13, max(1.0, 10 * np.nanmax(errors, initial=0.0))))
        else:
            axes[-1].axis("off")
        return figure

    def _repr_html_(self):
        buffer = io.BytesIO()
        self.plot().savefig(buffer, format="png", dpi=90)
        picture = base64.b64encode(buffer.getvalue()).decode()
        return f'<pre>{html.escape(str(self))}</pre><img alt="errors" src="data:image/png;base64,{picture}">'


def diagnose(names: list[str], analytic: list[np.ndarray], numeric: list[np.ndarray]) -> list[str]:
    """What the pattern of the errors says about their cause."""
    hints = []
    for name, a, n in zip(names, analytic, numeric, strict=True):
        if np.allclose(a, n, rtol=1e-4, atol=1e-7, equal_nan=True):
            continue
        matters = np.isfinite(n) & (np.abs(n) > 1e-3 * np.nanmax(np.abs(n), initial=1e-12))
        ratios = a[matters] / n[matters]
        if not np.isfinite(a).all():
            hints.append(f"The gradient of {name} is inf or nan in {np.sum(~np.isfinite(a))} of {a.size} places. In a "
                         "Tensor program T.detect_anomaly() names the operation that made it so.")
        elif not a.any():
            hints.append(f"The gradient of {name} is 0 everywhere: nothing came back to it. Was it cut off by .data, "
                         ".detach(), stop_gradient or no_grad?")
        elif ratios.size and np.ptp(ratios) < 1e-3 * abs(ratios[0]):
            ratio = float(np.median(ratios))
            what = "a wrong sign" if abs(ratio + 1) < 1e-3 else "a constant factor"
            hints.append(f"The gradient of {name} is {ratio:.4g} times the right one everywhere: {what}.")
        elif a.ndim == 2 and a.shape[0] == a.shape[1] and np.allclose(a.T, n, rtol=1e-4, atol=1e-7):
            hints.append(f"The gradient of {name} is the transpose of the right one.")
    return hints


def _as_picture(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1]) if array.ndim >= 2 else array.reshape(1, -1)


def _plain(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(index)


def _number(number: float) -> str:
    return f"{number:.6g}"
