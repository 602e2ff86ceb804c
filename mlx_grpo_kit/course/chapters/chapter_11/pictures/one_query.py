"""One query and a few keys of two numbers each: scores, weights and the mixture of the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, NEGATIVE, POSITIVE, three_digits

WIDTH, LEFT, TOP, SIDE = 930, 42, 42, 220  # pixels: the picture and its two planes


def draw_one_query(
    query: Sequence[float], keys: Any, values: Any, names: Sequence[str], *, scale: float = 1.0
) -> tuple[Chart, str]:
    """(chart, words): keys and query as arrows, scores and weights as bars, values as points with their mixture.

    Args:
        query: two numbers
        keys, values: [S, 2]
        names: of the S tokens
        scale: the factor on each score before softmax
    """
    query, keys, values = (np.asarray(array, float) for array in (query, keys, values))
    scores = scale * (keys @ query)
    powers = np.exp(scores - scores.max())
    weights = powers / powers.sum()
    mixed = weights @ values
    chart = Chart(WIDTH, TOP + SIDE + 58)

    reach = 1.1 * max(3.0, np.abs(keys).max(), np.abs(query).max())
    plane = chart.plane(LEFT, TOP, SIDE, SIDE, x=(-reach, reach), y=(-reach, reach), title="keys and the query")
    plane.across(0, "soft")
    plane.upright(0, "soft", style=":")
    for place, spot in enumerate(_by_spot(keys, names)):
        (x, y), words = spot
        plane.line((0, x), (0, y), COLORS[5], width=3)
        plane.dots([x], [y], COLORS[5], size=8)
        plane.text(x, y, words, dx=8, dy=-6 - 2 * place, size=13)
    plane.line((0, query[0]), (0, query[1]), POSITIVE, width=3)
    plane.dots([query[0]], [query[1]], POSITIVE, marker="D", size=8)
    # Next to the point if the arrow is steep; else above or below it, away from the arrow and the axes' numbers.
    steep = abs(query[1]) > 0.6 * reach
    leftwards = query[0] > 0.6 * reach or (not steep and -0.6 * reach < query[0] < 0)
    dx, dy = (-10 if leftwards else 10, 5) if steep else (4, 20 if query[1] <= 0 else -10)
    plane.text(query[0], query[1], "query", dx=dx, dy=dy, anchor="end" if leftwards else "start", bold=True)

    left = LEFT + SIDE + 52
    for x, heading in ((0, "token"), (62, "score"), (160, "weight")):
        chart.text(left + x, TOP - 9, heading, size=14)
    for row, name in enumerate(names):
        y = TOP + 36 + 56 * row
        chart.text(left, y, name, size=16, bold=True)
        chart.text(left + 62, y, _number(scores[row]), size=14)
        chart.bar(left + 160, y - 15, max(110 * weights[row], 0.6), 20, POSITIVE)
        chart.text(left + 167 + 110 * weights[row], y, f"{weights[row]:.3f}", size=14)

    right = WIDTH - SIDE - 20
    low, high = values.min(axis=0) - 1, values.max(axis=0) + 1
    plane = chart.plane(
        right, TOP, SIDE, SIDE, x=(low[0], high[0]), y=(low[1], high[1]), title="values and their mixture"
    )
    corners = [*values, values[0]]
    plane.line([x for x, _ in corners], [y for _, y in corners], "soft", style=":", width=1)
    for name, (x, y), weight in zip(names, values, weights, strict=True):
        plane.dots([x], [y], COLORS[5], size=6 + 14 * math.sqrt(weight))
        plane.text(x, y, name, dy=-14, size=13, anchor="middle")
    plane.dots([mixed[0]], [mixed[1]], NEGATIVE, marker="D", size=11)
    chart.text(right, TOP + SIDE + 44, f"mixture: ({mixed[0]:.2f}, {mixed[1]:.2f})", size=14, bold=True)
    words = ", ".join(
        f'"{name}" has score {_number(score)} and weight {weight:.3f}'
        for name, score, weight in zip(names, scores, weights, strict=True)
    )
    return chart, (
        f"Query ({query[0]:g}, {query[1]:g}), scores times {scale:g}: {words}. "
        f"The values mix to ({mixed[0]:.2f}, {mixed[1]:.2f})."
    )


def _by_spot(points: np.ndarray, names: Sequence[str]) -> list[tuple[tuple[float, float], str]]:
    """Points with their names; points at the same place with all of their names."""
    spots: dict[tuple[float, float], list[str]] = {}
    for point, name in zip(points, names, strict=True):
        spots.setdefault((float(point[0]), float(point[1])), []).append(name)
    return [(spot, " and ".join(words)) for spot, words in spots.items()]


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-9 else three_digits(value).replace("-", "\N{MINUS SIGN}")
