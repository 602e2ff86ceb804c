"""A few lines in one plot, with logarithmic axes where they are asked for, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.curves import COLORS, FAINT, INK, LINE_STYLES, MARKERS, three_digits
from mlx_grpo_kit.viz.picture import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 12  # points, up to which each gets a marker of its own


def draw_lines(x: Sequence[float], lines: Mapping[str, Sequence[float]], *, xlabel: str = "", title: str = "",
               log_x: bool = False, levels: Mapping[str, float] | None = None) -> tuple[Figure, str]:
    """(figure, words): lines over the same x, on a logarithmic y axis, each with its name at its right end.

    lines   name -> values above 0, as many as x
    levels  name -> height of a dotted line across, to compare with
    """
    figure = new_figure(8, 3.9)
    axis = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.77, bottom=0.13, top=0.9)
    axis.set(yscale="log", xscale="log" if log_x else "linear")
    for index, (name, values) in enumerate(lines.items()):
        axis.plot(x, values, LINE_STYLES[index % len(LINE_STYLES)], color=COLORS[index % len(COLORS)], linewidth=2,
                  marker=MARKERS[index % len(MARKERS)] if len(x) <= FEW else "", markersize=5, label=name)
    for name, height in (levels or {}).items():
        axis.axhline(height, color="#999999", linewidth=1, linestyle=":")
        axis.text(0.995, height, name, size=8.5, va="bottom", ha="right", color="#555555",
                  transform=axis.get_yaxis_transform())
    low, high = axis.get_ylim()
    axis.set_ylim(low / 1.5, high * 1.5)
    _name_the_ends(figure, axis, x[-1], {name: values[-1] for name, values in lines.items()})
    if log_x:
        axis.set_xticks(list(x), [f"{value:g}" for value in x])
        axis.set_xticks([], minor=True)
    axis.set_xlabel(xlabel, size=9, color=INK)
    axis.set_title(title, loc="left", size=11, color=INK)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8.5, colors="#555555")
    ends = "; ".join(f"{name} from {three_digits(values[0])} to {three_digits(values[-1])}"
                     for name, values in lines.items())
    return figure, f"{title + '. ' if title else ''}From {xlabel} {x[0]:g} to {x[-1]:g}: {ends}."


def _name_the_ends(figure: Figure, axis, x: float, ends: Mapping[str, float]) -> None:
    """Each line's name beside its end, moved apart where they would overlap."""
    line_height = 15 / (figure.get_figheight() * 72)  # in shares of the figure
    figure.draw_without_rendering()
    to_figure = figure.transFigure.inverted()
    below = -1.0
    for name in sorted(ends, key=ends.get):
        right, height = to_figure.transform(axis.transData.transform((x, ends[name])))
        below = max(height, below + line_height)
        figure.text(right + 0.012, below, name, size=9.5, va="center", color=INK)
