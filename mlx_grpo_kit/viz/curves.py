"""Training curves: raw points, a smoothed line over them, and the same said in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = Mapping[str, Sequence[str]]  # a panel's title -> the metrics drawn in it

# Petroff's six colours stay apart under the common kinds of colour blindness; the styles and markers do without colour.
COLORS = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#7a21dd", "#9c9ca1")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^"
INK, FAINT = "#333333", "#d9d9d9"
MAX_COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 4.2, 2.7  # inches


def smooth(values: Sequence[float], smoothing: float) -> list[float]:
    """Exponential moving average with weights smoothing**age that sum to one from the first value on.

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


def three_digits(value: float) -> str:
    """Three significant digits, of a constant width while a number changes: 0.71 is "0.710"."""
    return f"{value:#.3g}".rstrip(".")


def draw_curves(steps: Sequence[int], history: Mapping[str, Sequence[float]], panels: Panels, *, title: str = "",
                smoothing: float = 0.7, max_steps: int | None = None, note: str = "") -> Figure:
    """One small chart a panel, side by side. `history[name]` has one value for each of `steps`; NaN leaves a gap.

    With `max_steps` the horizontal axis is as long as the whole run, so a growing curve shows how much is to come.
    `note` stands small in the upper right corner.
    """
    columns = min(len(panels), MAX_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    header = 0.36 if title or note else 0.0
    width, height = max(PANEL_WIDTH * columns, 6.4), PANEL_HEIGHT * rows + header
    figure = new_figure(width, height)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    # Margins in inches: the figure may have any number of rows, and its text keeps its size.
    figure.subplots_adjust(left=0.62 / width, right=1 - 0.2 / width, bottom=0.48 / height,
                           top=1 - (header + 0.36) / height, wspace=0.26, hspace=0.48)
    figure.text(0.14 / width, 1 - 0.12 / height, title, size=12, weight="bold", color=INK, va="top")
    figure.text(1 - 0.2 / width, 1 - 0.14 / height, note, size=9, color="#666666", va="top", ha="right")
    last_step = max([*steps, max_steps or 0, 5])
    for axis, (name, metrics) in zip(axes, panels.items(), strict=False):
        _draw_panel(axis, name, metrics, steps, history, smoothing)
        axis.set_xlim(0, last_step * 1.02)
        axis.set_xlabel("step", size=9, color=INK, labelpad=2)
    for axis in axes[len(panels):]:
        axis.set_visible(False)
    return figure


def _draw_panel(axis: Axes, name: str, metrics: Sequence[str], steps: Sequence[int],
                history: Mapping[str, Sequence[float]], smoothing: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_title(name, loc="left", size=10, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(labelsize=8, color="#999999", labelcolor=INK, length=3)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(5))

    drawn = 0
    for index, metric in enumerate(metrics):
        values = [value if math.isfinite(value) else math.nan for value in history.get(metric, [])]
        averages = smooth(values, smoothing)
        finite = [value for value in averages if math.isfinite(value)]
        if not finite:
            continue
        drawn += 1
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        axis.plot(steps, values, marker, color=color, markersize=3, alpha=0.45, markeredgewidth=0)
        label = f"{metric}  {three_digits(finite[-1])}"
        end = max(position for position, value in enumerate(averages) if math.isfinite(value))
        axis.plot(steps, averages, LINE_STYLES[index % len(LINE_STYLES)], color=color, linewidth=2, label=label,
                  marker=marker, markersize=5, markevery=[end])
        if len(metrics) == 1:
            axis.set_title(three_digits(finite[-1]), loc="right", size=11, weight="bold", color=INK)
    if len(metrics) > 1 and drawn:
        axis.legend(fontsize=8, frameon=False, labelcolor=INK, handlelength=2.6, borderaxespad=0.1)
    if not drawn:
        # A misspelt name should be seen at the first glance, next to the names there are.
        seen = ", ".join(sorted(history)) or "none yet"
        words = f"waiting for {' and '.join(metrics)}" + (f"\nmetrics so far: {seen}" if history else "")
        axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center", size=8, color="#666666",
                  wrap=True)
        axis.set_ylim(0, 1)


def describe_curves(steps: Sequence[int], history: Mapping[str, Sequence[float]], panels: Panels, *, title: str = "",
                    smoothing: float = 0.7) -> str:
    """What the curves show, in one line of words: each metric's smoothed start and end and its extremes."""
    sentences = [f"{title}." if title else "", f"Training curves over {len(steps)} steps."]
    for metric in dict.fromkeys(name for metrics in panels.values() for name in metrics):
        values = [value for value in history.get(metric, []) if math.isfinite(value)]
        if not values:
            sentences.append(f"{metric}: no values.")
            continue
        averages = smooth(values, smoothing)
        start, end, lowest, highest = map(three_digits, (averages[0], averages[-1], min(values), max(values)))
        sentences.append(f"{metric}: from {start} to {end} (lowest {lowest}, highest {highest}).")
    return " ".join(sentence for sentence in sentences if sentence)
