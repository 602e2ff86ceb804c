"""Horizontal bars with a few parts each, and the number of each bar in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS

WIDTH, LINE, TOP = 1000, 30, 62


def draw_bars(
    rows: Mapping[str, tuple[Sequence[float], str]], *, title: str, parts: Sequence[str] = ()
) -> tuple[Chart, str]:
    """(chart, words): one bar per row, on one scale that begins at 0.

    Args:
        rows: name -> (the lengths of the bar's parts, the text after the bar).
        title: the text above the picture.
        parts: the names of the parts, if there is more than one.
    """
    left = 26 + 7.9 * max(map(len, rows))
    right = 24 + 7.4 * max(len(words) for _, words in rows.values())
    longest = max(sum(lengths) for lengths, _ in rows.values()) or 1.0
    scale = (WIDTH - left - right) / longest
    chart = Chart(WIDTH, TOP + LINE * len(rows) + 14)
    chart.text(16, 26, title, size=15)
    for number, part in enumerate(parts):
        x = left + number * 190
        chart.bar(x, 40, 12, 12, COLORS[number])
        chart.text(x + 18, 51, part, size=13)
    for number, (name, (lengths, words)) in enumerate(rows.items()):
        y, x = TOP + LINE * number, left
        chart.text(16, y + 18, name, size=14)
        for length, color in zip(lengths, COLORS, strict=False):
            chart.bar(x, y + 4, max(length * scale, 1.0), LINE - 10, color)
            x += length * scale
        chart.text(x + 8, y + 18, words, size=14)
    return chart, f"{title}. " + "; ".join(f"{name}: {words}" for name, (_, words) in rows.items()) + "."
