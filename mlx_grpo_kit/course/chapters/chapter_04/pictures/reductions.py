"""A sum over an axis: an array, the direction in which the sum walks, and the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from mlx_grpo_kit.course.chapters.chapter_04.pictures import cells
from mlx_grpo_kit.course.chapters.chapter_04.pictures.cells import (
    CELL,
    MARGIN,
    CellPicture,
    Drawing,
    Index,
    Look,
    Shape,
)
from mlx_grpo_kit.viz.graphs.nodes import short

Axis = int | tuple[int, ...] | None
ARROW = 16.0  # its length
MOST_TERMS = 8


def draw_sum(x: Any, axis: Axis = None, keepdims: bool = False, *, name: str = "x") -> CellPicture:
    """Draw `x.sum(axis, keepdims)`: the numbers that are added up, and the result.

    Args:
        x: a shape of up to three axes, filled with 1, 2, 3 ..., or an array. Neighbouring sums differ in their tone;
            the numbers of the first one have a ring.

    If x has no such axis, the picture says so. Raises ValueError for an array that is too large to draw.
    """
    shape = tuple(x) if isinstance(x, tuple | list) else tuple(x.shape)
    if not shape or not cells.can_be_drawn(shape):
        raise ValueError(f"draw_sum of shape {shape}: expected one to three axes and few enough cells to look at.")
    places = list(itertools.product(*map(range, shape)))
    made_up = isinstance(x, tuple | list)
    numbers = {place: float(nth if made_up else x[place]) for nth, place in enumerate(places, 1)}
    count = len(shape)
    asked = range(count) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    call = f"{name}.sum({_arguments(axis, keepdims)})"
    strange = [each for each in asked if not -count <= each < count]
    if strange:
        there = {1: "axis 0", 2: "axes 0 and 1", 3: "axes 0 to 2"}[count]
        words = [
            f"{call}: axis {strange[0]} is out of bounds for an array of {count} dimensions.",
            f"{shape} has {there}, or counted from the end {('-1', '-1 and -2', '-1 to -3')[count - 1]}.",
        ]
        drawing = Drawing()
        drawing.text(
            MARGIN, 30, f"{name} of shape {shape} has no axis {strange[0]}", size=15, anchor="start", soft=True
        )
        return CellPicture(drawing.svg(" ".join(words)), " ".join(words), words)

    gone = sorted(each % count for each in asked)
    left = tuple(1 if i in gone else size for i, size in enumerate(shape) if keepdims or i not in gone)
    drawing = Drawing()
    _draw(drawing, shape, left, gone, keepdims, numbers, name, call)
    words = _words(shape, left, gone, keepdims, numbers, name, call)
    alt = " ".join(words).replace("`", "")
    return CellPicture(drawing.svg(alt), alt, words)


def _goes_to(place: Index, gone: Sequence[int], keepdims: bool) -> Index:
    return tuple(0 if axis in gone else at for axis, at in enumerate(place) if keepdims or axis not in gone)


def _draw(
    drawing: Drawing,
    shape: Shape,
    left: Shape,
    gone: Sequence[int],
    keepdims: bool,
    numbers: dict[Index, float],
    name: str,
    call: str,
) -> None:
    totals: dict[Index, float] = {}
    for place, number in numbers.items():
        to = _goes_to(place, gone, keepdims)
        totals[to] = totals.get(to, 0.0) + number
    first = next(iter(totals))

    def look_at(to: Index) -> Look:
        return Look("s" if sum(to) % 2 else "a", ring=to == first)

    x, y = MARGIN, MARGIN + 14
    drawing.text(x, y, name, size=14, anchor="start", bold=True)
    drawing.text(x, y + 18, f"{shape}", size=12, anchor="start", soft=True)
    drawing.grid(
        x,
        y + 28,
        shape,
        lambda place: short(numbers[place]),
        lambda place: look_at(_goes_to(place, gone, keepdims)),
        name=name,
    )
    width, height = cells.grid_size(shape)
    room = _arrows(drawing, x, y + 28, shape, gone)
    middle = y + 28 + 18 + min(height - 18, 3 * CELL) / 2 + 6
    x += max(width + room, len(str(shape)) * 8) + 34
    drawing.text(x - 17, middle, "=", size=20)
    drawing.text(x, y, call, size=14, anchor="start", bold=True)
    drawing.text(x, y + 18, f"{left}", size=12, anchor="start", soft=True)
    drawing.grid(x, y + 28, left, lambda to: short(totals[to]), look_at, name="sum")


def _arrows(drawing: Drawing, x: float, y: float, shape: Shape, gone: Sequence[int]) -> float:
    """Arrows beside the cells that show how the sum walks. Returns the width they need on the right."""
    _, height = cells.grid_size(shape)
    side, top = {1: 0.0, 2: 24.0, 3: 52.0}[len(shape)], 18.0
    columns, rows, sheets = (1, 1, 1, *shape)[:-4:-1]
    last = len(shape) - 1
    if last in gone:
        for sheet, row in itertools.product(range(sheets), range(rows)):
            at = y + top + sheet * (rows * CELL + cells.SHEET_GAP) + (row + 0.5) * CELL
            drawing.arrow(x + side + columns * CELL + 5, at, x + side + columns * CELL + 5 + ARROW, at)
    if last - 1 in gone and last >= 1:
        for column in range(columns):
            at = x + side + (column + 0.5) * CELL
            drawing.arrow(at, y + height + 5, at, y + height + 5 + ARROW)
    elif last == 2 and 0 in gone:
        at = x + side + columns * CELL / 2
        drawing.arrow(at, y + height + 5, at, y + height + 5 + ARROW)
        drawing.text(at + 10, y + height + 18, "from sheet to sheet", size=11, anchor="start", soft=True)
    return ARROW + 10 if last in gone else 0.0


def _words(
    shape: Shape, left: Shape, gone: Sequence[int], keepdims: bool, numbers: dict[Index, float], name: str, call: str
) -> list[str]:
    first = _goes_to((0,) * len(shape), gone, keepdims)
    terms = [number for place, number in numbers.items() if _goes_to(place, gone, keepdims) == first]
    shown = " + ".join(map(short, terms[:MOST_TERMS])) + (" + ..." if len(terms) > MOST_TERMS else "")
    many = len(gone) > 1
    axes = f"{'axes' if many else 'axis'} {' and '.join(map(str, gone))}"
    fate = f"{'keep' if many else 'keeps'} the length 1" if keepdims else f"{'are' if many else 'is'} gone"
    sums = f"1 sum of {len(terms)} numbers" if math.prod(left) == 1 else f"{math.prod(left)} sums of {len(terms)} each"
    return [
        f"`{call}` walks along {axes}: {shape} becomes {left}, because {axes} {fate}.",
        f"The ring: {shown} = {short(sum(terms))}. {sums}.",
    ]


def _arguments(axis: Axis, keepdims: bool) -> str:
    parts = [f"axis={axis}"] if axis is not None else []
    return ", ".join(parts + ["keepdims=True"] * keepdims)
