"""A slope measured with a step h: the line through two points, and the error of its slope for every h."""

from __future__ import annotations

import math
from collections.abc import Callable

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, three_digits

Function = Callable[[float], float]
STEPS = [10.0 ** (exponent / 8) for exponent in range(0, -113, -1)]  # 1 down to 1e-14
FLOOR = 1e-17  # a logarithmic axis cannot show an error of 0


def slope_error(f: Function, df: Function, x: float, h: float, both_sides: bool) -> float:
    """|(f(x + h) - f(x)) / h - f'(x)|, or with `both_sides` the error of (f(x + h) - f(x - h)) / 2h."""
    measured = (f(x + h) - f(x - h)) / (2 * h) if both_sides else (f(x + h) - f(x)) / h
    return abs(measured - df(x))


def draw_slope(
    f: Function, df: Function, x: float, h: float, *, both_sides: bool = False, span: tuple[float, float] = (-2.0, 2.0)
) -> tuple[Chart, str]:
    """(chart, words): on the left f with the line through the two points, on the right the error for all h.

    `df` is the true slope. The curve is drawn over `span`. Raises ValueError unless h > 0.
    """
    if not h > 0:
        raise ValueError(f"h is {h}; expected a positive step")
    left, right = (x - h if both_sides else x), x + h
    slope = (f(right) - f(left)) / (2 * h if both_sides else h)
    chart = Chart(1000, 360)

    xs = [span[0] + (span[1] - span[0]) * index / 100 for index in range(101)]
    heights = [f(each) for each in xs]
    margin = 0.05 * (max(heights) - min(heights)) or 0.5
    curve = chart.plane(
        *(56, 36, 410, 272),
        x=span,
        y=(min(heights) - margin, max(heights) + margin),
        title=f"x = {x:g}, h = {step_words(h)}",
        xlabel="x",
    )
    curve.line(xs, heights, "ink")
    for line, anchor, color, style, name in (
        (slope, left, COLORS[0], "-", "through the two points"),
        (df(x), x, COLORS[1], "--", "tangent"),
    ):
        ys = [f(anchor) + line * (each - anchor) for each in span]
        curve.line(span, ys, color, style=style, label=f"{name}: slope {three_digits(line)}")
    curve.dots([left, right], [f(left), f(right)], COLORS[0], size=9)
    curve.legend("free")

    now = max(slope_error(f, df, x, h, both_sides), FLOOR)
    errors = chart.plane(
        *(556, 36, 430, 272),
        x=(STEPS[-1], 2.0),
        y=(1e-14, 10),
        log_x=True,
        log_y=True,
        title=f"error of the slope: {now:.1e}",
        xlabel="h",
    )
    errors.upright(h)
    for sides, color, style, name in (
        (False, COLORS[2], "-", "f(x + h) and f(x)"),
        (True, COLORS[0], "--", "f(x + h) and f(x \N{MINUS SIGN} h)"),
    ):
        values = [max(slope_error(f, df, x, step, sides), FLOOR) for step in STEPS]
        errors.line(STEPS, values, color, style=style, width=1.6, label=name)
    errors.dots([h], [now], "ink", size=10)
    errors.legend("upper left")
    sides = f"x - h = {left:.3g} and x + h = {right:.3g}" if both_sides else f"x = {left:.3g} and x + h = {right:.3g}"
    shortest, best = (slope_error(f, df, x, each, both_sides) for each in (min(STEPS), best_step(f, df, x, both_sides)))
    form = "a V that falls with h and rises again where rounding takes over"
    if shortest <= 10 * max(best, FLOOR):
        form = "it falls with h and does not rise again"
    return chart, (
        f"A curve with the line through its points at {sides}. Its slope is {three_digits(slope)}, that of "
        f"the tangent at x is {three_digits(df(x))}; the error is {now:.1e}. Beside it the error for every "
        f"h, on logarithmic axes: {form}."
    )


def step_words(h: float) -> str:
    """A step in three digits, as a slider with readout_format=".3g" shows it: 0.562, 0.000100, 1.00e-7."""
    if h < 1e-6:
        return f"{h:.2e}".replace("e-0", "e-")
    return f"{h:.{max(0, 2 - math.floor(math.log10(h)))}f}"


def best_step(f: Function, df: Function, x: float, both_sides: bool) -> float:
    """The h of `STEPS` with the smallest error."""
    return min(STEPS, key=lambda h: (slope_error(f, df, x, h, both_sides), -math.log(h)))
