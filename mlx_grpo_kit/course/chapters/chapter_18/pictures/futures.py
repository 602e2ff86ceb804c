"""Several runs over the same steps, each with its name at the right end of its curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, GREY, LINE_STYLES, MARKERS, ORANGE, three_digits

LINE_COLORS = (BLUE, ORANGE, COLORS[3], GREY)
WIDTH = 1000
APART = 17  # pixels between two names


def draw_futures(
    steps: Sequence[int], curves: Mapping[str, Sequence[float]], *, title: str, names: str = ""
) -> tuple[Chart, str]:
    """(chart, words): a curve for each run, with values between 0 and 1.

    Args:
        steps: the step of each point.
        curves: the values by the name of the run, as many as `steps`.
        title: the title of the chart.
        names: a heading for the names of the runs.
    """
    chart = Chart(WIDTH, 330)
    labels = {name: f"{name}: {three_digits(values[-1])}" for name, values in curves.items()}
    right = WIDTH - max(8.2 * max(map(len, labels.values())), 6.8 * len(names)) - 8
    plane = chart.plane(58, 38, right - 76, 236, x=(steps[0], steps[-1]), y=(0, 1), title=title, xlabel="step")
    chart.text(right, 28, names, size=12.5, color="soft")
    for number, (name, values) in enumerate(curves.items()):
        color, style = LINE_COLORS[number % 4], LINE_STYLES[number % 4]
        plane.line(steps, values, color, style=style, label=name)
        plane.dots(steps, values, color, marker=MARKERS[number % 4], size=6, cut=False)
    ends = sorted(((38 + 236 * (1 - values[-1]), name) for name, values in curves.items()))
    y = 0.0
    for number, (end, name) in enumerate(ends):
        room = 38 + 236 + 5 - APART * (len(ends) - 1 - number)
        y = min(max(end + 5, y + APART), room)
        color = LINE_COLORS[[*curves].index(name) % 4]
        chart.text(right, y, labels[name], size=13, color=color, bold=True)
    said = ". ".join(
        f"{name}: from {three_digits(values[0])} to {three_digits(values[-1])}" for name, values in curves.items()
    )
    return chart, f"{title}, steps {steps[0]} to {steps[-1]}. {said}."
