"""The paths of several optimizers down the same valley."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, FAINT, INK, LINE_STYLES, MARKERS, SOFT

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


def draw_descent(
    height: Callable[[np.ndarray, np.ndarray], np.ndarray],
    paths: Mapping[str, np.ndarray],
    *,
    reach: tuple[float, float] = (4.4, 2.2),
    title: str = "",
) -> tuple[Figure, str]:
    """(figure, words): contour lines of a valley with some paths in it, and next to it the height along each path.

    Args:
        height: two arrays of the same shape -> the height above each point (a, b), at least 0
        paths: name -> [steps + 1, 2], the visited points, the start first
        reach: the distance from 0 to the edges of the plane
    """
    import numpy as np

    figure = new_figure(9.6, 3.9)
    plane, curve = figure.subplots(1, 2, width_ratios=(1.45, 1))
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.13, top=0.9, wspace=0.19)
    a, b = np.meshgrid(np.linspace(-reach[0], reach[0], 121), np.linspace(-reach[1], reach[1], 81))
    ground = height(a, b)
    plane.contour(a, b, ground, levels=ground.max() * np.linspace(0.05, 1, 12) ** 2, colors="#b9c3cf", linewidths=0.8)
    plane.plot(0, 0, "+", color=INK, markersize=10)
    words = []
    with np.errstate(all="ignore"):
        for index, (name, path) in enumerate(paths.items()):
            path = np.asarray(path, dtype=float)
            look = {"color": COLORS[index], "linestyle": LINE_STYLES[index], "marker": MARKERS[index]}
            plane.plot(*np.clip(np.nan_to_num(path), -1e3, 1e3).T, **look, linewidth=1.6, markersize=3.5, label=name)
            heights = height(path[:, 0], path[:, 1])
            heights = np.where(np.isfinite(heights), heights, np.inf)
            curve.plot(np.clip(heights, 1e-9, 1e9), **look, linewidth=1.8, markersize=0)
            way = "up and away" if heights[-1] > heights[0] else f"down to {heights[-1]:.2g}"
            words.append(f"{name} went from a height of {heights[0]:.3g} {way} in {len(path) - 1} steps")
    plane.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]), xlabel="a", ylabel="b")
    plane.set_title(title, loc="left", size=11, color=INK)
    plane.legend(fontsize=8.5, loc="upper right", framealpha=0.9, edgecolor="none", handlelength=2.8)
    curve.set(yscale="log", ylim=(1e-6, 1e4), xlabel="step")
    curve.set_title("height", loc="left", size=11, color=INK)
    curve.grid(axis="y", color=FAINT, linewidth=0.6)
    curve.spines[["top", "right"]].set_visible(False)
    for axis in (plane, curve):
        axis.tick_params(labelsize=8, colors=SOFT)
    return figure, f"{title + '. ' if title else ''}{'; '.join(words)}."
