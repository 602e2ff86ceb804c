"""Maps of the errors of a gradient: the difference of two arrays, and the error for every step size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, EDGE, INK, SOFT, plain_axes, two_sided

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDING = 1e-6  # smaller differences count as rounding and are drawn white, unless a map has a smaller limit
WRITTEN = 48  # the most cells of a map that have their numbers written into them
COLUMNS = 4  # maps side by side
FLOOR = 1e-18


def tiles(array: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """Lay out an array of any shape in two dimensions; return (array, (rows, columns) of one tile).

    A vector becomes a row. With three axes, the matrices of the last two are side by side; with four, they form a table
    of matrices.
    """
    if array.ndim <= 2:
        flat = array.reshape(1, -1) if array.ndim < 2 else array
        return flat, flat.shape
    rows, columns = array.shape[-2:]
    stacked = array.reshape(-1, array.shape[-3], rows, columns)
    return stacked.transpose(0, 2, 1, 3).reshape(stacked.shape[0] * rows, -1), (rows, columns)


def draw_map(
    axis: Axes,
    array: np.ndarray,
    *,
    limit: float | None = None,
    wrong: np.ndarray | None = None,
    zero: float = ROUNDING,
) -> None:
    """Draw an array as coloured cells, blue above 0 and orange below, with numbers in them if there is room.

    Args:
        limit: the value that has the full colour; by default the largest, but at least ROUNDING.
        wrong: booleans of the array's shape; these cells get a cross if there is no room for numbers.
        zero: smaller values are written as 0.
    """
    picture, (rows, columns) = tiles(array)
    limit = (
        max(float(np.nanmax(np.abs(picture[np.isfinite(picture)]), initial=0.0)), ROUNDING) if limit is None else limit
    )
    axis.set_facecolor("#eeeeee")  # where there is no number
    axis.imshow(np.ma.masked_invalid(picture), cmap=two_sided(), vmin=-limit, vmax=limit, aspect="auto")
    for edge in range(rows, picture.shape[0], rows):
        axis.axhline(edge - 0.5, color="white", linewidth=3)
    for edge in range(columns, picture.shape[1], columns):
        axis.axvline(edge - 0.5, color="white", linewidth=3)
    if picture.size <= WRITTEN:
        size = 8 if picture.shape[1] <= 6 else 6.5
        for (row, column), value in np.ndenumerate(picture):
            axis.text(
                column,
                row,
                short(value, zero),
                ha="center",
                va="center",
                size=size,
                color=INK,
            )
    if wrong is not None and picture.size > WRITTEN:
        at = np.argwhere(tiles(wrong)[0])
        axis.plot(at[:, 1], at[:, 0], "x", color=INK, markersize=5, markeredgewidth=1.4)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_color(EDGE)


def short(value: float, zero: float = ROUNDING) -> str:
    """Write a number in short form: two digits, and a bare 0 for values below `zero`."""
    if not np.isfinite(value):
        return str(value)
    if abs(value) < zero or value == 0:
        return "0"
    text = f"{value:.2f}" if 0.005 <= abs(value) < 100 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def draw_check(
    names: Sequence[str],
    analytic: Sequence[np.ndarray],
    numeric: Sequence[np.ndarray],
    wrong: Sequence[np.ndarray],
    *,
    steps: np.ndarray | None = None,
    errors: np.ndarray | None = None,
    where: str = "",
) -> tuple[Figure, str]:
    """Draw for each input the map of analytic - numeric, and the error against the step size at one element.

    Args:
        names, analytic, numeric, wrong: for each input a name, two arrays, and booleans; numeric is nan if an element
            was not compared individually.
        steps, errors, where: |central difference - analytic| for each step size, at the element `where`.

    Returns:
        The figure, and its description in words.
    """
    count = len(names) + (steps is not None)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(min(4.0 * columns, 10.0), 2.75 * rows)
    figure.set_layout_engine("constrained", wspace=0.04, hspace=0.06)
    figure.suptitle("backward \N{MINUS SIGN} measured", x=0.005, ha="left", size=9, color=SOFT)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    words = ["Maps of analytic minus numeric, one for each input."]
    for axis, name, own, seen, off in zip(axes, names, analytic, numeric, wrong, strict=False):
        words.append(_draw_input(axis, name, np.asarray(own), np.asarray(seen), np.asarray(off)))
    if steps is not None:
        words.append(_draw_steps(axes[len(names)], steps, errors, where, any(map(np.any, wrong))))
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, " ".join(words)


def _draw_input(axis: Axes, name: str, own: np.ndarray, seen: np.ndarray, wrong: np.ndarray) -> str:
    with np.errstate(invalid="ignore"):
        error = own - seen
    draw_map(axis, error, wrong=wrong)
    compared = np.isfinite(error)
    largest = float(np.abs(error[compared]).max(initial=0.0))
    shape = " \N{MULTIPLICATION SIGN} ".join(map(str, own.shape)) or "one number"
    axis.set_title(f"{name} ({shape})", loc="left", size=10, color=INK)
    if wrong.any():
        verdict = f"{wrong.sum():,} of {own.size:,} wrong, by up to {largest:.2g}"
    elif not compared.all():
        verdict = f"compared in sums; {compared.sum()} compared alone"
    else:
        verdict = f"only rounding: {largest:.0e} at most"
    axis.set_xlabel(verdict, size=9, color=INK, labelpad=6)
    place = ""
    if wrong.any():
        first = [tuple(map(int, index)) for index in np.argwhere(wrong)[:6]]
        place = " at " + ", ".join(str(index[0]) if len(index) == 1 else str(index) for index in first if index)
        place = place + (" and others" if wrong.sum() > 6 else "") if place != " at " else ""
    return f"{name}, {shape.replace(chr(215), 'by')}: {verdict}{place}."


def _draw_steps(axis: Axes, steps: np.ndarray, errors: np.ndarray, where: str, is_wrong: bool) -> str:
    finite = np.isfinite(errors)
    axis.loglog(steps[finite], np.maximum(errors[finite], FLOOR), "o-", color=COLORS[0], markersize=3.5, linewidth=1.6)
    axis.set_title(where, loc="left", size=10, color=INK)
    if is_wrong:
        axis.text(
            0.5,
            0.5,
            "flat at the bottom:\nthe gradient is off",
            transform=axis.transAxes,
            size=9,
            color=SOFT,
            ha="center",
            va="center",
        )
    axis.set_xlabel("step", size=9, color=INK, labelpad=1)
    axis.set_ylabel("|measured \N{MINUS SIGN} backward|", size=8, color=SOFT)
    plain_axes(axis, 7)
    axis.minorticks_off()
    if not finite.any():
        return f"At {where} no step gives a number."
    least = float(errors[finite].min())
    axis.set_ylim(min(1e-13, max(least, FLOOR) / 3), max(1.0, 10 * float(errors[finite].max())))
    best = float(steps[finite][errors[finite].argmin()])
    return (
        f"At {where} the measured slope comes closest to backward's with a step of {best:.0e}: {least:.0e} apart. "
        + (
            "No step makes them agree: the curve is flat at the bottom, so the gradient is off."
            if is_wrong
            else "The rest is measurement error."
        )
    )
