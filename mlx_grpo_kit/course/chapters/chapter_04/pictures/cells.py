"""Grids of numbered cells, drawn as SVG: the numbers of small arrays, with copies and sums made visible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from mlx_grpo_kit.viz.picture import SvgPicture

Shape = tuple[int, ...]
Index = tuple[int, ...]

MARGIN, CELL, SHEET_GAP = 14.0, 40.0, 14.0
CHARACTER = 6.6  # pixels: the width of a letter of 12 pixels
MOST_COLUMNS, MOST_ROWS = 8, 12
ALONG = "\N{RIGHTWARDS ARROW}"

# An attribute for the light theme, which is left where a page removes style sheets; the style sheet for both themes.
STYLE = """<style>
.kit-cells {--ink: var(--jp-ui-font-color1, #24292f); --soft: var(--jp-ui-font-color2, #59636e);
  --page: var(--jp-layout-color0, #fff)}
.kit-cells text {fill: var(--ink)} .kit-cells text.soft {fill: var(--soft)} .kit-cells .page {fill: var(--page)}
.kit-cells .ring {stroke: var(--ink)} .kit-cells .arrow {stroke: var(--soft)}
[data-jp-theme-light="false"] .kit-cells .a {fill: #244a8f; stroke: #7ea9f5}
[data-jp-theme-light="false"] .kit-cells .b {fill: #7a4c08; stroke: #f0b45c}
[data-jp-theme-light="false"] .kit-cells .r {fill: #2b2f36; stroke: #59616b}
[data-jp-theme-light="false"] .kit-cells .s {fill: #3a4049; stroke: #59616b}
[data-jp-theme-light="false"] .kit-cells .copy.a {fill: #17233a; stroke: #4f74b8}
[data-jp-theme-light="false"] .kit-cells .copy.b {fill: #2d2212; stroke: #9a7233}
[data-jp-theme-light="false"] .kit-cells .hatch.a {stroke: #35548c} .kit-cells .clash {stroke: #b42318}
[data-jp-theme-light="false"] .kit-cells .hatch.b {stroke: #6d5020}
</style>"""
FILL = {
    "a": ("#cfe0fd", "#3b6fd4"),
    "b": ("#fddfb5", "#b86e0c"),
    "r": ("#f3f4f6", "#b6bec8"),
    "s": ("#dfe3e8", "#b6bec8"),
    "clash": ("#ffffff", "#b42318"),
}
FAINT_FILL = {"a": ("#f1f6ff", "#8fb2f2", "#cfdffb"), "b": ("#fff7ea", "#dfa759", "#f6dfba")}


@dataclass(frozen=True)
class Look:
    """The look of a cell.

    Attributes:
        kind: "a" blue, "b" orange, "r" light grey, "s" darker grey.
        copy: faint and hatched.
        ring: a thick line around it.
        tip: shown when you point at it.
    """

    kind: str = "r"
    copy: bool = False
    ring: bool = False
    tip: str = ""


@dataclass
class CellPicture(SvgPicture):
    """A drawing with sentences below it; `like this` is code in them. Shows itself in a notebook or in a Panel."""

    sentences: Sequence[str] = ()

    @property
    def html(self) -> str:
        return f"{super().html}{self._words}"

    @property
    def _words(self) -> str:
        first, *others = [_with_code(sentence) for sentence in self.sentences] or [""]
        rest = "".join(f"<div>{sentence}</div>" for sentence in others)
        return (
            f'<div role="status" style="line-height:1.6;max-width:68em;margin:2px 14px 8px;font-size:14px">'
            f"<div><b>{first}</b></div>{rest}</div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = super()._repr_mimebundle_(include, exclude)
        return {**data, "text/html": data["text/html"] + self._words}


class Drawing:
    """A page of pixels that grows with what is put on it."""

    def __init__(self):
        self.parts: list[str] = []
        self.width = self.height = 0.0

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        anchor: str = "middle",
        bold: bool = False,
        soft: bool = False,
        turned: bool = False,
    ) -> None:
        """Words with their baseline at y. With `turned` they run downwards."""
        length = len(text) * size * CHARACTER / 12 * (1.12 if bold else 1)
        right = x + {"start": length, "middle": length / 2, "end": 0}[anchor]
        self._grow(x if turned else right, y)
        weight = ' font-weight="700"' if bold else ""
        turn = f' transform="rotate(90 {x:.1f} {y:.1f})"' if turned else ""
        self.parts.append(
            f'<text class="{"soft" if soft else "ink"}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" '
            f'text-anchor="{anchor}" fill="{"#59636e" if soft else "#24292f"}"{weight}{turn}>'
            f"{escape(text)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, text: str, look: Look, *, size: float = 13) -> None:
        """A rectangle with a text in its middle."""
        self._grow(x + width, y + height)
        if look.copy:
            fill, stroke, lines = FAINT_FILL[look.kind]
            dash = ' stroke-dasharray="4 3"'
        else:
            (fill, stroke), dash = FILL[look.kind], ""
        kind = f"{'copy ' if look.copy else ''}{look.kind}"
        parts = [
            f"<g><title>{escape(look.tip)}</title>" if look.tip else "<g>",
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="{2 if look.kind == "clash" else 1.2}"{dash}/>',
        ]
        if look.copy:
            parts.append(
                f'<path class="hatch {look.kind}" d="{_hatch(x, y, width, height)}" stroke="{lines}" '
                'stroke-width="1.4"/>'
            )
        if look.ring:
            parts.append(
                f'<rect class="ring" x="{x + 1.5:.1f}" y="{y + 1.5:.1f}" width="{width - 3:.1f}" '
                f'height="{height - 3:.1f}" rx="3" fill="none" stroke="#24292f" stroke-width="3"/>'
            )
        self.parts.append("".join(parts))
        if text:
            self.text(
                x + width / 2, y + height / 2 + size * 0.36, text, size=size, bold=not look.copy and look.kind in "abs"
            )
        self.parts.append("</g>")

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A line with a head at its end, horizontal or vertical."""
        self._grow(to_x, to_y)
        length = math.hypot(to_x - x, to_y - y)
        along, across = ((to_x - x) / length, (to_y - y) / length), ((y - to_y) / length, (to_x - x) / length)
        left, right = [
            (to_x - 6 * along[0] + side * 4 * across[0], to_y - 6 * along[1] + side * 4 * across[1]) for side in (1, -1)
        ]
        self.parts.append(
            f'<path class="arrow" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}M{left[0]:.1f} {left[1]:.1f}'
            f'L{to_x:.1f} {to_y:.1f}L{right[0]:.1f} {right[1]:.1f}" fill="none" stroke="#59636e" '
            'stroke-width="1.4"/>'
        )

    def grid(
        self,
        x: float,
        y: float,
        shape: Shape,
        write: Callable[[Index], str],
        look: Callable[[Index], Look],
        *,
        name: str,
        cell: float = CELL,
        axes: bool = True,
    ) -> None:
        """An array of up to three axes: rows of cells, and sheets of rows below each other.

        `write` and `look` give an index's text and look; `axes` writes the numbers of the axes beside it. (x, y) is the
        upper left corner of everything; `grid_size` says how much room it takes.
        """
        left, top = _frame(shape, axes)
        self.parts.append(f'<g class="grid" data-name="{escape(name)}">')
        for index in itertools.product(*map(range, shape)):
            column, row, sheet = (0, 0, 0, *index)[:-4:-1]
            rows = shape[-2] if len(shape) > 1 else 1
            at_y = y + top + row * cell + sheet * (rows * cell + SHEET_GAP)
            text = write(index)
            self.box(
                x + left + column * cell,
                at_y,
                cell,
                cell,
                text,
                look(index),
                size=13 if len(text) < 4 else 11 if len(text) < 6 else 9,
            )
        self.parts.append("</g>")
        if not axes or not all(shape):
            return
        last = len(shape) - 1
        if last >= 0:
            self.text(x + left, y + top - 6, f"axis {last} {ALONG}", size=11, anchor="start", soft=True)
        if last >= 1:
            self.text(
                x + left - 14, y + top + 1, f"axis {last - 1} {ALONG}", size=11, anchor="start", soft=True, turned=True
            )
        if last == 2:
            step = shape[-2] * cell + SHEET_GAP
            for sheet in range(shape[0]):
                middle = y + top + sheet * step + shape[-2] * cell / 2 + 4
                self.text(x + 30, middle, f"[{sheet}]", size=12, anchor="end", soft=True)
            self.text(x + 8, y + top - 6, "axis 0", size=11, anchor="start", soft=True)

    def svg(self, alt: str) -> str:
        """The whole page, with its description."""
        width, height = self.width + MARGIN, self.height + MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="kit-cells" role="img" width="{width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:100%;height:auto;'
            f'font-family:ui-sans-serif,system-ui,sans-serif">{STYLE}<title>{escape(alt)}</title>'
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="6" fill="#fff"/>'
            f"{''.join(self.parts)}</svg>"
        )

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def grid_size(shape: Shape, cell: float = CELL, axes: bool = True) -> tuple[float, float]:
    """(width, height) of what `Drawing.grid` draws."""
    left, top = _frame(shape, axes)
    columns, rows, sheets = (1, 1, 1, *shape)[:-4:-1]
    label = 46 if axes and shape else 0  # "axis 1" may be wider than a single column
    return left + max(columns * cell, label), top + sheets * rows * cell + (sheets - 1) * SHEET_GAP


def can_be_drawn(*shapes: Shape) -> bool:
    """True if these shapes have few enough cells to draw them one by one."""
    return all(
        len(shape) <= 3 and math.prod(shape) and (1, *shape)[-1] <= MOST_COLUMNS and math.prod(shape[:-1]) <= MOST_ROWS
        for shape in shapes
    )


def _frame(shape: Shape, axes: bool) -> tuple[float, float]:
    if not axes:
        return 0.0, 0.0
    return (0.0, 0.0, 24.0, 52.0)[len(shape)], 18.0


def _hatch(x: float, y: float, width: float, height: float) -> str:
    lines = []
    for distance in range(10, int(width + height), 10):
        start = (x + max(0.0, distance - height), y + min(distance, height))
        end = (x + min(distance, width), y + max(0.0, distance - width))
        lines.append(f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}")
    return "".join(lines)


def _with_code(text: str) -> str:
    parts = escape(text).split("`")
    return "".join(
        f'<code style="white-space:nowrap">{part}</code>' if index % 2 else part for index, part in enumerate(parts)
    )
