"""A slope measured with a step h: the line through two points, and how far its slope is off for every h."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, INK, plain_axes, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Function = Callable[[float], float]
STEPS = [10.0 ** (exponent / 8) for exponent in range(0, -113, -1)]  # 1 down to 1e-14
FLOOR = 1e-17  # an error of 0 has to stand somewhere on a logarithmic axis


def slope_error(f: Function, df: Function, x: float, h: float, both_sides: bool) -> float:
    """|(f(x + h) - f(x)) / h - f'(x)|, or with `both_sides` the error of (f(x + h) - f(x - h)) / 2h."""
    measured = (f(x + h) - f(x - h)) / (2 * h) if both_sides else (f(x + h) - f(x)) / h
    return abs(measured - df(x))


def draw_slope(
    f: Function, df: Function, x: float, h: float, *, both_sides: bool = False, span: tuple[float, float] = (-2.0, 2.0)
) -> tuple[Figure, str]:
    """(figure, words): on the left f with the line through the two points, on the right the error for all h.

    `df` is the true slope. The curve is drawn over `span`. Raises ValueError unless h > 0.
    """
    if not h > 0:
        raise ValueError(f"h is {h}; expected a positive step")
    left, right = (x - h if both_sides else x), x + h
    slope = (f(right) - f(left)) / (right - left)
    figure = new_figure(10, 3.6)
    curve, errors = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.15, top=0.88, wspace=0.2)

    xs = [span[0] + (span[1] - span[0]) * index / 200 for index in range(201)]
    curve.plot(xs, [f(each) for each in xs], color=INK, linewidth=2)
    low, high = curve.get_ylim()
    for line, color, style, name in (
        (slope, COLORS[0], "-", "through the two points"),
        (df(x), COLORS[1], "--", "tangent"),
    ):
        anchor = left if name != "tangent" else x
        ys = [f(anchor) + line * (each - anchor) for each in span]
        curve.plot(span, ys, style, color=color, linewidth=1.8, label=f"{name}: slope {three_digits(line)}")
    curve.plot([left, right], [f(left), f(right)], "o", color=COLORS[0], markersize=7)
    curve.set(xlim=span, ylim=(low, high), xlabel="x")
    curve.set_title(f"x = {x:g}, h = {h:.1e}" if h < 1e-3 else f"x = {x:g}, h = {h:.3g}", loc="left", size=11)

    for sides, color, style, name in (
        (False, COLORS[2], "-", "f(x + h) and f(x)"),
        (True, COLORS[0], "--", "f(x + h) and f(x \N{MINUS SIGN} h)"),
    ):
        values = [max(slope_error(f, df, x, step, sides), FLOOR) for step in STEPS]
        errors.loglog(STEPS, values, style, color=color, linewidth=1.6, label=name)
    now = max(slope_error(f, df, x, h, both_sides), FLOOR)
    errors.plot([h], [now], "o", color=INK, markersize=8)
    errors.axvline(h, color="#999999", linewidth=0.8)
    errors.set(xlabel="h", ylim=(1e-14, 10))
    errors.set_title(f"error of the slope: {now:.1e}", loc="left", size=11)
    for axis in (curve, errors):
        plain_axes(axis)
        axis.legend(fontsize=9, frameon=False, labelcolor=INK)
    sides = f"x - h = {left:.3g} and x + h = {right:.3g}" if both_sides else f"x = {left:.3g} and x + h = {right:.3g}"
    return figure, (
        f"A curve with the line through its points at {sides}. Its slope is {three_digits(slope)}, that of "
        f"the tangent at x is {three_digits(df(x))}; the error is {now:.1e}. Beside it the error for every "
        "h, on logarithmic axes: a V that falls with h and rises again where rounding takes over."
    )


def best_step(f: Function, df: Function, x: float, both_sides: bool) -> float:
    """The h of `STEPS` with the smallest error."""
    return min(STEPS, key=lambda h: (slope_error(f, df, x, h, both_sides), -math.log(h)))
