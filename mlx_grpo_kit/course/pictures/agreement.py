"""The numbers of several engines for one gradient side by side, and the difference of each from the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE

ROW, FIRST, STEP, BAR = 32, 160, 138, 150  # pixels
DIGITS_OF_FLOAT64, DIGITS_OF_FLOAT32 = -17, -8  # powers of ten: the shortest bar, and the change of colour


def draw_agreement(
    columns: Sequence[str],
    rows: Mapping[str, Sequence[float]],
    differences: Mapping[str, float],
    *,
    title: str,
    measure: str = "largest difference",
) -> tuple[Chart, str]:
    """(chart, words): a table of numbers, and after each row a bar for its largest difference, one step per digit.

    Args:
        columns: names of the numbers.
        rows: {engine: one number per column}.
        differences: {engine: the largest difference of any number from that of the first engine}.
        title: text above the table.
        measure: the name of the differences, if they are measured differently.
    """
    last = FIRST + STEP * len(columns) + 10
    chart = Chart(last + BAR + 80, 76 + ROW * len(rows))
    chart.text(14, 24, title, size=15)
    for place, column in enumerate(columns):
        chart.text(FIRST + STEP * place + 4, 52, column, size=12, color="soft")
    chart.text(last, 52, measure, size=12, color="soft")
    for number, (engine, values) in enumerate(rows.items()):
        y, difference = 78 + ROW * number, differences[engine]
        chart.text(14, y, engine, size=14)
        for place, value in enumerate(values):
            chart.digits(
                FIRST + STEP * place + 4, y, [(f"{value:+.9f}".replace("-", "\N{MINUS SIGN}"), "ink")], size=14
            )
        power = math.log10(difference) if difference else DIGITS_OF_FLOAT64
        color = POSITIVE if power < DIGITS_OF_FLOAT32 else NEGATIVE
        length = max(2.0, BAR * (power - DIGITS_OF_FLOAT64) / 12)
        chart.bar(last, y - 11, length, 13, color)
        chart.text(last + length + 8, y, f"{difference:.0e}" if difference else "0", size=13)
    words = ", ".join(f"{engine} {difference:.0e}" for engine, difference in differences.items())
    return chart, f"{title}. {measure.capitalize()} from {next(iter(rows))}: {words}."
