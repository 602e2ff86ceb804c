"""Training curves: raw points, a smoothed line over them, and a description in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, EDGE, FAINT, INK, LINE_STYLES, MARKERS, SOFT, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = Mapping[str, Sequence[str]]  # a panel's title -> the metrics drawn in it

MAX_COLUMNS = 2
FEW = 60  # the most steps of an unsmoothed line that has points
PANEL_WIDTH, PANEL_HEIGHT = 3.2, 2.4  # inches; two of them fit a narrow page in a readable size


def smooth(values: Sequence[float], smoothing: float) -> list[float]:
    """Return the exponential moving average, with weights smoothing**age that sum to one from the first value on.

    `smoothing` is in [0, 1); 0 returns the values. NaN and infinite values stay gaps and do not enter the average.
    """
    averages, total, weight = [], 0.0, 0.0
    for value in values:
        if not math.isfinite(value):
            averages.append(math.nan)
            continue
        total = smoothing * total + value
        weight = smoothing * weight + 1.0
        averages.append(total / weight)
    return averages


def comes_now_and_then(values: Sequence[float]) -> bool:
    """True if values are usually more than one step apart, such as those of an evaluation every 50 steps."""
    places = [place for place, value in enumerate(values) if math.isfinite(value)]
    gaps = sorted(after - before for before, after in itertools.pairwise(places))
    return bool(gaps) and gaps[(len(gaps) - 1) // 2] > 1


def curve(values: Sequence[float], smoothing: float, log: bool = False) -> tuple[list[int], list[float]]:
    """Compute the line of a metric: (indices into `values`, heights).

    A metric of every step is smoothed, and values that are not finite stay gaps. A metric that is measured only now and
    then is drawn as a line from value to value. For a logarithmic axis, the logarithms are smoothed, and values of 0 or
    less are gaps.
    """
    log = log and any(value > 0 for value in values)
    kept = [value if math.isfinite(value) and (value > 0 or not log) else math.nan for value in values]
    if comes_now_and_then(values):
        places = [place for place, value in enumerate(kept) if math.isfinite(value)]
        return places, [kept[place] for place in places]
    if log:
        logarithms = smooth([math.log(value) for value in kept], smoothing)
        return [*range(len(kept))], [math.exp(value) for value in logarithms]
    return [*range(len(kept))], smooth(kept, smoothing)


def latest(values: Sequence[float], smoothing: float, log: bool = False) -> float:
    """Return the current number of a metric: the end of its line, NaN at a gap, or a value without a logarithm."""
    finite = [value for value in values if math.isfinite(value)]
    if log and finite and finite[-1] <= 0:
        return finite[-1]
    return curve(values, smoothing, log)[1][-1]


def draw_curves(
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    panels: Panels,
    *,
    title: str = "",
    smoothing: float = 0.7,
    max_steps: int | None = None,
    note: str = "",
    log: Collection[str] = (),
) -> Figure:
    """Draw one small chart per panel, side by side. `history[name]` has one value per step; NaN leaves a gap.

    With `max_steps`, the horizontal axis is as long as the whole run, so that a growing curve shows how much remains.
    `note` is small text in the upper right corner. Panels whose title is in `log` have a logarithmic axis, on which
    triangles at the bottom mean 0.
    """
    columns = min(len(panels), MAX_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    header = 0.36 if title or note else 0.0
    width, height = PANEL_WIDTH * MAX_COLUMNS, PANEL_HEIGHT * rows + header
    figure = new_figure(width, height)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    # Margins in inches: the figure may have any number of rows, and its text keeps its size.
    figure.subplots_adjust(
        left=0.62 / width,
        right=1 - 0.2 / width,
        bottom=0.48 / height,
        top=1 - (header + 0.36) / height,
        wspace=0.26,
        hspace=0.48,
    )
    figure.text(0.14 / width, 1 - 0.12 / height, title, size=12, weight="bold", color=INK, va="top")
    figure.text(1 - 0.2 / width, 1 - 0.14 / height, note, size=9, color=SOFT, va="top", ha="right")
    last_step = max([*steps, max_steps or 0, 5])
    for axis, (name, metrics) in zip(axes, panels.items(), strict=False):
        _draw_panel(axis, name, metrics, steps, history, smoothing, name in log)
        axis.set_xlim(0, last_step * 1.02)
        axis.set_xlabel("step", size=9, color=INK, labelpad=2)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def _draw_panel(
    axis: Axes,
    name: str,
    metrics: Sequence[str],
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    smoothing: float,
    log: bool,
) -> None:
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import MaxNLocator

    axis.set_title(name, loc="left", size=10, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(EDGE)
    axis.tick_params(labelsize=8, color=EDGE, labelcolor=INK, length=3)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    if log:
        _logarithmic(axis, [value for metric in metrics for value in history.get(metric, []) if 0 < value < math.inf])

    drawn = _lines(metrics, steps, history, smoothing, log)
    for line in drawn:
        if line.seen:
            axis.plot(steps, line.seen, line.marker, color=line.color, markersize=2, markeredgewidth=0)
        axis.plot(
            line.xs,
            line.heights,
            line.style,
            color=line.color,
            linewidth=2,
            label=f"{line.metric}  {line.now}",
            marker=line.marker,
            markersize=5,
            markevery=None if len(line.marked) == len(line.xs) else line.marked,
            path_effects=[withStroke(linewidth=4, foreground="white")] if line.seen else None,
        )
        if axis.get_yscale() == "log" and line.zeros:
            axis.plot(
                line.zeros,
                [0.0] * len(line.zeros),
                "v",
                color=line.color,
                markersize=4,
                clip_on=False,
                transform=axis.get_xaxis_transform(),
            )  # on the axis itself, whose height has no meaning
        if len(metrics) == 1:
            axis.set_title(line.now, loc="right", size=11, weight="bold", color=INK)
    if len(metrics) > 1 and drawn:
        axis.legend(fontsize=8, frameon=False, labelcolor=INK, handlelength=2.6, borderaxespad=0.1)
    if not drawn:
        words = _waiting_for(metrics, history)
        axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center", size=8, color=SOFT, wrap=True)
        axis.set_ylim(0, 1)


@dataclass
class _Line:
    """The drawing of a metric: raw points, the line over them, and the current number."""

    metric: str
    color: str
    style: str
    marker: str
    xs: list[int]
    heights: list[float]
    marked: list[int]  # the points of the line that have a marker
    seen: Sequence[float]  # the raw points, NaN for missing ones; empty if the line is enough
    zeros: list[int]  # steps at which a logarithm has no value
    now: str


def _lines(
    metrics: Sequence[str], steps: Sequence[int], history: Mapping[str, Sequence[float]], smoothing: float, log: bool
) -> list[_Line]:
    """Make a line for each metric that has at least one value."""
    lines = []
    for index, metric in enumerate(metrics):
        values = [value if math.isfinite(value) else math.nan for value in history.get(metric, [])]
        if not any(map(math.isfinite, values)):
            continue
        places, heights = curve(values, smoothing, log)
        drawn = [place for place, height in enumerate(heights) if math.isfinite(height)]
        now = latest(values, smoothing, log)
        rare = comes_now_and_then(values)
        seen = [] if rare else values if smoothing or len(steps) <= FEW else _alone(values)
        lines.append(
            _Line(
                metric,
                COLORS[index % len(COLORS)],
                LINE_STYLES[index % len(LINE_STYLES)],
                MARKERS[index % len(MARKERS)],
                xs=[steps[place] for place in places],
                heights=heights,
                marked=drawn if rare else drawn[-1:],
                seen=seen,
                zeros=[step for step, value in zip(steps, values, strict=True) if value <= 0],
                now=three_digits(now if math.isfinite(now) else heights[drawn[-1]]),
            )
        )
    return lines


def _waiting_for(metrics: Sequence[str], history: Mapping[str, Sequence[float]]) -> str:
    """Return the text for missing values. It lists existing names, so that a misspelt name is obvious."""
    seen = f"\nmetrics so far: {', '.join(sorted(history))}" if history else ""
    return f"waiting for {' and '.join(metrics)}{seen}"


def chart_curves(
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    panels: Panels,
    *,
    title: str = "",
    smoothing: float = 0.7,
    max_steps: int | None = None,
    log: Collection[str] = (),
) -> Chart:
    """Draw the picture of `draw_curves` as a Chart, thirty times as fast, for a notebook's page."""
    columns = min(len(panels), MAX_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    header = 34 if title else 0
    width, height = 100 * PANEL_WIDTH * MAX_COLUMNS, 100 * PANEL_HEIGHT
    chart = Chart(width, header + height * rows)
    if title:
        chart.text(14, 24, title, size=16, bold=True)
    across = width / columns
    last_step = max([*steps, max_steps or 0, 5])
    for place, (name, metrics) in enumerate(panels.items()):
        row, column = divmod(place, columns)
        lines = _lines(metrics, steps, history, smoothing, name in log)
        limits, is_log = _limits(lines, name in log)
        plane = chart.plane(
            *(across * column + 62, header + height * row + 32, across - 82, height - 78),
            x=(0, last_step * 1.02),
            y=limits,
            log_y=is_log,
            title=name,
            right=lines[0].now if len(metrics) == 1 and lines else "",
            xlabel="step",
        )
        for line in lines:
            if line.seen:
                plane.dots(steps, line.seen, line.color, marker=line.marker, size=2.6)
            label = f"{line.metric}  {line.now}"
            plane.line(
                line.xs,
                line.heights,
                line.color,
                style=line.style,
                label=label,
                marker=line.marker,
                halo=bool(line.seen),
            )
            ends = [(line.xs[place], line.heights[place]) for place in line.marked]
            plane.dots(*zip(*ends, strict=True), line.color, marker=line.marker, size=7)
            if is_log and line.zeros:
                plane.dots(line.zeros, [limits[0]] * len(line.zeros), line.color, marker="v", cut=False)
        if len(metrics) > 1 and lines:
            plane.legend("upper right", size=11)
        if not lines:
            for number, words in enumerate(_waiting_for(metrics, history).splitlines()):
                plane.text(last_step / 2, 0.5, words, dy=16 * number, size=11, anchor="middle", color="soft")
    return chart


def _limits(lines: Sequence[_Line], log: bool) -> tuple[tuple[float, float], bool]:
    """Return the limits of the y axis, and True if it is logarithmic, which needs a positive value."""
    values = [value for line in lines for value in (*line.seen, *line.heights) if math.isfinite(value)]
    positive = [value for value in values if value > 0]
    if log and positive:
        lowest, highest = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        return (10.0**lowest, 10.0 ** (max(highest, lowest + 1) + (len(lines) > 1))), True
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    legend = 0.1 * len(lines) * (high - low) if len(lines) > 1 else 0.0  # the space of the legend, above the lines
    return (low - margin, high + margin + legend) if values else (0.0, 1.0), False


def _alone(values: Sequence[float]) -> list[float]:
    """Keep the values with gaps on both sides, which a line would not show; replace the others by NaN."""
    beside = [math.nan, *values, math.nan]
    return [
        value if math.isnan(before) and math.isnan(after) else math.nan
        for before, value, after in zip(beside, values, beside[2:], strict=False)
    ]


def _logarithmic(axis: Axes, values: Sequence[float]) -> None:
    """Make an axis logarithmic, over whole powers of ten; without a positive value it stays linear."""
    from matplotlib.ticker import LogLocator, NullLocator

    if not values:
        return
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    axis.set_yscale("log")
    axis.set_ylim(10.0**lowest, 10.0 ** max(highest, lowest + 1))
    axis.yaxis.set_major_locator(LogLocator(numticks=6))
    axis.yaxis.set_minor_locator(NullLocator())


def describe_curves(
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    panels: Panels,
    *,
    title: str = "",
    smoothing: float = 0.7,
    log: Collection[str] = (),
) -> str:
    """Describe the curves in one line: the start and end of each metric's line and its extremes.

    `log` contains the titles of the panels with a logarithmic axis.
    """
    sentences = [f"{title}." if title else "", f"Training curves over {len(steps)} steps."]
    on_log_axis = {metric for panel in log for metric in panels[panel]}
    for metric in dict.fromkeys(name for metrics in panels.values() for name in metrics):
        values = [value for value in history.get(metric, []) if math.isfinite(value)]
        if not values:
            sentences.append(f"{metric}: no values.")
            continue
        heights = [
            height for height in curve(history[metric], smoothing, metric in on_log_axis)[1] if math.isfinite(height)
        ]
        now = latest(history[metric], smoothing, metric in on_log_axis)
        end = now if math.isfinite(now) else heights[-1]
        start, end, lowest, highest = map(three_digits, (heights[0], end, min(values), max(values)))
        sentences.append(f"{metric}: from {start} to {end} (lowest {lowest}, highest {highest}).")
    return " ".join(sentence for sentence in sentences if sentence)
