"""A chart that Matplotlib draws, for PNG files: the methods of chart.py that training curves use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.chart import ticks
from mlx_grpo_kit.viz.picture import SCREEN_DPI, new_figure
from mlx_grpo_kit.viz.style import INK, SOFT, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers, Limits = Sequence[float], tuple[float, float]
POINT = 72 / SCREEN_DPI  # per pixel
INKS = {"ink": INK, "soft": SOFT}
ALIGNED = {"start": "left", "middle": "center", "end": "right"}


class FigureChart:
    """A page of `width` x `height` pixels as a Matplotlib figure; see `Chart`."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self.figure = new_figure(width / SCREEN_DPI, height / SCREEN_DPI)

    def plane(self, left: float, top: float, width: float, height: float, **options) -> FigurePlane:
        """Add an area to draw in, and return it."""
        box = left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height
        return FigurePlane(self.figure.add_axes(box), width, height, **options)

    def text(self, x: float, y: float, words: str, *, bold: bool = False, **look) -> None:
        """Write words on the page with their baseline at y."""
        weight = "bold" if bold else "normal"
        self.figure.text(x / self.width, 1 - y / self.height, words, weight=weight, **_look(**look))


class FigurePlane:
    """An area with two axes; see `Plane`."""

    def __init__(self, axis: Axes, width: float, height: float, *, x: Limits, y: Limits, log_y: bool, **words: str):
        from matplotlib.ticker import NullLocator

        self.axis = axis
        axis.set(yscale="log" if log_y else "linear", xlim=x, ylim=y)
        axis.set_xticks(*zip(*ticks(x, False, int(width / 54)), strict=True))
        up = ticks(y, log_y, int(height / 36))
        # Matplotlib writes powers of ten as formulas.
        axis.set_yticks([value for value, _ in up], None if log_y else [number for _, number in up])
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set_title(words["title"], loc="left", size=14 * POINT, color=INK)
        axis.set_title(words["right"], loc="right", size=14 * POINT, weight="bold", color=INK)
        axis.set_xlabel(words["xlabel"], size=12 * POINT, color=INK, labelpad=2)
        plain_axes(axis, 11 * POINT, "y")
        axis.spines[["left", "bottom"]].set_color(SOFT)

    def line(
        self, xs: Numbers, ys: Numbers, color: str, *, halo: bool, style="-", width=2.0, marked: Numbers = (), **look
    ) -> None:
        """Draw a line through points, with gaps where a height is NaN."""
        from matplotlib.patheffects import withStroke

        look |= {"markersize": 7 * POINT, "linewidth": width * POINT, "clip_on": False}
        [line] = self.axis.plot(xs, ys, style, color=color, **look)
        line.set_markevery(None if len(marked) == len(xs) else [*marked])
        if halo:
            line.set_path_effects([withStroke(linewidth=(width + 1.6) * POINT, foreground="white")])

    def dots(self, xs: Numbers, ys: Numbers, color: str, *, marker: str, size: float) -> None:
        """Draw markers of `size` pixels."""
        self.axis.plot(xs, ys, marker, color=color, markersize=size * POINT, markeredgewidth=0)

    def floor(self, xs: Numbers, color: str) -> None:
        """Draw triangles on the axis itself, whose height has no meaning."""
        on_axis = {"clip_on": False, "transform": self.axis.get_xaxis_transform()}
        self.axis.plot(xs, [0.0] * len(xs), "v", color=color, markersize=6 * POINT, **on_axis)

    def text(self, x: float, y: float, words: str, *, dx: float = 0, dy: float = 0, **look) -> None:
        """Write lines of words around a point, moved by (dx, dy) pixels."""
        place = {"xytext": (dx * POINT, -dy * POINT), "textcoords": "offset points", "va": "center"}
        self.axis.annotate(words, (x, y), **place, **_look(**look))

    def legend(self, corner: str, *, size: float) -> None:
        """Draw a legend with the labels so far in a corner."""
        frame = {"framealpha": 0.82, "edgecolor": "none", "labelcolor": INK, "borderpad": 0.2, "borderaxespad": 0.2}
        self.axis.legend(loc=corner, fontsize=size * POINT, handlelength=2.6, **frame)


def _look(size: float = 13, anchor: str = "start", color: str = "ink") -> dict[str, Any]:
    return {"size": size * POINT, "ha": ALIGNED[anchor], "color": INKS[color]}
