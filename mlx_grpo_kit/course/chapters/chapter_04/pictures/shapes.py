"""Broadcasting made visible: two shapes aligned on the right, every copy, and the sums of the gradients."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_grpo_kit.course.chapters.chapter_04.pictures import cells
from mlx_grpo_kit.course.chapters.chapter_04.pictures.cells import (
    CHARACTER,
    MARGIN,
    CellPicture,
    Drawing,
    Index,
    Look,
    Shape,
    can_be_drawn,
)
from mlx_grpo_kit.viz.graphs.nodes import MINUS, TIMES, short
from mlx_grpo_kit.viz.panel import Panel

# The picture has room for this many axes, and the words for this many terms of a sum.
MOST_AXES, MOST_TERMS = 6, 8
NAMES_WIDTH, AXIS_WIDTH, ROW_HEIGHT = 150.0, 84.0, 32.0
BETWEEN = 34.0  # the gap between two grids, for the sign
SIGNS = {"+": "+", "-": MINUS, "*": TIMES}

EXAMPLES = (
    ("a column and a row", (3, 1), (4,)),
    ("a layer and its bias", (4, 3), (3,)),
    ("a number and a matrix", (), (2, 3)),
    ("one long axis, one short shape", (5,), (4, 5)),
    ("a matrix and the sums of its rows", (3, 4), (3,)),
    ("the same, with keepdims", (3, 4), (3, 1)),
    ("three axes", (2, 1, 4), (3, 1)),
    ("predictions and targets", (4, 1), (4,)),
)


@dataclass(frozen=True)
class Alignment:
    """Two shapes aligned on the right. `a` and `b` have None where a shape has no such axis.

    Attributes:
        result: the shape of the broadcast, or None if the shapes do not fit
        clash: the axis at which they do not fit, or None if they fit. If there are several, it is the rightmost one,
            which torch names too.
    """

    a: tuple[int | None, ...]
    b: tuple[int | None, ...]
    result: Shape | None
    clash: int | None = None


def align(a: Sequence[int], b: Sequence[int]) -> Alignment:
    """Align two shapes on the right: equal lengths fit, and a 1 or a missing axis fits anything."""
    count = max(len(a), len(b))
    rows = [(*[None] * (count - len(shape)), *shape) for shape in (a, b)]
    result, clash = [], None
    for axis, sizes in enumerate(zip(*rows, strict=True)):
        lengths = {size for size in sizes if size not in (None, 1)}
        if len(lengths) > 1:
            clash = axis
        result.append(lengths.pop() if lengths else 1)
    return Alignment(*rows, tuple(result) if clash is None else None, clash)


def parse_shape(text: str) -> Shape:
    """ "(3, 4)", "3 4", "3x4" -> (3, 4); "()" -> (). Raises ValueError for anything that is not a shape."""
    inner = text.strip().strip("()[]").strip().removesuffix(",").strip()
    parts = re.split(r"\s*[,x\N{MULTIPLICATION SIGN}]\s*|\s+", inner) if inner else []
    if not text.strip():
        raise ValueError("is empty. Type a shape, such as (4, 1); a single number has the shape ().")
    for part in parts:
        if not part:
            raise ValueError("lacks a length between two separators. A shape looks like (4, 1), or 4 1.")
        if not re.fullmatch(r"\d{1,9}", part, flags=re.ASCII):
            is_number = re.fullmatch(r"[-+]?\d*\.?\d+", part, flags=re.ASCII)
            why = "a length: a whole number, 0 or more and not too large" if is_number else "a number"
            raise ValueError(f"is not a shape: {part!r} is not {why}. A shape looks like (4, 1), or 4 1.")
    if len(parts) > MOST_AXES:
        raise ValueError(f"has {len(parts)} axes; the picture has room for {MOST_AXES}.")
    return tuple(map(int, parts))


def summed_axes(shape: Sequence[int], result: Sequence[int]) -> tuple[list[int], list[int]]:
    """The axes over which the gradient of an input of `shape` is summed: (new axes, stretched axes) of `result`."""
    new = len(result) - len(shape)
    return list(range(new)), [axis for axis in range(new, len(result)) if shape[axis - new] == 1 != result[axis]]


def source_of(index: Index, shape: Sequence[int]) -> Index:
    """The index, in an input of `shape`, of the number used at `index` of the result."""
    return tuple(0 if size == 1 else place for place, size in zip(index[len(index) - len(shape) :], shape, strict=True))


def draw_broadcast(
    a: Any,
    b: Any,
    *,
    names: tuple[str, str] = ("a", "b"),
    sign: str = "+",
    backward: bool = False,
    follow: str | None = None,
    element: int = 0,
) -> CellPicture:
    """Draw the broadcasting of a + b: the stretched axes, every copy, and the result.

    Args:
        a, b: arrays, or shapes, which are filled with made-up numbers
        backward: draw the backward pass instead: g, the gradient of the result, and each input's share of it
        follow: "a" or "b" (or its name): put a ring around number `element` of it, counted from 0, and all of its uses

    For shapes that do not fit, the words are those of torch's error. Arrays with more than three axes or too many cells
    are described but not drawn.
    """
    shapes = [tuple(x) if isinstance(x, tuple | list) else tuple(x.shape) for x in (a, b)]
    aligned = align(*shapes)
    drawing = Drawing()
    _draw_alignment(drawing, aligned, shapes, names)
    if aligned.result is None:
        sentences = _why_not(aligned, shapes, names)
    else:
        numbers = _numbers(a, b, shapes)
        side = {None: None, "a": 0, "b": 1, names[0]: 0, names[1]: 1}[follow]
        chosen = None
        if side is not None and math.prod(shapes[side]):
            place = min(element, math.prod(shapes[side]) - 1)
            chosen = side, list(itertools.product(*map(range, shapes[side])))[place]
        sentences = _what_happens(aligned.result, shapes, names, numbers, chosen, backward)
        if can_be_drawn(aligned.result, *[shape for shape in shapes if shape]):
            grids = _backward_grids if backward else _forward_grids
            draw_row(drawing, *grids(aligned.result, shapes, names, SIGNS[sign], numbers, chosen))
        else:
            sentences.append(
                "Not drawn cell by cell: "
                + (
                    "there are no cells."
                    if not math.prod(aligned.result)
                    else "there are more than three axes."
                    if len(aligned.result) > 3
                    else f"{math.prod(aligned.result):,} cells are too many to look at."
                )
            )
    alt = " ".join(sentences).replace("`", "")
    return CellPicture(drawing.svg(alt), alt, sentences)


def explore_shapes(a: str, b: str, view: str = "forward", follow: str = "b", element: int = 1) -> CellPicture:
    """Call `draw_broadcast` for typed shapes; describe what is wrong with any other text. `element` counts from 1."""
    shapes = []
    for name, text in (("a", a), ("b", b)):
        try:
            shapes.append(parse_shape(text))
        except ValueError as error:
            words = f"{name}{f' = {text.strip()[:40]!r}' if text.strip() else ''} {error}"
            drawing = Drawing()
            drawing.text(MARGIN, 30, f"{name} is not a shape yet", size=15, anchor="start", soft=True)
            return CellPicture(drawing.svg(words), words, [words])
    return draw_broadcast(*shapes, backward=view == "backward", follow=follow, element=element - 1)


def shape_explorer() -> Panel:
    """A panel in which you choose or type two shapes and see their broadcasting, forward and backward."""
    from ipywidgets import Dropdown, IntSlider, Layout, Text

    a, b = (Text(str(shape), continuous_update=False, layout=Layout(width="160px")) for shape in EXAMPLES[0][1:])
    options = [(f"{words}: {first} and {second}", (first, second)) for words, first, second in EXAMPLES]
    examples = Dropdown(options=options, description="example", layout=Layout(width="420px"))

    def choose(change: Any) -> None:
        a.value, b.value = map(str, change["new"])

    examples.observe(choose, names="value")
    return Panel(
        lambda example, **typed: explore_shapes(**typed),
        example=examples,
        a=a,
        b=b,
        view=Dropdown(options=["forward", "backward"], layout=Layout(width="150px")),
        follow=Dropdown(options=["a", "b"], value="b", layout=Layout(width="110px")),
        element=IntSlider(2, min=1, max=24, description="number", layout=Layout(width="280px")),
        limits=_last_number,
        height=640,
    )


def _last_number(follow: str, **typed: Any) -> dict[str, int]:
    """The number of elements of the followed array; unchanged if the text is not a shape."""
    try:
        return {"element": max(1, min(math.prod(parse_shape(typed[follow])), 999))}
    except ValueError:
        return {}


# -- words ------------------------------------------------------------------------------------------------------------


def _why_not(aligned: Alignment, shapes: Sequence[Shape], names: Sequence[str]) -> list[str]:
    axis = aligned.clash
    first, second = aligned.a[axis], aligned.b[axis]
    sentences = [
        f"Does not fit. The size of tensor {names[0]} ({first}) must match the size of tensor {names[1]} ({second}) at "
        f"non-singleton dimension {axis}.",
        f"Aligned on the right, {first} meets {second}: they differ, and neither is 1.",
    ]
    for side, other in ((0, 1), (1, 0)):
        with_one = (*shapes[side], 1)
        if len(with_one) <= len(shapes[other]) and align(with_one, shapes[other]).result is not None:
            sentences.append(
                f"{names[side]} as {with_one} would fit: `{names[side]}[..., None]`, or keepdims=True in "
                "the sum it came from."
            )
            break
    return sentences


def _what_happens(
    result: Shape,
    shapes: Sequence[Shape],
    names: Sequence[str],
    numbers: Sequence[dict[Index, float]],
    chosen: tuple[int, Index] | None,
    backward: bool,
) -> list[str]:
    sentences = [f"Fits: {shapes[0]} and {shapes[1]} give {result}."]
    for name, shape in zip(names, shapes, strict=True):
        new, stretched = summed_axes(shape, result)
        what = []
        if new:
            what.append(f"{_axes(new)} {'is' if len(new) == 1 else 'are'} new")
        if stretched:
            lengths = " and ".join(str(result[axis]) for axis in stretched)
            what.append(f"{_axes(stretched)} {'is' if len(stretched) == 1 else 'are'} stretched from 1 to {lengths}")
        if not backward:
            what.append(f"{'so ' if what else ''}every number is used {_times(_count_uses(shape, result))}")
        elif what:
            what.append(f"so its gradient is g summed over {_axes(new + stretched)}, `{_sum_code(shape, result)}`")
        else:
            what.append("every number is used once, so its gradient is `g`, unchanged")
        sentences.append(f"{name}: {', '.join(what)}.")
    if chosen is not None and math.prod(result):
        sentences.append(_worked_number(result, shapes, names, numbers, chosen, backward))
    return sentences


def _worked_number(
    result: Shape,
    shapes: Sequence[Shape],
    names: Sequence[str],
    numbers: Sequence[dict[Index, float]],
    chosen: tuple[int, Index],
    backward: bool,
) -> str:
    side, index = chosen
    uses = _count_uses(shapes[side], result)
    number = short(numbers[side][index]) if numbers[side] else f"number at {list(index)}"
    what = f"The {number} in {names[side]} is used {_times(uses)}"
    if not backward:
        return f"{what}; each use is in a ring."
    if uses == 1:
        return f"{what}: its gradient is one number of g."
    sum_of = f"{what}: its gradient is the sum of {uses} numbers of g"
    if not numbers[side]:
        return f"{sum_of}."
    terms = [value for place, value in _gradient(result).items() if source_of(place, shapes[side]) == index]
    shown = " + ".join(map(str, terms[:MOST_TERMS])) + (" + ..." if len(terms) > MOST_TERMS else "")
    return f"{sum_of}, {shown} = {sum(terms)}."


def _count_uses(shape: Shape, result: Shape) -> int:
    new, stretched = summed_axes(shape, result)
    return math.prod(result[axis] for axis in new + stretched)


def _times(uses: int) -> str:
    return {1: "once", 2: "twice"}.get(uses, f"{uses:,} times")


def _axes(axes: Sequence[int]) -> str:
    *others, last = map(str, axes)
    return f"axes {', '.join(others)} and {last}" if others else f"axis {last}"


def _sum_code(shape: Shape, result: Shape) -> str:
    new, stretched = summed_axes(shape, result)
    axes = new + stretched
    over = str(axes[0]) if len(axes) == 1 else str(tuple(axes))
    if new and stretched:
        return f"g.sum(axis={over}).reshape{shape}"
    return f"g.sum(axis={over}{', keepdims=True' if stretched else ''})" if axes else "g"


# -- numbers ----------------------------------------------------------------------------------------------------------


def _numbers(a: Any, b: Any, shapes: Sequence[Shape]) -> list[dict[Index, float]]:
    """The numbers of both inputs by index; empty for shapes that are too large to be drawn.

    If only a shape is given, the numbers are made up: 1, 2, 3 for a and 10, 20, 30 for b, so that each sum shows its
    terms.
    """
    if not can_be_drawn(*[shape for shape in shapes if shape]):
        return [{}, {}]
    step = 10 ** len(str(math.prod(shapes[0])))
    numbers = []
    for side, x in enumerate((a, b)):
        places = itertools.product(*map(range, shapes[side]))
        if isinstance(x, tuple | list):
            numbers.append({place: (step if side else 1) * count for count, place in enumerate(places, 1)})
        else:
            numbers.append({place: float(x[place]) for place in places})
    return numbers


def _gradient(result: Shape) -> dict[Index, int]:
    """A made-up gradient of the result: digits that do not repeat soon."""
    return {place: (7 * count + 3) % 9 + 1 for count, place in enumerate(itertools.product(*map(range, result)))}


# -- the picture ------------------------------------------------------------------------------------------------------


def _draw_alignment(drawing: Drawing, aligned: Alignment, shapes: Sequence[Shape], names: Sequence[str]) -> None:
    """The two shapes in columns, one for each axis of the result, and the result below."""
    count = len(aligned.a)
    y = MARGIN + 16
    for axis in range(count):
        x = MARGIN + NAMES_WIDTH + axis * AXIS_WIDTH + AXIS_WIDTH / 2
        drawing.text(x, y, f"axis {axis}", size=11, soft=True)
    y += 8
    for side, (name, sizes) in enumerate(zip(names, (aligned.a, aligned.b), strict=True)):
        drawing.text(MARGIN, y + 18, f"{name}  {shapes[side]}", anchor="start", bold=True)
        for axis, size in enumerate(sizes):
            x = MARGIN + NAMES_WIDTH + axis * AXIS_WIDTH
            end = aligned.result[axis] if aligned.result is not None else None
            text, look = str(size), Look("ab"[side])
            if size is None:
                text, look = ("new" if end is None else f"new, {end}"), Look("ab"[side], copy=True)
            elif axis == aligned.clash:
                look = Look("clash")
            elif size == 1 and end not in (1, None):
                text, look = f"1 \N{RIGHTWARDS ARROW} {end}", Look("ab"[side], copy=True)
            drawing.box(x + 3, y, AXIS_WIDTH - 6, ROW_HEIGHT - 5, text, look)
        y += ROW_HEIGHT
    outcome = "result" if aligned.result is None else f"result  {aligned.result}"
    drawing.text(MARGIN, y + 18, outcome, anchor="start", bold=True)
    for axis in range(count):
        x = MARGIN + NAMES_WIDTH + axis * AXIS_WIDTH
        sizes = [size for size in (aligned.a[axis], aligned.b[axis]) if size is not None]
        if axis == aligned.clash:
            drawing.box(
                x + 3, y, AXIS_WIDTH - 6, ROW_HEIGHT - 5, f"{sizes[0]} \N{NOT EQUAL TO} {sizes[1]}", Look("clash")
            )
        else:
            size = next((size for size in sizes if size != 1), 1)
            drawing.box(x + 3, y, AXIS_WIDTH - 6, ROW_HEIGHT - 5, str(size), Look("r"))
    if count <= 3:
        x = MARGIN + NAMES_WIDTH + max(count, 1) * AXIS_WIDTH + 40
        for row, (copy, words) in enumerate(((False, "a number of its own"), (True, "a copy, which costs no memory"))):
            for side in (0, 1):
                drawing.box(x + 26 * side, MARGIN + 24 + row * ROW_HEIGHT, 22, 22, "", Look("ab"[side], copy=copy))
            drawing.text(x + 62, MARGIN + 40 + row * ROW_HEIGHT, words, size=12, anchor="start", soft=True)


def _forward_grids(
    result: Shape,
    shapes: Sequence[Shape],
    names: Sequence[str],
    sign: str,
    numbers: Sequence[dict[Index, float]],
    chosen: tuple[int, Index] | None,
) -> tuple[list, list[str]]:
    combine = {"+": lambda x, y: x + y, MINUS: lambda x, y: x - y, TIMES: lambda x, y: x * y}[sign]
    grids = []
    for side, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        first_use = {}
        for place in itertools.product(*map(range, result)):
            first_use.setdefault(source_of(place, shape), place)

        def write(place, side=side, shape=shape):
            return short(numbers[side][source_of(place, shape)])

        def look(place, side=side, shape=shape, name=name, first_use=first_use):
            source = source_of(place, shape)
            return Look(
                "ab"[side],
                first_use[source] != place,
                chosen == (side, source),
                f"{name}{list(source) if source else ''} = {short(numbers[side][source])}",
            )

        told = f"{shape}, unchanged" if shape == result else f"{shape} stretched to {result}"
        grids.append((name, told, result, write, look))

    def total(place):
        return short(combine(*(numbers[side][source_of(place, shapes[side])] for side in (0, 1))))

    def total_look(place):
        parts = [short(numbers[side][source_of(place, shapes[side])]) for side in (0, 1)]
        ring = chosen is not None and source_of(place, shapes[chosen[0]]) == chosen[1]
        return Look("r", ring=ring, tip=f"result{list(place) if place else ''} = {parts[0]} {sign} {parts[1]}")

    grids.append((f"{names[0]} {sign} {names[1]}", f"{result}", result, total, total_look))
    return grids, [sign, "="]


def _backward_grids(
    result: Shape,
    shapes: Sequence[Shape],
    names: Sequence[str],
    sign: str,
    numbers: Sequence[dict[Index, float]],
    chosen: tuple[int, Index] | None,
) -> tuple[list, list[str]]:
    gradient = _gradient(result)

    def is_used(place):
        return chosen is not None and source_of(place, shapes[chosen[0]]) == chosen[1]

    grids = [
        (
            "g, the gradient of the result",
            f"{result}, numbers made up",
            result,
            lambda place: str(gradient[place]),
            lambda place: Look("r", ring=is_used(place), tip=f"g{list(place) if place else ''}"),
        )
    ]
    for side, (name, shape) in enumerate(zip(names, shapes, strict=True)):

        def terms(place, shape=shape):
            return [value for at, value in gradient.items() if source_of(at, shape) == place]

        def look(place, side=side, terms=terms):
            return Look("ab"[side], ring=chosen == (side, place), tip=" + ".join(map(str, terms(place))))

        grids.append(
            (
                f"gradient of {name}",
                _sum_code(shape, result),
                shape,
                lambda place, terms=terms: str(sum(terms(place))),
                look,
            )
        )
    return grids, ["\N{RIGHTWARDS ARROW}", ""]


def draw_row(drawing: Drawing, grids: Sequence[tuple], signs: Sequence[str]) -> None:
    """Grids side by side with a title, a line of small print, and a sign between them."""
    y = drawing.height + 44
    columns = sum((1, *shape)[-1] for _, _, shape, _, _ in grids)
    cell = cells.CELL if columns <= 15 else 34.0
    sizes = [cells.grid_size(shape, cell) for _, _, shape, _, _ in grids]
    widest = max(size[1] for size in sizes)
    x = MARGIN
    for (name, told, shape, write, look), (width, _), mark in zip(grids, sizes, (*signs, ""), strict=True):
        drawing.text(x, y, name, size=14, anchor="start", bold=True)
        drawing.text(x, y + 18, told, size=12, anchor="start", soft=True)
        drawing.grid(x, y + 26, shape, write, look, name=name, cell=cell)
        room = max(width, len(name) * 14 * CHARACTER / 12, len(told) * CHARACTER)
        drawing.text(x + room + BETWEEN / 2, y + 26 + 18 + min(widest - 18, 3 * cell) / 2 + 6, mark, size=20)
        x += room + BETWEEN
