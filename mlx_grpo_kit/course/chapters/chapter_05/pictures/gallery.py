"""Functions of one number above, their slopes below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, EDGE, INK, ORANGE, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float], Sequence[float]]
FAR = 8  # a slope that goes to infinity changes fast too, but not as suddenly


def draw_gallery(curves: Mapping[str, Curve], *, steepest: float = 4.0, same_scale: bool = False) -> tuple[Figure, str]:
    """(figure, words): for each name a column with the function above and its slope below.

    Args:
        curves: name -> (x, y, slope), three sequences of the same length, with x rising
        steepest: slopes beyond +-`steepest` are cut off
        same_scale: draw all slopes on one scale, so that you can compare them

    The line breaks where the slope jumps, and a single value between two jumps is drawn as a dot.
    """
    width, height = 1.72 * len(curves) + 0.5, 3.7
    figure = new_figure(width, height)
    axes = figure.subplots(2, len(curves), squeeze=False, sharex="col")
    figure.subplots_adjust(left=0.55 / width, right=1 - 0.12 / width, bottom=0.1, top=0.91, wspace=0.34, hspace=0.12)
    slopes = np.concatenate([np.asarray(slope, dtype=float) for _, _, slope in curves.values()])
    words = []
    for column, (name, curve) in enumerate(curves.items()):
        x, y, slope = (np.asarray(part, dtype=float) for part in curve)
        above, below = axes[:, column]
        above.plot(x, y, color=COLORS[0], linewidth=2)
        line, alone = broken_at_jumps(x, slope)
        below.plot(*line, "--", color=ORANGE, linewidth=1.8)
        below.plot(*alone, "o", color=ORANGE, markersize=5)
        below.set_ylim(*_room(slopes if same_scale else slope, steepest))
        above.set_title(name, size=11, color=INK, loc="left")
        for axis in (above, below):
            axis.axhline(0, color=EDGE, linewidth=0.8, zorder=0)
            plain_axes(axis)
        known = slope[np.isfinite(slope)]
        steep = " and beyond" if len(known) < len(slope) or np.abs(slope).max() > steepest else ""
        words.append(
            f"{name}, x from {x[0]:g} to {x[-1]:g}: slopes from {known.min() + 0:.2f} to "
            f"{known.max():.2f}{steep}{', with a jump' if jumps_of(slope).any() else ''}."
        )
    axes[0, 0].set_ylabel("function", size=9, color=INK)
    axes[1, 0].set_ylabel("slope", size=9, color=INK)
    return figure, "Functions and their slopes. " + " ".join(words)


def _room(slope: np.ndarray, steepest: float) -> tuple[float, float]:
    """Axis limits that contain 0 and every slope that is not too steep."""
    shown = slope[np.abs(slope) <= steepest]
    low, high = float(shown.min(initial=0.0)), float(shown.max(initial=0.0))
    room = 0.08 * max(high - low, 0.1)
    return low - room, high + room


def broken_at_jumps(x: np.ndarray, slope: np.ndarray) -> tuple[tuple, tuple]:
    """((x, slope) with a nan wherever the slope jumps, (x, slope) of the points that have a jump on either side)."""
    jumps = jumps_of(slope)
    alone = np.concatenate([[False], jumps]) & np.concatenate([jumps, [False]])
    places = np.flatnonzero(jumps) + 1
    line = np.insert(x, places, np.nan), np.insert(np.where(alone, np.nan, slope), places, np.nan)
    return line, (x[alone], slope[alone])


def jumps_of(slope: np.ndarray) -> np.ndarray:
    """Mark each pair of neighbours between which the slope jumps: it changes far more than two pairs away."""
    with np.errstate(invalid="ignore"):
        steps = np.abs(np.diff(slope))
    beside = np.pad(steps, 2, mode="edge")
    return np.isfinite(steps) & (steps > 1e-6) & (steps > FAR * beside[:-4]) & (steps > FAR * beside[4:])
