"""A table of numbers with a bar after each number. Every column has its own scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import POSITIVE, short_number

ROW, FIRST, NUMBER = 30, 150, 66  # pixels: a row's height, where columns begin, room for a number


def draw_table(
    columns: Mapping[str, str], rows: Mapping[str, Sequence[float | None]], *, title: str, width: float = 1000
) -> tuple[Chart, str]:
    """(chart, words): one row per name, with a number and its bar in each column; None leaves a gap.

    Args:
        columns: units by the columns' names.
        rows: by name, one number per column, not negative.
        title: the text above the table.
    """
    chart = Chart(width, 78 + ROW * len(rows))
    chart.text(14, 24, title, size=15)
    step = (width - FIRST - 14) / len(columns)
    for place, (column, unit) in enumerate(columns.items()):
        left = FIRST + place * step
        chart.text(left, 54, f"{column} ({unit})" if unit else column, size=12, color="soft")
        largest = max((values[place] or 0.0 for values in rows.values()), default=0.0)
        for number, values in enumerate(rows.values()):
            value, y = values[place], 84 + ROW * number
            if value is None:
                chart.text(left, y, "\N{EN DASH}", size=13, color="soft")
                continue
            chart.text(left + NUMBER - 12, y, short_number(value), size=13, anchor="end")
            chart.bar(left + NUMBER - 4, y - 11, max((step - NUMBER - 12) * value / (largest or 1), 1.5), 13, POSITIVE)
    for number, name in enumerate(rows):
        chart.text(14, 84 + ROW * number, name, size=13.5)
    said = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{column} {short_number(value)} {unit}".rstrip()
            for (column, unit), value in zip(columns.items(), values, strict=True)
            if value is not None
        )
        for name, values in rows.items()
    )
    return chart, f"{title}. {said}."
