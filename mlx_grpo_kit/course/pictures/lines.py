"""Lines and clouds of points on logarithmic axes, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, INK, LINE_STYLES, MARKERS, ORANGE, plain_axes, three_digits

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 12  # the most points of a line that get markers


def draw_lines(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    xlabel: str = "",
    title: str = "",
    log_x: bool = False,
    levels: Mapping[str, float] | None = None,
) -> tuple[Figure, str]:
    """Draw lines over the same x, on a logarithmic y axis, each with its name at its right end.

    Args:
        lines: name -> values above 0, as many as in x.
        levels: name -> height of a dotted horizontal line, for comparison.

    Returns:
        The figure, and its description in words.
    """
    with packages_for("draw_lines"):
        from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(8, 3.9)
    axis = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.79, bottom=0.13, top=0.9)
    axis.set(yscale="log", xscale="log" if log_x else "linear")
    ends = {}
    for index, (name, values) in enumerate(lines.items()):
        axis.plot(
            x,
            values,
            LINE_STYLES[index % len(LINE_STYLES)],
            color=COLORS[index % len(COLORS)],
            linewidth=2,
            marker=MARKERS[index % len(MARKERS)] if len(x) <= FEW else "",
            markersize=5,
            label=name,
        )
        ends[name] = values[-1]
    for name, height in (levels or {}).items():
        axis.axhline(height, color="#777777", linewidth=1, linestyle=":")
        ends[name] = height
    low, high = axis.get_ylim()
    axis.set_ylim(low / 1.5, high * 1.5)
    axis.set_xlim(x[0] / 1.25 if log_x else x[0], x[-1] * 1.1 if log_x else x[-1])
    if high / low < 1e3:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_locator(NullLocator())
    if log_x:
        axis.set_xticks(list(x), [f"{value:g}" for value in x])
        axis.set_xticks([], minor=True)
    axis.set_xlabel(xlabel, size=9, color=INK)
    axis.set_title(title, loc="left", size=11, color=INK)
    plain_axes(axis, 8.5, "y")
    _name_the_ends(figure, axis, ends)
    words = "; ".join(
        f"{name} from {three_digits(values[0])} to {three_digits(values[-1])}" for name, values in lines.items()
    )
    return figure, f"{title + '. ' if title else ''}From {xlabel} {x[0]:g} to {x[-1]:g}: {words}."


def draw_clouds(
    clouds: Mapping[str, tuple[np.ndarray, np.ndarray]], *, xlabel: str = "", ylabel: str = ""
) -> tuple[Figure, str]:
    """Draw clouds of points side by side on the same logarithmic axes, with a ring around the highest of each.

    Args:
        clouds: title -> (x, y), arrays of the same length. Points with an x or y of 0 are left out, and the words say
            how many they are.

    Returns:
        The figure, and its description in words.
    """
    import numpy as np

    figure = new_figure(4.3 * len(clouds) + 0.6, 3.7)
    axes = figure.subplots(1, len(clouds), sharex=True, sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.085, right=0.985, bottom=0.15, top=0.9, wspace=0.08)
    sentences = []
    for axis, (name, (x, y)) in zip(axes, clouds.items(), strict=True):
        there = (x > 0) & (y > 0)
        x, y = x[there], y[there]
        top = int(np.argmax(y))
        axis.plot(x, y, ".", color=COLORS[0], markersize=2.2, markeredgewidth=0)
        axis.plot(x[top], y[top], "o", color=COLORS[0], markersize=5)
        axis.plot(x[top], y[top], "o", color="none", markeredgecolor=ORANGE, markersize=13, markeredgewidth=2)
        smaller = int(np.sum(x < x[top]))
        axis.set(xscale="log", yscale="log")
        axis.set_title(name, loc="left", size=11, color=INK)
        axis.set_xlabel(xlabel, size=9, color=INK)
        plain_axes(axis, 8.5, "y")
        sentences.append(
            f"{name}: {len(x):,} points ({int(np.sum(~there)):,} at 0 are left out). The highest, "
            f"{y[top]:.1g}, is at {x[top]:.1g}; {smaller:,} are left of it."
        )
    axes[0].set_ylabel(ylabel, size=9, color=INK)
    return figure, f"Points of {ylabel} against {xlabel}. {' '.join(sentences)}"


def _name_the_ends(figure: Figure, axis: Axes, ends: Mapping[str, float]) -> None:
    """Write each line's name right of the axes at the height of its end, moved up if names would overlap."""
    line_height = 15 / (figure.get_figheight() * 72)  # in shares of the figure
    figure.draw_without_rendering()
    to_figure = figure.transFigure.inverted()
    below = -1.0
    for name in sorted(ends, key=ends.get):
        height = to_figure.transform(axis.transData.transform((axis.get_xlim()[1], ends[name])))[1]
        below = max(height, below + line_height)
        figure.text(axis.get_position().x1 + 0.012, below, name, size=9.5, va="center", color=INK)
