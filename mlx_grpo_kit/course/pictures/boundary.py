"""The boundary that a classifier has learned: its score in the plane as a colour, and the line where it is 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import BLUE, COLORS, INK, ORANGE, SOFT, plain_axes

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

Point = Sequence[float]
MARGIN = 0.5
FINER = 3  # how much finer the plane is looked at near the line, so that its kinks can be seen


def draw_boundary(
    score: Callable[[Point], float] | None,
    inputs: Sequence[Point],
    labels: Sequence[float],
    *,
    losses: Sequence[float] = (),
    title: str = "",
    cells: int = 24,
) -> tuple[Figure, str]:
    """(figure, words): the points, the score of the plane behind them, and the line where it is 0.

    Args:
        score: point (x, y) -> a number, positive where the classifier says label 1; None draws the points alone. It is
            asked cells * cells times, and about as often again near the line.
        inputs: points; `labels` -1 or 1, one for each
        losses: the history of the loss, drawn beside the plane if there is one
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    points, sides = np.asarray(inputs, dtype=float), np.asarray(labels) > 0
    width = 9.6 if len(losses) else 5.6
    figure = new_figure(width, 4.0)
    axes = figure.subplots(1, 2, width_ratios=(3, 2)) if len(losses) else [figure.subplots()]
    figure.subplots_adjust(left=0.5 / width, right=0.985, bottom=0.11, top=0.91, wspace=0.16)
    plane = axes[0]
    (left, bottom), (right, top) = points.min(axis=0) - MARGIN, points.max(axis=0) + MARGIN
    words = [f"{len(points)} points, {int(sides.sum())} of them of class 1."]
    if score is not None:
        xs, ys = np.linspace(left, right, cells), np.linspace(bottom, top, cells)
        grid = np.array([[score((float(x), float(y))) for x in xs] for y in ys])
        far = max(float(np.abs(grid).max()), 1e-6)
        tones = LinearSegmentedColormap.from_list("sides", ["#fbc88a", "#ffffff", "#a9c7fd"])
        plane.contourf(xs, ys, np.clip(grid, -1.5, 1.5), levels=np.linspace(-1.5, 1.5, 13), cmap=tones)
        if grid.min() < 0 < grid.max():
            plane.contour(*_near_the_line(score, xs, ys, grid), levels=[0.0], colors=INK, linewidths=2)
        right_side = np.array([score(tuple(map(float, point))) > 0 for point in points]) == sides
        words.append(
            f"The line where the score is 0 has {int(right_side.sum())} of them on their own side; scores "
            f"reach {far:.2g}."
        )
    for side, color, marker, name in (
        (True, BLUE, "o", "label 1"),
        (False, ORANGE, "s", "label \N{MINUS SIGN}1"),
    ):
        plane.plot(
            *points[sides == side].T,
            marker,
            color=color,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=name,
        )
    plane.set(xlim=(left, right), ylim=(bottom, top))
    plane.set_title(title, loc="left", size=11, color=INK)
    plane.legend(fontsize=8, loc="upper right", framealpha=0.8, edgecolor="none")
    plane.tick_params(labelsize=8, colors=SOFT)
    if len(losses):
        curve = axes[1]
        curve.plot(range(1, len(losses) + 1), losses, color=COLORS[0], linewidth=2)
        curve.set(xlabel="step", ylim=(0, max(*losses, 1e-6) * 1.05))
        curve.set_title(f"loss: {losses[-1]:.3f}", loc="left", size=11, color=INK)
        plain_axes(curve)
        words.append(f"The loss went from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps.")
    return figure, " ".join([f"{title}." if title else "", *words]).strip()


def _near_the_line(
    score: Callable[[Point], float], xs: np.ndarray, ys: np.ndarray, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(xs, ys, grid), FINER times as fine: asked again where the sign changes, interpolated where it does not."""
    import numpy as np

    fine_xs, fine_ys = (np.linspace(each[0], each[-1], FINER * (len(each) - 1) + 1) for each in (xs, ys))
    rows = np.array([np.interp(fine_xs, xs, row) for row in grid])
    fine = np.array([np.interp(fine_ys, ys, column) for column in rows.T]).T
    positive = grid > 0
    corners = np.stack([positive[:-1, :-1], positive[1:, :-1], positive[:-1, 1:], positive[1:, 1:]])
    again = np.zeros(fine.shape, dtype=bool)
    for row, column in np.argwhere(corners.any(axis=0) & ~corners.all(axis=0)) * FINER:
        again[row : row + FINER + 1, column : column + FINER + 1] = True
    for row, column in np.argwhere(again):
        fine[row, column] = score((float(fine_xs[column]), float(fine_ys[row])))
    return fine_xs, fine_ys, fine
