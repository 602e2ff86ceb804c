"""Which step measures a slope best? The error for every step, and the digits that are left of the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import BLUE, COLORS, INK, SOFT, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Function = Callable[[Any], Any]  # a number or an array in, the same kind out; made of NumPy's functions
METHODS = ("one side", "both sides", "complex step")
STEPS = 10.0 ** np.arange(0, -14.01, -0.125)
FLOOR = 1e-18  # an error of 0 has to stand somewhere on a logarithmic axis
GREY = "#8a8f98"
CHARACTER = 0.602  # the width of a letter of DejaVu Sans Mono, in parts of its size
SIZE = 11.5


def measured_slope(f: Function, x: float, h: float, method: str = "both sides", dtype: Any = "float64") -> float:
    """The slope of f at x by a step h, computed in float64 or float32 throughout. Raises ValueError for no method."""
    real = np.dtype(dtype).type
    x, h = real(x), real(h)
    with np.errstate(all="ignore"):
        if method == "one side":
            return float((f(x + h) - f(x)) / h)
        if method == "both sides":
            return float((f(x + h) - f(x - h)) / (real(2) * h))
        if method == "complex step":
            kind = np.complex64 if real is np.float32 else np.complex128
            return float(np.imag(f(kind(complex(x, h)))) / h)
    raise ValueError(f"no method is called {method!r}; there are {', '.join(METHODS)}")


def slope_errors(f: Function, df: Function, x: float, method: str, dtype: Any = "float64") -> np.ndarray:
    """|measured slope - df(x)| for each of STEPS."""
    return np.array([abs(measured_slope(f, x, h, method, dtype) - float(df(float(x)))) for h in STEPS])


def best_step(errors: np.ndarray) -> tuple[float, float]:
    """(step, error) where the error of `slope_errors` is smallest, of several steps near each other.

    A single error may be 0 by luck, so each counts as the largest of the five around it.
    """
    around = np.lib.stride_tricks.sliding_window_view(np.pad(errors, 2, mode="edge"), 5).max(axis=1)
    position = int(around.argmin())
    return float(STEPS[position]), float(around[position])


def draw_step_sizes(
    f: Function,
    df: Function,
    x: float,
    h: float,
    *,
    dtype: str = "float64",
    method: str = "both sides",
    name: str = "f(x)",
) -> tuple[Figure, str]:
    """(figure, words): on the left the error for all steps by each method, on the right what the step h computes.

    df is the true slope. `dtype` is "float64" or "float32", `method` one of METHODS. Raises ValueError unless h > 0.
    """
    if not h > 0:
        raise ValueError(f"h is {h}; expected a positive step")
    figure = new_figure(10, 3.9)
    curves, digits = figure.subplots(1, 2, width_ratios=(11, 9))
    figure.subplots_adjust(left=0.065, right=0.99, bottom=0.14, top=0.9, wspace=0.06)
    error = abs(measured_slope(f, x, h, method, dtype) - float(df(float(x))))
    best = _draw_curves(curves, f, df, x, dtype, method)
    curves.axvline(h, color=GREY, linewidth=0.8)
    curves.plot([h], [max(error, FLOOR)], "o", color=INK, markersize=8, zorder=5)
    curves.set_title(f"{name} at x = {x:g} in {dtype}", loc="left", size=11, color=INK)
    count = _draw_digits(digits, f, df, x, h, dtype, method)
    return figure, (
        f"The slope of {name} at x = {x:g} in {dtype}, by {method}. With h = {h:.1e} the error is {error:.1e}: {count} "
        f"digits after the point agree. {_shape(*best[method], method)}"
    )


def _shape(step: float, least: float, method: str) -> str:
    """What the errors for all steps look like, in words."""
    if least >= 1e-2:
        return "The errors for all steps form a flat line: this method is wrong here, with any step."
    best = f"The best step is about {step:.0e}, with an error of {least:.0e}. The errors for all steps form "
    if method == "complex step":
        return best + "a line that falls with the step and stays at the bottom."
    return best + (
        "a line that rises as the step gets shorter: nothing bends, so only rounding counts."
        if step > 0.1
        else "a V: rounding on its left arm, curvature on its right."
    )


def _draw_curves(axis: Axes, f: Function, df: Function, x: float, dtype: str, chosen: str) -> dict[str, tuple]:
    best = {}
    for method, color, style in zip(METHODS, (COLORS[2], COLORS[0], COLORS[4]), ("-", "-", "--"), strict=True):
        errors = slope_errors(f, df, x, method, dtype)
        best[method] = best_step(errors)
        strong = method == chosen
        axis.loglog(
            STEPS,
            np.maximum(errors, FLOOR),
            style,
            color=color,
            linewidth=2.2 if strong else 1.1,
            alpha=1 if strong else 0.45,
            label=method,
            zorder=3 if strong else 2,
        )
    step, least = best[chosen]
    if least < 1e-2:
        where = "any shorter step" if chosen == "complex step" else f"h near {step:.0e}"
        axis.plot(
            [step],
            [max(least, FLOOR)],
            "*",
            color=COLORS[1],
            markersize=15,
            markeredgecolor=INK,
            zorder=4,
            label=f"best: {where}, error {least or 0:.0e}".replace("0e+00", "0"),
        )
    short = "never too short" if chosen == "complex step" else "too short: rounding"
    axis.text(0.01, 0.02, short, transform=axis.transAxes, size=9, color=SOFT)
    axis.text(0.99, 0.02, "too long: the curve bends", transform=axis.transAxes, size=9, color=SOFT, ha="right")
    axis.set(xlabel="step h", ylim=(FLOOR / 50, 3e5), xlim=(STEPS[-1], 1.3))
    axis.set_yticks(10.0 ** np.arange(-18, 1, 3))
    axis.set_title("error of the slope", loc="right", size=10, color=SOFT)
    plain_axes(axis)
    axis.minorticks_off()
    axis.legend(fontsize=9, frameon=False, labelcolor=INK, loc="upper left", ncols=2, columnspacing=1.2)
    return best


def _draw_digits(axis: Axes, f: Function, df: Function, x: float, h: float, dtype: str, method: str) -> int:
    """The numbers that the step makes, digit under digit. Returns how many digits of the slope are the true ones."""
    axis.axis("off")
    places = 16 if dtype == "float64" else 8
    real = np.dtype(dtype).type
    true, slope = float(df(float(x))), measured_slope(f, x, h, method, dtype)
    longest = max(len(f"{abs(value):.0f}") for value in (float(f(real(x))), true, 1.0))
    places -= longest - 1

    def text(value: float) -> str:
        return f"{value:+.{places}f}" if abs(value) < 1e6 else f"{value:+.{places}e}"

    axis.text(0, 1.0, f"With h = {h:.1e}", transform=axis.transAxes, size=11, color=INK, va="bottom")
    row = 0.84
    if method == "complex step":
        kind = np.complex64 if dtype == "float32" else np.complex128
        value = f(kind(complex(real(x), real(h))))
        _write(axis, row, "real part of f(x + ih)", text(float(np.real(value))), 0, INK)
        _write(axis, row - 0.17, "imaginary part", f"{float(np.imag(value)):+.{places - 4}e}", 0, INK)
        note = "Nothing is subtracted, so nothing cancels."
    else:
        left = x if method == "one side" else x - h
        with np.errstate(all="ignore"):
            above, below = f(real(x) + real(h)), f(real(x) - real(h) if method == "both sides" else real(x))
        same = _agreement(text(float(above)), text(float(below)))
        _write(axis, row, "f(x + h)", text(float(above)), same, INK, GREY)
        _write(axis, row - 0.17, "f(x)" if left == x else "f(x \N{MINUS SIGN} h)", text(float(below)), same, INK, GREY)
        rest = max(0, len(text(float(above))) - max(same, 1 + longest + 1))
        note = f"Grey digits cancel; {rest} are left for the slope."
    axis.text(0, row - 0.30, note, transform=axis.transAxes, size=10, color=SOFT, va="center")
    right = _agreement(text(slope), text(true))
    _write(axis, row - 0.47, "measured slope", text(slope), right, COLORS[2], BLUE)
    _write(axis, row - 0.64, "true slope", text(true), len(text(true)), INK, INK)
    count = max(0, right - text(true).find(".") - 1)
    axis.text(
        0,
        row - 0.76,
        f"{count} digits after the point agree; the red ones do not." if count < places else "All digits agree.",
        transform=axis.transAxes,
        size=10,
        color=SOFT,
        va="center",
    )
    return count


def _agreement(one: str, other: str) -> int:
    """How many characters at the beginning are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _write(axis: Axes, y: float, label: str, number: str, count: int, color: str, first_color: str = INK) -> None:
    """A label, and a number below it whose first `count` characters have a colour of their own."""
    axis.text(0, y + 0.045, label, transform=axis.transAxes, size=9, color=SOFT, va="bottom")
    for part, offset, tone in ((number[:count], 0, first_color), (number[count:], count, color)):
        axis.annotate(
            part,
            (0, y),
            xycoords="axes fraction",
            xytext=(offset * CHARACTER * SIZE, 0),
            textcoords="offset points",
            family="DejaVu Sans Mono",
            size=SIZE,
            color=tone,
            va="center",
            weight="bold" if tone not in (GREY, INK) else "normal",
        )
