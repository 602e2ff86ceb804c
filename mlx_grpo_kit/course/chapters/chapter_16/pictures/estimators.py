"""Three estimators of a KL divergence, as functions of one token's log-ratio."""

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


def draw_estimators() -> tuple[Chart, str]:
    """(chart, words): k1, k2 and k3 against d = log(reference / policy)."""
    chart = Chart(820, 330)
    plane = chart.plane(
        *(62, 36, 730, 238),
        x=(-REACH, REACH),
        y=(-2, 4.5),
        title="what one token adds to the estimate",
        xlabel="d = log(reference / policy); below 0 the token is likelier under the policy",
    )
    plane.across(0, "soft", style="-")
    plane.upright(0, "soft", style=":")
    places = [REACH * step / 60 for step in range(-60, 61)]
    for (name, function), color, style in zip(ESTIMATORS.items(), COLORS, ("--", "-.", "-"), strict=False):
        plane.line(places, [function(d) for d in places], color, style=style, width=2.6, label=name)
    plane.legend("lower left")
    ends = "; ".join(
        f"{name}: {function(-1):.2f} at -1, {function(1):.2f} at 1" for name, function in ESTIMATORS.items()
    )
    return chart, f"Three estimators against d, all 0 at d = 0. {ends}. Only k1 goes below 0."
