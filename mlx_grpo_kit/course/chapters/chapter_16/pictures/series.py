"""The metrics of a run, each in an area of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, LINE_STYLES

HIGH, WIDE, COLUMNS = 190, 238, 2


def draw_series(
    series: Mapping[str, Mapping[str, Sequence[float]]], *, limits: Mapping[str, tuple[float, float]], xlabel: str
) -> tuple[Chart, str]:
    """(chart, words): one area per metric, in rows of two, with its curves over the steps 1, 2, 3 ...

    Args:
        series: {metric: {curve: values}}.
        limits: the range of the y axis, by metric.
        xlabel: the meaning of a step.
    """
    columns = min(COLUMNS, len(series))
    chart = Chart(44 + (WIDE + 60) * columns, (HIGH + 92) * math.ceil(len(series) / columns))
    words = []
    for place, (name, curves) in enumerate(series.items()):
        most = max(map(len, curves.values()))
        row, column = divmod(place, columns)
        plane = chart.plane(
            *(52 + (WIDE + 60) * column, 34 + (HIGH + 92) * row, WIDE, HIGH),
            x=(1, most),
            y=limits[name],
            title=name,
            xlabel=xlabel,
        )
        if limits[name][0] < 0:
            plane.across(0, "soft", style="-")
        for (label, values), color, style in zip(curves.items(), COLORS, LINE_STYLES, strict=False):
            plane.line(range(1, len(values) + 1), values, color, style=style, width=2.2, label=label)
            words.append(f"{label or name}: {name} from {values[0]:.2g} to {values[-1]:.2g}.")
        if len(curves) > 1:
            plane.legend("free")
    return chart, " ".join(words)
