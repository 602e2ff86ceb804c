"""One unit of SwiGLU: silu as a soft switch, and the line through 0 whose slope it sets."""

from __future__ import annotations

import math

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS

FAR_GATE, FAR_UP = 6.0, 4.0


def silu(z: float) -> float:
    """z * sigmoid(z)."""
    return z / (1 + math.exp(-z)) if z > -700 else 0.0


def draw_gate(gate: float, up: float) -> tuple[Chart, str]:
    """(chart, words): on the left silu and relu with a dot at the gate, on the right the output for every up."""
    slope = silu(gate)
    chart = Chart(1000, 340)
    zs = [FAR_GATE * (index / 60 - 1) for index in range(121)]
    left = chart.plane(
        *(56, 40, 410, 245), x=(-FAR_GATE, FAR_GATE), y=(-1, 6), title=f"silu({_show(gate)}) = {_show(slope)}"
    )
    left.xlabel = "gate"
    left.upright(gate, style=":")
    left.line(zs, [max(z, 0.0) for z in zs], COLORS[1], style="--", label="relu")
    left.line(zs, [silu(z) for z in zs], COLORS[0], width=2.6, label="silu: gate \N{MULTIPLICATION SIGN} sigmoid(gate)")
    left.dots([gate], [slope], "ink", size=10)
    left.legend("upper left")
    most = FAR_GATE * FAR_UP
    right = chart.plane(
        *(556, 40, 420, 245),
        x=(-FAR_UP, FAR_UP),
        y=(-most, most),
        title="silu(gate) \N{MULTIPLICATION SIGN} up",
        right=f"{_show(slope)} \N{MULTIPLICATION SIGN} {_show(up)} = {_show(slope * up)}",
        xlabel="up",
    )
    for other in (-6, -1, 0.5, 1, 2, 3, 4, 5, 6):
        right.line((-FAR_UP, FAR_UP), (-FAR_UP * silu(other), FAR_UP * silu(other)), "soft", width=0.4)
    right.upright(up, style=":")
    right.line((-FAR_UP, FAR_UP), (-FAR_UP * slope, FAR_UP * slope), COLORS[0], width=2.6)
    right.dots([up], [slope * up], "ink", size=10)
    state = "nearly shut" if abs(slope) < 0.3 else "open"
    return chart, (
        f"A gate of {_show(gate)}: silu is {_show(slope)}, and relu {_show(max(gate, 0.0))}. The switch is {state}. "
        f"An up of {_show(up)} comes out as {_show(slope * up)}. On the right is the line of all ups for this gate, "
        "among the lines of other gates."
    )


def _show(number: float) -> str:
    text = f"{number:.2f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else "0.00"
