"""The backward pass of a matrix product: the uses of one number of a, and the terms of its gradient."""

from __future__ import annotations

from typing import Any

from mlx_grpo_kit.course.chapters.chapter_04.pictures.cells import CellPicture, Drawing, Look
from mlx_grpo_kit.course.chapters.chapter_04.pictures.shapes import draw_row
from mlx_grpo_kit.viz.graphs.nodes import TIMES, short


def draw_matmul(a: Any, b: Any, grad: Any, row: int, column: int) -> CellPicture:
    """`c = a @ b` and, below it, the gradient of `a` from `grad`, the gradient of c: one number of a is followed.

    Args:
        a: an array [n, k].
        b: an array [k, m].
        grad: an array [n, m].
        row: the row of the followed number of a, counted from 0.
        column: its column.
    """
    c, gradient = a @ b, grad @ b.T
    followed = f"a[{row}, {column}]"

    def grid(name, told, array, look):
        return name, told, array.shape, lambda place: short(float(array[place])), look

    def is_followed(place):
        return Look("a" if place == (row, column) else "r", ring=place == (row, column))

    def is_partner(place):
        return Look("b" if place[0] == column else "r")

    def is_use(place):
        used = place[0] == row
        return Look("s" if used else "r", tip=f"contains {followed} {TIMES} b[{column}, {place[1]}]" if used else "")

    drawing = Drawing()
    draw_row(
        drawing,
        [
            grid("a", f"{a.shape}", a, is_followed),
            grid("b", f"row {column}: what it is multiplied by", b, is_partner),
            grid("c = a @ b", f"row {row}: where it is used", c, is_use),
        ],
        ["@", "="],
    )
    draw_row(
        drawing,
        [
            grid("grad, the gradient of c", f"row {row}, number by number ...", grad, is_use),
            grid("b", f"... times row {column}, added up", b, is_partner),
            grid("gradient of a", f"{a.shape}", gradient, is_followed),
        ],
        ["", "\N{RIGHTWARDS ARROW}"],
    )
    terms = [f"{short(float(g))} {TIMES} {short(float(other))}" for g, other in zip(grad[row], b[column], strict=True)]
    words = [
        f"{followed} = {short(float(a[row, column]))} is used in every number of row {row} of c: c[{row}, j] contains "
        f"{followed} {TIMES} b[{column}, j].",
        f"So its gradient is the sum over j of grad[{row}, j] {TIMES} b[{column}, j]: {' + '.join(terms)} = "
        f"{short(float(gradient[row, column]))}.",
    ]
    return CellPicture(drawing.svg(" ".join(words)), " ".join(words), words)
