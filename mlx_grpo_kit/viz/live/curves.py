"""Training curves: raw points, a smoothed line over them, and a description in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.figure_chart import FigureChart
from mlx_grpo_kit.viz.style import COLORS, LINE_STYLES, MARKERS, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panels = Mapping[str, Sequence[str]]  # a panel's title -> the metrics drawn in it
Page = TypeVar("Page", Chart, FigureChart)

CURVE = Path(__file__).with_name("curve")  # .js and .css, which draw the curves of a live page
MAX_COLUMNS = 2
MOST_PLACES = 600  # the most steps of a line on a live page
FEW = 60  # the most steps of an unsmoothed line that has points
LINE = 40  # characters of words that fit into a panel
WIDTH = 640  # pixels: two panels fit a narrow page in a readable size


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


@dataclass
class Line:
    """A line through points (xs, heights), where NaN leaves a gap.

    Attributes:
        look: the options of `Plane.line`.
        seen: the raw values at `xs`, NaN for missing ones; empty if the line is enough.
        zeros: steps at which a logarithm has no value.
        end: small words at its end.
    """

    xs: Sequence[float]
    heights: Sequence[float]
    color: str
    look: Mapping[str, Any]
    seen: Sequence[float] = ()
    zeros: Sequence[int] = ()
    end: str = ""


@dataclass
class CurvePanel:
    """A small chart of lines over the steps of a run.

    Attributes:
        title, right: words above it, on the left and, in bold, on the right.
        log: True for a logarithmic axis, if any value is positive.
        legend: True to name the lines that have a label.
        empty: the words that are shown without lines.
        limits: the limits of the y axis; None makes them fit the lines.
    """

    title: str
    lines: list[Line]
    right: str = ""
    log: bool = False
    legend: bool = False
    empty: str = "no values yet"
    limits: tuple[float, float] | None = None

    @property
    def names(self) -> int:
        """The number of names in the legend."""
        return sum("label" in line.look for line in self.lines) if self.legend else 0


def draw_panels(
    panels: Sequence[CurvePanel],
    last_step: int,
    *,
    title: str = "",
    note: str = "",
    height: float = 240,
    xlabel: str = "step",
    kind: type[Page] = Chart,
) -> Page:
    """Draw panels side by side, each `height` pixels high, as a Chart for a page or a FigureChart for a file.

    Every stored curve of a run is drawn here; curve.js draws those of a live page.
    """
    columns = min(len(panels), MAX_COLUMNS)
    across, header = WIDTH / columns, 34 if title or note else 0
    chart = kind(WIDTH, header + height * math.ceil(len(panels) / columns))
    chart.text(14, 24, title, size=16, bold=True)
    chart.text(WIDTH - 20, 24, note, size=12, anchor="end", color="soft")
    last = 1.02 * max(last_step, 5)
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        inside = height - (78 if xlabel else 64)
        limits, is_log = _limits(panel, inside)
        plane = chart.plane(
            *(across * column + 62, header + height * row + 32, across - 82, inside),
            x=(0, last),
            y=limits,
            log_y=is_log,
            title=panel.title,
            right=panel.right,
            xlabel=xlabel,
        )
        for line in panel.lines:
            if line.seen:
                plane.dots(line.xs, line.seen, line.color, marker=line.look["marker"], size=2.6)
            plane.line(line.xs, line.heights, line.color, halo=bool(line.seen), **line.look)
            if is_log and line.zeros:
                plane.floor(line.zeros, line.color)
            if line.end:
                x, y = [point for point in zip(line.xs, line.heights, strict=True) if math.isfinite(point[1])][-1]
                plane.text(x, y, line.end, dx=3, dy=4, size=11, color="soft")
        if panel.names:
            plane.legend("upper right", size=11)
        if not panel.lines:
            plane.text(last / 2, sum(limits) / 2, panel.empty, size=11, anchor="middle", color="soft")
    return chart


def _limits(panel: CurvePanel, height: float) -> tuple[tuple[float, float], bool]:
    """Return the limits of the y axis, and True if it is logarithmic, which needs a positive value."""
    values = [value for line in panel.lines for value in (*line.seen, *line.heights) if math.isfinite(value)]
    positive = [value for value in values if value > 0]
    share = min((16 * panel.names + 8) / height, 0.5) if panel.names else 0.0
    legend = share / (1 - share)  # its height above the lines, as a share of theirs
    if panel.log and positive:
        lowest, highest = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        highest = max(highest, lowest + 1)
        return (10.0**lowest, 10.0 ** min(highest + math.ceil(legend * (highest - lowest)), 308)), True
    if panel.limits or not values:
        return panel.limits or (0.0, 1.0), False
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return (low - margin, high + margin + legend * (high - low + 2 * margin)), False


def curve_panel(
    title: str,
    metrics: Sequence[str],
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    smoothing: float,
    log: bool = False,
) -> CurvePanel:
    """Make the panel of some metrics, with a line for each one that has at least one value."""
    lines, now = [], ""
    for index, metric in enumerate(metrics):
        values = [value if math.isfinite(value) else math.nan for value in history.get(metric, [])]
        if not any(map(math.isfinite, values)):
            continue
        places, heights = curve(values, smoothing, log)
        drawn = [place for place, height in enumerate(heights) if math.isfinite(height)]
        rare, end = comes_now_and_then(values), latest(values, smoothing, log)
        now = three_digits(end if math.isfinite(end) else heights[drawn[-1]])
        look = {
            "style": LINE_STYLES[index % len(LINE_STYLES)],
            "marker": MARKERS[index % len(MARKERS)],
            "marked": drawn if rare else drawn[-1:],
            "label": f"{metric}  {now}",
        }
        seen = [] if rare else values if smoothing or len(steps) <= FEW else _alone(values)
        zeros = [step for step, value in zip(steps, values, strict=True) if value <= 0]
        lines.append(Line([steps[place] for place in places], heights, COLORS[index % len(COLORS)], look, seen, zeros))
    several, empty = len(metrics) > 1, _waiting_for(metrics, history)
    return CurvePanel(title, lines, right="" if several else now, log=log, legend=several, empty=empty)


def _waiting_for(metrics: Sequence[str], history: Collection[str]) -> str:
    """Return the words of a panel without values. They list existing names, so that a misspelt name is obvious."""
    known = [f"metrics so far: {', '.join(sorted(history))}"] if history else []
    return "\n".join(fill(words, LINE) for words in (f"waiting for {' and '.join(metrics)}", *known))


def _alone(values: Sequence[float]) -> list[float]:
    """Keep the values with gaps on both sides, which a line would not show; replace the others by NaN."""
    beside = [math.nan, *values, math.nan]
    return [
        value if math.isnan(before) and math.isnan(after) else math.nan
        for before, value, after in zip(beside, values, beside[2:], strict=False)
    ]


def chart_curves(
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    panels: Panels,
    *,
    smoothing: float = 0.7,
    max_steps: int | None = None,
    log: Collection[str] = (),
    **options,
) -> Chart | FigureChart:
    """Draw one small chart per panel, side by side. `history[name]` has one value per step; NaN leaves a gap.

    With `max_steps`, the horizontal axis is as long as the whole run, so that a growing curve shows how much remains.
    Panels whose title is in `log` have a logarithmic axis, on which triangles at the bottom mean 0. `options` are those
    of `draw_panels`.
    """
    drawn = [curve_panel(name, metrics, steps, history, smoothing, name in log) for name, metrics in panels.items()]
    return draw_panels(drawn, max([*steps, max_steps or 0]), **options)


def draw_curves(steps: Sequence[int], history: Mapping[str, Sequence[float]], panels: Panels, **options) -> Figure:
    """Draw the picture of `chart_curves` as a Matplotlib figure, for a PNG file."""
    return chart_curves(steps, history, panels, kind=FigureChart, **options).figure


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


def curves_for_page(
    steps: Sequence[int],
    history: Mapping[str, Sequence[float]],
    panels: Panels,
    *,
    smoothing: float = 0.7,
    log: Collection[str] = (),
) -> dict[str, Any]:
    """Return the curves of `chart_curves` as JSON for a live page, where curve.js draws them.

    A page gets at most about MOST_PLACES steps: of each stretch of a longer run, the lowest and the highest value.
    """
    missing = [math.nan] * len(steps)
    values = {
        metric: [value if math.isfinite(value) else math.nan for value in history.get(metric, missing)]
        for metrics in panels.values()
        for metric in metrics
    }
    rare = {metric for metric, column in values.items() if comes_now_and_then(column)}
    places = _places(values, rare, len(steps))

    def heights(title: str) -> dict[str, list[float | None]]:
        smoothed = [name for name in panels[title] if name not in rare] if smoothing else []
        return {name: short(curve(values[name], smoothing, title in log)[1]) for name in smoothed}

    def short(column: Sequence[float]) -> list[float | None]:
        return [five_digits(column[place]) for place in places]

    return {
        "steps": [steps[place] for place in places],
        "columns": {metric: short(column) for metric, column in values.items()},
        "panels": [
            {
                "title": title,
                "lines": {metric: metric for metric in metrics},
                "heights": heights(title),
                "rare": [metric for metric in metrics if metric in rare],
                "log": title in log,
                "empty": _waiting_for(metrics, history),
                "xlabel": "step",
            }
            for title, metrics in panels.items()
        ],
    }


def _places(values: Mapping[str, Sequence[float]], rare: Collection[str], count: int) -> list[int]:
    """Choose the steps that a page gets: of each stretch the lowest and the highest of every line, and a gap."""
    if count <= MOST_PLACES:
        return [*range(count)]
    size = math.ceil(2 * len(values) * count / MOST_PLACES)
    kept = {count - 1}
    for metric, column in values.items():
        for start in range(0, count, size):
            stretch = range(start, min(start + size, count))
            known = [place for place in stretch if not math.isnan(column[place])]
            if known:
                kept |= {min(known, key=column.__getitem__), max(known, key=column.__getitem__)}
            if metric not in rare and len(known) < len(stretch):
                kept.add(next(place for place in stretch if math.isnan(column[place])))
    return sorted(kept)


def five_digits(value: float) -> float | None:
    """Round a number for a page, which shows three digits; a number that is not finite becomes None."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
