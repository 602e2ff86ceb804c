"""A weight that takes small steps, in numbers with many digits and in numbers with few digits."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import CHARACTER, Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, ORANGE


def draw_rounding(
    exact: Sequence[float], copies: Sequence[float], rounded: Sequence[float], numbers: Sequence[float]
) -> tuple[Chart, str]:
    """(chart, words): one weight over the same steps, computed in three ways.

    Args:
        exact: the master, after each step from 0 on.
        copies: the master, rounded to few digits.
        rounded: a weight that is itself kept in few digits.
        numbers: the nearby numbers with few digits; each gets a dotted line.
    """
    steps = range(len(exact))
    values = [float(value) for value in (*exact, *copies, *rounded)]
    low, high = min(values), max(values)
    beyond = [float(number) for number in numbers if number > high or number < low]
    low, high = min([low, *beyond]), max([high, *beyond])
    margin = 0.06 * (high - low)
    chart = Chart(820, 360)
    plane = chart.plane(
        92, 34, 704, 250, x=(0, len(exact) - 1), y=(low - margin, high + margin), grid=False,
        title=f"a weight that begins at {exact[0]:.4g}; dotted: the bfloat16 numbers" if len(numbers)
        else f"a weight that begins at {exact[0]:.4g}", xlabel="step",
    )  # fmt: skip
    for number in numbers:
        plane.across(number, "soft", style=":", width=0.8)
    left = 92.0
    for name, way, color, style, width in (
        ("kept in bfloat16", rounded, ORANGE, "-", 2.8),
        ("master, in float32", exact, BLUE, "--", 2.0),
        ("the master's copy in bfloat16", copies, COLORS[3], "-", 1.6),
    ):
        plane.line(steps, way, color, style=style, width=width, label=name)
        chart.text(left, 348, f"{'╌' if style == '--' else '━'} {name}", size=13, color=color, bold=True)
        left += CHARACTER * 13 * (len(name) + 6)
    end = "does not move" if rounded[-1] == rounded[0] else f"ends at {rounded[-1]:.5g}"
    changed = len(set(map(float, copies))) - 1
    return chart, (
        f"A weight of {exact[0]:.4g} in {len(exact) - 1} equal steps. Kept in bfloat16 it {end}. The master ends at "
        f"{exact[-1]:.5g}, and its copy "
        + ("has not changed yet." if not changed else f"has changed {changed} time{'s' if changed > 1 else ''}.")
    )
