"""The residual stream: the size of each part's output, the size of the sum so far, and the answer read off it."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS

LINE = 46  # pixels for each part


def draw_stream(
    names: Sequence[str], added: Sequence[float], after: Sequence[float], reads: Sequence[str] = ()
) -> tuple[Chart, str]:
    """(chart, words): for each part, from top to bottom, a bar for its output and one for the stream after it.

    Args:
        added: size of each part's output
        after: size of the stream after it
        reads: text next to the bars, such as the model's answer if it ended here
    """
    chart = Chart(1000, 64 + LINE * len(names))
    longest = max(*added, *after)
    left, width = 250, 470
    chart.bar(left, 16, 14, 12, COLORS[0])
    chart.text(left + 20, 27, "what it adds", size=13)
    chart.bar(left + 130, 16, 14, 12, COLORS[5])
    chart.text(left + 150, 27, "the stream after it", size=13)
    words = []
    for row, name in enumerate(names):
        top = 46 + LINE * row
        chart.text(left - 12, top + 22, name, size=14, anchor="end")
        for down, number, color in ((0, added[row], COLORS[0]), (17, after[row], COLORS[5])):
            chart.bar(left, top + down, max(width * number / longest, 1.0), 14, color)
            chart.text(left + width * number / longest + 6, top + down + 12, f"{number:.2f}", size=11, color="soft")
        read = reads[row] if reads else ""
        chart.text(left + width + 60, top + 22, read, size=14)
        words.append(f"{name} adds {added[row]:.2f}, after it the stream is {after[row]:.2f}" + (read and f" ({read})"))
    return chart, f"Sizes (root mean square) in the residual stream. {'; '.join(words)}."
