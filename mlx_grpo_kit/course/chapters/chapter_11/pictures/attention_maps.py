"""Attention weights as maps: a row for each token that looks, a column for each token that is seen."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import CHARACTER, Chart, text
from mlx_grpo_kit.viz.style import INK, POSITIVE, shades

MAP, MARGIN = 380, 46  # pixels: the side of the large map, and the margin for its tokens
SMALL, GAP = 152, 44  # pixels: the side of a small map, and the gap between two
MOST_NUMBERS = 12  # with up to this many tokens, every cell shows its number
VISIBLE = "\N{OPEN BOX}"
HIDDEN = "#ececec"  # masked: a weight of exactly 0
_blues = shades(0, 1, ("#ffffff", POSITIVE))

FOCUS = """<style>
.kit-cell text {display: none} .kit-cell:hover text, .kit-cell:focus text {display: inline}
.kit-cell:focus {outline: none} .kit-cell:focus rect, .kit-cell:hover rect {stroke: #24292f; stroke-width: 2}
</style>"""


def shown_token(token: str) -> str:
    """A token as shown next to a map, with visible spaces and line breaks."""
    return {"": "end", "\n": "\\n"}.get(token, token.replace(" ", VISIBLE))


def weight_color(weight: float) -> str:
    """From white at nearly 0 to blue at 1; grey is exactly 0."""
    return _blues(weight) if weight else HIDDEN


def draw_attention_map(
    weights: Any, tokens: Sequence[str], row: int, *, title: str = "", seen: Sequence[str] | None = None
) -> tuple[Chart, str]:
    """(chart, words): one head's weights, and on the right the tokens that the token of one row looks at.

    Every cell shows its number under the pointer or when the Tab key reaches it.

    Args:
        weights: [T, S], each row sums to 1
        tokens: the T tokens that look, as text
        row: the index of the token shown on the right
        title: the text above the map, such as "layer 0, head 3"
        seen: the S tokens that are looked at; the same as `tokens` by default
    """
    weights, seen = np.asarray(weights, float), list(tokens if seen is None else seen)
    names, columns = [shown_token(token) for token in tokens], [shown_token(token) for token in seen]
    chart = Chart(MAP + 2 * MARGIN + 330, MAP * max(1, len(names) / len(columns)) + 116)
    sheet = chart.add(Sheet(MARGIN + 14, 62, MAP, weights, weight_color, most=46))
    if len(columns) <= MOST_NUMBERS:
        sheet.write([[_short(weight) for weight in line] for line in weights], 11.5)
    sheet.frame(row, 0, 1, len(columns), INK)
    _write_tokens(chart, sheet, names, columns, 14)
    chart.text(MARGIN + 14, 22, title, size=15, bold=True)
    bottom = 62 + sheet.cell * len(names) + 24
    chart.text(MARGIN + 14, bottom, "Point at a cell, or go there with the Tab key.", size=12, color="soft")
    says = [
        [f"{_quoted(name)} looks at {_quoted(column)}, position {j}: {weights[i, j]:.3f}" if weights[i, j] else
         f"{_quoted(column)}, position {j}, is hidden from {_quoted(name)}"
         for j, column in enumerate(columns)]
        for i, name in enumerate(names)
    ]  # fmt: skip
    chart.add(_Pointers(sheet, says, bottom - sheet.top + 19))
    left = MARGIN + 14 + max(sheet.cell * len(columns) + 44, CHARACTER * 17 * len(title) + 20)  # the title is bold
    chart.text(left, 22, f"What {_quoted(names[row])} (position {row}) looks at", size=14)
    for j, column in enumerate(columns):
        y = 62 + (j + 0.5) * min(sheet.cell, MAP / len(columns))
        share = weights[row, j]
        chart.text(left + 24, y + 5, column, size=14, anchor="middle", color="ink" if share >= 0.005 else "soft")
        chart.bar(left + 48, y - 8, max(170 * share, 0.6), 16, POSITIVE)
        chart.text(left + 55 + 170 * share, y + 5, f"{share:.2f}", size=12.5, color="ink" if share > 0.005 else "soft")
    order = [j for j in np.argsort(-weights[row], kind="stable")[:3] if weights[row, j] >= 0.005]
    looks = ", ".join(f"{_quoted(columns[j])} at position {j} with {weights[row, j]:.2f}" for j in order)
    return chart, f"Attention map, {title}. {_quoted(names[row])} at position {row} looks most at {looks}."


def draw_attention_maps(maps: Sequence[tuple[str, Any]], tokens: Sequence[str], across: int = 4) -> tuple[Chart, str]:
    """(chart, words): the maps of several heads side by side, each [T, T] under its title, `across` in a row."""
    names = [shown_token(token) for token in tokens]
    rows = -(-len(maps) // across)
    chart = Chart(min(across, len(maps)) * (SMALL + GAP) + 22, rows * (SMALL + 58) - 8)
    sentences = []
    for place, (title, weights) in enumerate(maps):
        weights = np.asarray(weights, float)
        left, top = 30 + place % across * (SMALL + GAP), 40 + place // across * (SMALL + 58)
        sheet = chart.add(Sheet(left, top, SMALL, weights, weight_color))
        chart.text(left, top - 22, title, size=12.5, bold=True)
        _write_tokens(chart, sheet, names, names, 10.5)
        seen = int(np.argmax(weights[-1]))
        sentences.append(f"{title}: {_quoted(names[-1])} looks most at {_quoted(names[seen])} at {seen}")
    return chart, f"Attention maps of {''.join(names)}. {'; '.join(sentences)}."


def _write_tokens(chart: Chart, sheet: Sheet, names: Sequence[str], columns: Sequence[str], size: float) -> None:
    """Write the tokens that look to the left of a map, and the tokens that are seen above it."""
    for i, name in enumerate(names):
        y = sheet.top + (i + 0.5) * sheet.cell + 0.36 * size
        chart.text(sheet.left - 7, y, name, size=size, anchor="end")
    for j, column in enumerate(columns):
        chart.text(sheet.left + (j + 0.5) * sheet.cell, sheet.top - 6, column, size=size, anchor="middle")


def _short(weight: float) -> str:
    return "" if weight < 0.005 else f"{weight:.2f}".removeprefix("0")


def _quoted(token: str) -> str:
    return f'"{token}"'


class _Pointers:
    """Invisible cells over a sheet that show text under the pointer or at the keyboard's focus."""

    def __init__(self, sheet: Sheet, says: Sequence[Sequence[str]], line: float):
        self.sheet, self.says, self.line = sheet, says, line

    def parts(self) -> list[str]:
        """The markup: a group for each cell, with a title, a focusable rectangle, and the words below the sheet."""
        cell = self.sheet.cell
        groups = [
            f'<g class="kit-cell" tabindex="0" aria-label="{escape(words)}"><title>{escape(words)}</title>'
            f'<rect x="{j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" fill="transparent"/>'
            f"{text(0, self.line, words, size=13, bold=True)}</g>"
            for i, line in enumerate(self.says)
            for j, words in enumerate(line)
        ]
        return [FOCUS, f'<g transform="translate({self.sheet.left:g} {self.sheet.top:g})">', *groups, "</g>"]
