"""The best step to measure a slope: the error for every step, and the digits that remain in the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS

Function = Callable[[Any], Any]  # maps a number or an array to the same kind, with NumPy's functions
METHODS = ("one side", "both sides", "complex step")
STEPS = 10.0 ** np.arange(0, -14.01, -0.125)
FLOOR = 1e-18  # a logarithmic axis cannot show an error of 0
LEFT = 566  # pixels: where the digits begin


def measured_slope(f: Function, x: float, h: float, method: str = "both sides", dtype: Any = "float64") -> float:
    """The slope of f at x by a step h, all in float64 or all in float32. Raises ValueError for an unknown method."""
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
    """The (step, error) with the smallest error in the result of `slope_errors`.

    A single error may be 0 by luck, so each error is replaced by the largest of the five around it.
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
) -> tuple[Chart, str]:
    """(chart, words): on the left the error for all steps by each method, on the right what the step h computes.

    df is the true slope. `dtype` is "float64" or "float32", `method` one of METHODS. Raises ValueError unless h > 0.
    """
    if not h > 0:
        raise ValueError(f"h is {h}; expected a positive step")
    chart = Chart(1000, 390)
    error = abs(measured_slope(f, x, h, method, dtype) - float(df(float(x))))
    title = f"{name} at x = {x:g} in {dtype}: error of the slope"
    best = _draw_curves(chart, title, f, df, x, (h, error), dtype, method)
    count = _draw_digits(chart, f, df, x, h, dtype, method)
    return chart, (
        f"The slope of {name} at x = {x:g} in {dtype}, by {method}. With h = {h:.1e} the error is {error:.1e}: {count} "
        f"digits after the point agree. {_shape(*best, method)}"
    )


def _shape(step: float, least: float, method: str) -> str:
    """Describe the errors for all steps in words."""
    if least >= 1e-2:
        return "The errors for all steps form a flat line: this method is wrong here, with any step."
    best = f"The best step is about {step:.0e}, with an error of {least:.0e}. The errors for all steps form "
    if method == "complex step":
        return best + "a line that falls with the step and stays at the bottom."
    return best + (
        "a line that rises as the step gets shorter: the function does not bend, so only rounding counts."
        if step > 0.1
        else "a V: rounding on its left arm, curvature on its right."
    )


def _draw_curves(
    chart: Chart, title: str, f: Function, df: Function, x: float, now: tuple[float, float], dtype: str, chosen: str
) -> tuple[float, float]:
    """The error by each method, with `now`, a (step, error). Returns the best (step, error) of the chosen method."""
    plane = chart.plane(
        *(62, 36, 470, 300),
        x=(STEPS[-1], 1.3),
        y=(FLOOR / 50, 3e5),
        log_x=True,
        log_y=True,
        title=title,
        xlabel="step h",
    )
    plane.upright(now[0])
    for method, color, style in zip(METHODS, (COLORS[2], COLORS[0], COLORS[3]), ("-", "-", "--"), strict=True):
        errors = slope_errors(f, df, x, method, dtype)
        strong = method == chosen
        if strong:
            step, least = best_step(errors)
        width = 2.4 if strong else 1.0
        plane.line(STEPS, np.maximum(errors, FLOOR), color, style=style, label=method, width=width)
    if least < 1e-2:
        where = "any shorter step" if chosen == "complex step" else f"h near {step:.0e}"
        label = f"best: {where}, error {least or 0:.0e}".replace("0e+00", "0")
        plane.dots([step], [max(least, FLOOR)], COLORS[1], marker="D", size=13, label=label)
    plane.dots([now[0]], [max(now[1], FLOOR)], "ink", size=10)
    short = "never too short" if chosen == "complex step" else "too short: rounding"
    for at, words, anchor in ((STEPS[-1], short, "start"), (1.3, "too long: the curve bends", "end")):
        plane.text(
            at, FLOOR / 50, words, dx=6 if anchor == "start" else -6, dy=-7, size=12, anchor=anchor, color="soft"
        )
    plane.legend("upper left")
    return step, least


def _draw_digits(chart: Chart, f: Function, df: Function, x: float, h: float, dtype: str, method: str) -> int:
    """Write what the step computes as aligned numbers. Returns the number of true digits of the slope."""
    places = 16 if dtype == "float64" else 8
    real = np.dtype(dtype).type
    true, slope = float(df(float(x))), measured_slope(f, x, h, method, dtype)
    longest = max(len(f"{abs(value):.0f}") for value in (float(f(real(x))), true, 1.0))
    places -= longest - 1

    def text(value: float) -> str:
        return f"{value:+.{places}f}" if abs(value) < 1e6 else f"{value:+.{places}e}"

    chart.text(LEFT, 27, f"With h = {h:.1e}", size=15)
    rows: list[tuple[str, str, int, str, str]] = []  # label, number, how many digits have the first colour, colours
    if method == "complex step":
        kind = np.complex64 if dtype == "float32" else np.complex128
        value = f(kind(complex(real(x), real(h))))
        rows.append(("real part of f(x + ih)", text(float(np.real(value))), 0, "ink", "ink"))
        rows.append(("imaginary part", f"{float(np.imag(value)):+.{places - 4}e}", 0, "ink", "ink"))
        note = "Nothing is subtracted, so nothing cancels."
    else:
        left = x if method == "one side" else x - h
        with np.errstate(all="ignore"):
            above, below = f(real(x) + real(h)), f(real(x) - real(h) if method == "both sides" else real(x))
        same = _agreement(text(float(above)), text(float(below)))
        rows.append(("f(x + h)", text(float(above)), same, "soft", "ink"))
        rows.append(("f(x)" if left == x else "f(x \N{MINUS SIGN} h)", text(float(below)), same, "soft", "ink"))
        rest = max(0, len(text(float(above))) - max(same, 1 + longest + 1))
        note = f"Grey digits cancel; {rest} remain for the slope."
    right = _agreement(text(slope), text(true))
    rows.append(("measured slope", text(slope), right, BLUE, COLORS[2]))
    rows.append(("true slope", text(true), 0, "ink", "ink"))
    count = max(0, right - text(true).find(".") - 1)
    for (label, number, first, *colors), y in zip(rows, (62, 120, 222, 280), strict=True):
        chart.text(LEFT, y, label, size=12, color="soft")
        chart.digits(LEFT, y + 24, zip((number[:first], number[first:]), colors, strict=True))
    agree = f"{count} digits after the point agree; the red ones do not." if count < places else "All digits agree."
    chart.text(LEFT, 176, note, size=13, color="soft")
    chart.text(LEFT, 336, agree, size=13, color="soft")
    return count


def _agreement(one: str, other: str) -> int:
    """The number of equal characters at the beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
