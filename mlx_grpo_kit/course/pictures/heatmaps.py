"""Matrices with their numbers written in them, and operations with their gradients flowing back to the inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import EDGE, FAINT, INK, NEGATIVE, POSITIVE, ZERO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL_WIDTH, CELL_HEIGHT = 0.54, 0.34  # inches, as is everything below
MARGIN, GAP, ARROW, HEADING = 0.2, 0.45, 1.25, 0.3
ROWS, INPUTS = 5, 2  # that a picture of a gradient has room for at least: one operation's is as high as another's
PLAIN, UNKNOWN = "#f3f3f3", "#d0d0d0"
ROUNDING = 1e-12  # smaller numbers are what rounding leaves of a 0
MINUS = "\N{MINUS SIGN}"


def cell_text(value: float) -> str:
    """The text of a number in a cell: at most two decimal places, "≈0" for what would round to 0."""
    if value != value:
        return "nan"
    if abs(value) == float("inf"):
        return f"{MINUS if value < 0 else ''}inf"
    if abs(value) < ROUNDING:
        return "0"
    if abs(value) < 0.005:
        return "\N{ALMOST EQUAL TO}0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", MINUS)


def draw_gradient_heatmap(
    name: str, inputs: Mapping[str, Any], out: Any, g: Any, grads: Mapping[str, Any]
) -> tuple[Figure, str]:
    """(figure, words): above, inputs and result of an operation; below, the gradient of the result and of each input.

    Args:
        name: the operation as it is written: "softmax(x)"
        inputs: by name, arrays [R, C], [C] or []
        out, g: the result, and the gradient that backward starts with, of its shape. The elements where g is not 0 are
            framed.
        grads: the gradient of each input, by the same names

    Blue is positive, orange negative, white is 0; each gradient has its own scale.
    """
    inputs = {key: table(array) for key, array in inputs.items()}
    grads = {key: _clean(table(grads[key])) for key in inputs}
    out, g = table(out), _clean(table(g))
    start = _start_in_words(g)
    words = [_listeners(key, grad) for key, grad in grads.items()]

    columns = [array.shape[1] * CELL_WIDTH for array in inputs.values()]
    lefts = [MARGIN + sum(columns[:i]) + i * GAP for i in range(len(columns))]
    out_left = lefts[-1] + columns[-1] + ARROW
    block = max(ROWS, *(array.shape[0] for array in (*inputs.values(), out))) * CELL_HEIGHT
    width = max(out_left + out.shape[1] * CELL_WIDTH + MARGIN, 6.6)
    notes = 0.25 * (max(INPUTS, len(words)) + 1)
    height = 2 * (block + HEADING) + 0.35 + notes + 0.55
    page = _page(width, height)
    page.text(MARGIN, height - 0.2, f"out = {name}", size=12, weight="bold", color=INK, va="center")

    top = height - 0.42 - HEADING
    bottom = top - block - 0.3 - HEADING
    for left, (key, array) in zip(lefts, inputs.items(), strict=True):
        _draw_table(page, left, top, array, title=key)
        _draw_table(page, left, bottom, grads[key], title=f"gradient of {key}", colored=True)
    _draw_table(page, out_left, top, out, title="out", framed=g != 0)
    _draw_table(page, out_left, bottom, g, title="g", framed=g != 0, colored=True)
    # The arrows are level with the first rows, because tables may have different numbers of rows.
    level = CELL_HEIGHT * min(array.shape[0] for array in (*inputs.values(), out)) / 2
    for y, label, ends in (
        (top - level, "forward", (0.12, ARROW - 0.12)),
        (bottom - level, "backward", (ARROW - 0.12, 0.12)),
    ):
        page.annotate(
            "",
            (out_left - ARROW + ends[1], y),
            (out_left - ARROW + ends[0], y),
            arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.4},
        )
        page.text(out_left - ARROW / 2, y + 0.1, label, size=9, color=INK, ha="center", va="bottom")
    for line, text in enumerate([f"Starting with {start}:", *words]):
        page.text(MARGIN, notes - 0.1 - 0.25 * line, text, size=10, color=INK, va="center")

    values = [f" = {cell_text(out[i, j])}" for i, j in np.argwhere(g != 0)]
    return figure_of(page), (
        f"Heatmaps of {name}. Starting with {start}{values[0] if len(values) == 1 else ''}: {' '.join(words)}"
    )


def draw_matrices(
    matrices: Mapping[str, Any],
    *,
    colored: Collection[str] = (),
    framed: Mapping[str, Any] | None = None,
    title: str = "",
) -> tuple[Figure, str]:
    """(figure, words): matrices [R, C] side by side under their names.

    Those in `colored` are blue above 0 and orange below; `framed` has, by name, an array of booleans of the matrix's
    shape: these elements get a frame.
    """
    arrays = {key: table(array) for key, array in matrices.items()}
    # A heading may be wider than its matrix.
    widths = {key: max(array.shape[1] * CELL_WIDTH, 0.085 * len(key)) for key, array in arrays.items()}
    header = HEADING + (0.35 if title else 0.05)
    height = header + max(array.shape[0] for array in arrays.values()) * CELL_HEIGHT + MARGIN
    page = _page(sum(widths.values()) + GAP * (len(arrays) - 1) + 2 * MARGIN, height)
    page.text(MARGIN, height - 0.2, title, size=12, weight="bold", color=INK, va="center")
    left = MARGIN
    words = [title] if title else []
    for key, array in arrays.items():
        _draw_table(
            page, left, height - header, array, title=key, colored=key in colored, framed=(framed or {}).get(key)
        )
        left += widths[key] + GAP
        words.append(f"{key}: " + "; ".join(", ".join(map(cell_text, row)) for row in array))
    return figure_of(page), ". ".join(words) + "."


def table(array: Any) -> np.ndarray:
    """The array as rows and columns: a vector is a row, a number a table of one cell."""
    return np.atleast_2d(np.asarray(array, dtype=float))


def figure_of(page: Axes) -> Figure:
    return page.figure


def _clean(array: np.ndarray) -> np.ndarray:
    return np.where(np.abs(array) < ROUNDING, 0.0, array)


def _page(width: float, height: float) -> Axes:
    """An axes without axes over a whole figure, measured in inches from its lower left corner."""
    page = new_figure(width, height).add_axes((0, 0, 1, 1))
    page.set(xlim=(0, width), ylim=(0, height))
    page.set_axis_off()
    return page


def _draw_table(
    page: Axes,
    left: float,
    top: float,
    array: np.ndarray,
    *,
    title: str,
    colored: bool = False,
    framed: np.ndarray | None = None,
) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    tones = LinearSegmentedColormap.from_list("signs", [NEGATIVE, ZERO, POSITIVE], N=257)
    finite = np.abs(array[np.isfinite(array)])
    scale = max(float(finite.max(initial=0.0)), 1e-300)
    page.text(left, top + 0.06, title, size=10, color=INK, va="bottom")
    for (i, j), value in np.ndenumerate(array):
        x, y = left + j * CELL_WIDTH, top - (i + 1) * CELL_HEIGHT
        color = PLAIN if not colored else tones(0.5 + 0.5 * value / scale) if np.isfinite(value) else UNKNOWN
        page.add_patch(Rectangle((x, y), CELL_WIDTH, CELL_HEIGHT, facecolor=color, edgecolor=FAINT, linewidth=0.8))
        faint = colored and value == 0
        page.text(
            x + CELL_WIDTH / 2,
            y + CELL_HEIGHT / 2,
            cell_text(value),
            size=9,
            ha="center",
            va="center",
            color=EDGE if faint else "#1a1a1a",
        )
    framed = np.zeros(array.shape, bool) if framed is None else np.asarray(framed)
    frames = [(0, 0, *array.shape)] if framed.all() else [(i, j, 1, 1) for i, j in np.argwhere(framed)]
    for i, j, rows, columns in frames:
        page.add_patch(
            Rectangle(
                (left + j * CELL_WIDTH, top - (i + rows) * CELL_HEIGHT),
                columns * CELL_WIDTH,
                rows * CELL_HEIGHT,
                fill=False,
                edgecolor=INK,
                linewidth=2.2,
                zorder=3,
            )
        )


def _start_in_words(g: np.ndarray) -> str:
    [*places] = np.argwhere(g != 0)
    if len(places) == 1 and g[tuple(places[0])] == 1:
        return f"out[{places[0][0]}, {places[0][1]}]"
    if (g == 1).all():
        return "the sum of all of out"
    return f"{len(places)} elements of out"


def _listeners(name: str, grad: np.ndarray) -> str:
    """The elements of an input that have a gradient, and the sum of those gradients."""
    places = np.argwhere(grad != 0)
    if not len(places):
        return f"no number of {name} gets a gradient."
    total = cell_text(grad.sum())
    if len(places) == 1:
        i, j = places[0]
        return f"only {name}[{i}, {j}] gets a gradient, {total}."
    if len(places) == grad.size:
        return f"all {grad.size} numbers of {name} get a gradient; they sum to {total}."
    rows, columns = (sorted(set(used.tolist())) for used in places.T)
    kind, lines = ("row", rows) if len(rows) / len(grad) <= len(columns) / grad.shape[1] else ("column", columns)
    is_everywhere = len(rows) == len(grad) and len(columns) == grad.shape[1]
    where = "" if is_everywhere else f", all in {kind}{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
    return f"{len(places)} of the {grad.size} numbers of {name} get a gradient{where}; they sum to {total}."
