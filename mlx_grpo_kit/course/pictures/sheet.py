"""A matrix as coloured cells with numbers in them, on a Chart: small images, kernels, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlx_grpo_kit.viz.chart import text
from mlx_grpo_kit.viz.style import ink_on, shades

GRID = "#c9c9c9"


class Sheet:
    """An area of a chart with square cells, row 0 at the top: `chart.add(Sheet(15, 55, 285, image, grays(1)))`.

    The cells keep their colours in the dark theme, and their text is black or white, whichever is more readable.

    Args:
        left, top, side: pixels; the longer side of the matrix is `side` long, unless its cells would exceed `most`.
        numbers: [R, C]
        color: a function from a number to a colour, such as `grays(1)`.
        title, below: text above and below the cells.
        below_color: the colour of the text below.
        most: pixels, the largest side of a cell.

    Attributes:
        cell: the side of a cell in pixels.
        written: the words in the cells, row after row.
        frames: (row, column, height, width) of each frame, in cells.
    """

    def __init__(
        self,
        left: float,
        top: float,
        side: float,
        numbers: Any,
        color: Callable[[float], str],
        *,
        title: str = "",
        below: str = "",
        below_color: str = "soft",
        most: float = 1e9,
    ):
        import numpy as np

        self.left, self.top, self.title, self.color = left, top, title, color
        self.numbers = np.asarray(numbers)
        rows, columns = self.numbers.shape
        self.cell = min(side / max(rows, columns), most)
        self.written: list[str] = []
        self.frames: list[tuple[int, int, int, int]] = []
        self._fills = [[color(float(number)) for number in row] for row in self.numbers]
        width, height = self.cell * columns, self.cell * rows
        across = "".join(f"M0 {self.cell * row:.1f}h{width:.1f}" for row in range(rows + 1))
        down = "".join(f"M{self.cell * column:.1f} 0v{height:.1f}" for column in range(columns + 1))
        self._parts = [
            *self._cells(),
            f'<path d="{across}{down}" fill="none" stroke="{GRID}" stroke-width=".8"/>',
            text(0, -9, title, size=14),
            text(0, height + 20, below, size=12.5, color=below_color, bold=below_color not in ("ink", "soft")),
        ]

    def _cells(self) -> list[str]:
        """Draw all cells of one colour as one path."""
        paths: dict[str, list[str]] = {}
        for row, fills in enumerate(self._fills):
            for column, fill in enumerate(fills):
                paths.setdefault(fill, []).append(
                    f"M{column * self.cell:.2f} {row * self.cell:.2f}h{self.cell:.2f}v{self.cell:.2f}h-{self.cell:.2f}z"
                )
        return [
            f'<path d="{"".join(path)}" fill="{fill}" shape-rendering="crispEdges"/>' for fill, path in paths.items()
        ]

    def write(self, words: Sequence[Sequence[str]], size: float) -> None:
        """Put words into the cells, `size` pixels high."""
        for row, texts in enumerate(words):
            for column, each in enumerate(texts):
                x, y = (column + 0.5) * self.cell, (row + 0.5) * self.cell + 0.36 * size
                color = ink_on(self._fills[row][column])
                self._parts.append(text(x, y, each, size=size, anchor="middle", color=color))
                self.written.append(each)

    def frame(self, row: int, column: int, height: int, width: int, color: str) -> None:
        """Draw a thick line around some cells."""
        self.frames.append((row, column, height, width))
        self._parts.append(
            f'<rect x="{column * self.cell:.1f}" y="{row * self.cell:.1f}" width="{width * self.cell:.1f}" '
            f'height="{height * self.cell:.1f}" fill="none" stroke="{color}" stroke-width="3.4"/>'
        )

    def parts(self) -> list[str]:
        """Return the markup."""
        return [f'<g transform="translate({self.left:g} {self.top:g})">', *self._parts, "</g>"]


def grays(ink: float) -> Callable[[float], str]:
    """Make a function from numbers to shades of grey: white at 0, black at `ink`."""
    return shades(0, ink, ("#ffffff", "#000000"))
