"""Three estimators of a KL divergence, and their slopes, as functions of one token's log-ratio."""

from __future__ import annotations

import math

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS

REACH = 2.0
ESTIMATORS = {
    "k1 = -d": lambda d: -d,
    "k2 = d² / 2": lambda d: d * d / 2,
    "k3 = exp(d) - d - 1": lambda d: math.exp(d) - d - 1,
}
SLOPES = {  # by the policy's log-probability of the token, which d contains with a minus
    "k1: 1": lambda d: 1.0,
    "k2: -d": lambda d: -d,
    "k3: 1 - exp(d)": lambda d: 1 - math.exp(d),
}


def draw_estimators() -> tuple[Chart, str]:
    """(chart, words): k1, k2 and k3 against d = log(reference / policy), and their slopes."""
    chart, words = Chart(700, 320), []
    panels = (
        ("what one token adds to the estimate", ESTIMATORS, (-2, 4.5)),
        ("slope, by the policy's log-probability", SLOPES, (-6.5, 2.5)),
    )
    places = [REACH * step / 60 for step in range(-60, 61)]
    for (title, functions, heights), left in zip(panels, (44, 402), strict=True):
        xlabel = "d = log(reference / policy)"
        plane = chart.plane(left, 36, 284, 230, x=(-REACH, REACH), y=heights, title=title, xlabel=xlabel)
        plane.across(0, "soft", style="-")
        plane.upright(0, "soft", style=":")
        for (name, function), color, style in zip(functions.items(), COLORS, ("--", "-.", "-"), strict=False):
            plane.line(places, [function(d) for d in places], color, style=style, width=2.6, label=name)
        plane.legend("lower left")
        ends = (f"{name}: {function(-1):.2f} at -1, {function(1):.2f} at 1" for name, function in functions.items())
        words.append("; ".join(ends))
    return chart, (
        f"Three estimators against d, all 0 at d = 0. {words[0]}. Only k1 goes below 0. "
        f"Their slopes by the policy's log-probability. {words[1]}."
    )
