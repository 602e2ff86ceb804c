"""The performance that is left when a part of a model is removed: bars next to the names of the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, POSITIVE

ROW, NAMES, WIDE, GAP = 26, 150, 900, 62  # pixels: a row, the names, the full width, the gap between columns


def draw_ablations(shares: Mapping[str, Sequence[float]], columns: Sequence[str], title: str) -> tuple[Chart, str]:
    """(chart, words): for each part, by name, a bar for each of `columns`, with shares from 0 to 1.

    The first part is the whole model: its bars are grey, and a line at their ends runs down through the others.
    """
    bar = (WIDE - NAMES) / len(columns) - GAP
    chart = Chart(WIDE, 64 + ROW * len(shares) + 10)
    chart.text(14, 22, title, size=15, bold=True)
    whole = next(iter(shares.values()))
    for column, heading in enumerate(columns):
        left = NAMES + column * (bar + GAP)
        chart.text(left, 50, heading, size=13, color="soft")
        for row, (name, values) in enumerate(shares.items()):
            y = 62 + ROW * row
            if column == 0:
                chart.text(14, y + 16, name, size=13.5, bold=row == 0)
            chart.bar(left, y + 3, max(bar * values[column], 1), ROW - 8, COLORS[5] if row == 0 else POSITIVE)
            chart.text(left + bar + 44, y + 16, f"{values[column]:.0%}", size=13, anchor="end")
        chart.bar(left + bar * whole[column] - 0.5, 62, 1, ROW * len(shares), "#59636e")
    words = "; ".join(
        f"{name}: " + ", ".join(f"{heading} {value:.0%}" for heading, value in zip(columns, values, strict=True))
        for name, values in shares.items()
    )
    return chart, f"{title}. {words}."
