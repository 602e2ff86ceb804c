"""Sampled completions as a table: prompt, answer, reward."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mlx_grpo_kit.runtime.printing import printable

MAX_CHARACTERS = 160  # per prompt or completion; the rest is replaced by an ellipsis
UP, DOWN = "86, 144, 252", "248, 156, 32"  # translucent blue and orange backgrounds, for both themes
STYLE = {
    "table": "border-collapse:collapse; margin:4px 0; font-size:13px; line-height:1.5; "
    "color:var(--jp-ui-font-color1, #333);",
    "th": "text-align:left; font-weight:600; padding:3px 14px 3px 8px; "
    "border-bottom:1px solid var(--jp-border-color1, #999);",
    "td": "text-align:left; padding:2px 14px 2px 8px; vertical-align:top; white-space:pre-wrap; "
    "overflow-wrap:anywhere;",
    "code": "font-family:var(--jp-code-font-family, monospace);",
}


@printable
class CompletionsTable:
    """A table, as HTML in a notebook and as aligned text in a terminal."""

    def __init__(self, html: str, text: str):
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def completions_table(records: Iterable[Any], *, title: str = "") -> CompletionsTable:
    """Make a table of `records`, with `.prompt`, `.completion` and, optionally, `.reward` and `.advantage`.

    A row with a positive advantage says "▲ up", because GRPO's step pushes the probability of that completion up. A row
    with a negative advantage says "▼ down". All text is escaped, so that a model's text cannot become markup.
    """
    records = list(records)
    if not records:
        return CompletionsTable("<em>no completions</em>", "no completions")
    header = _header(records)
    rows = [_cells(record, header) for record in records]
    return CompletionsTable(_html(title, header, rows, records), _text(title, header, rows))


def rows_for_page(records: Sequence[Any]) -> dict[str, Any]:
    """Return the table as JSON for a live page: its header, and the cells and the advantage of each row."""
    header = _header(records)
    rows = [{"cells": _cells(record, header), "advantage": _value(record, "advantage")} for record in records]
    return {"header": header, "rows": rows}


def _header(records: Sequence[Any]) -> list[str]:
    header = ["prompt", "completion"]
    if any(_value(record, "reward") is not None for record in records):
        header.append("reward")
    if any(_value(record, "advantage") is not None for record in records):
        header += ["advantage", "the step pushes it"]
    return header


def _value(record: Any, name: str) -> float | None:
    value = getattr(record, name, None)
    return None if value is None or isinstance(value, list) else float(value)  # a list: one advantage per token


def _cells(record: Any, header: list[str]) -> list[str]:
    cells = [_shorten(record.prompt), _shorten(record.completion) or "(empty)"]
    if "reward" in header:
        reward = _value(record, "reward")
        cells.append("" if reward is None else f"{reward:.3g}")
    if "advantage" in header:
        advantage = _value(record, "advantage")
        cells.append("" if advantage is None else f"{advantage:+.2f}")
        cells.append(_direction(advantage))
    return cells


def _direction(advantage: float | None) -> str:
    if advantage is None or math.isnan(advantage):
        return ""
    if advantage == 0:
        return "• neither way"
    return "▲ up" if advantage > 0 else "▼ down"


def _shorten(text: str) -> str:
    text = str(text)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"


def _html(title: str, header: list[str], rows: list[list[str]], records: list[Any]) -> str:
    head = "".join(f'<th scope="col" style="{STYLE["th"]}">{escape(name)}</th>' for name in header)
    body, previous = [], None
    for record, cells in zip(records, rows, strict=True):
        # Completions of one prompt form a group, with a line above it and the prompt written once.
        line = "border-top:1px solid var(--jp-border-color2, #ccc);" if cells[0] != previous else ""
        shown = cells if cells[0] != previous else ["", *cells[1:]]
        previous = cells[0]
        fonts = [STYLE["code"], STYLE["code"], *[""] * (len(cells) - 2)]
        body.append(
            f'<tr style="background:{_tint(record)};{line}">'
            + "".join(
                f'<td style="{STYLE["td"]}{font}">{escape(cell)}</td>' for cell, font in zip(shown, fonts, strict=True)
            )
            + "</tr>"
        )
    caption = f'<caption style="text-align:left; padding:3px 8px;">{escape(title)}</caption>' if title else ""
    return (
        f'<table style="{STYLE["table"]}">{caption}<thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


def _tint(record: Any) -> str:
    advantage = _value(record, "advantage")
    if not advantage or math.isnan(advantage):
        return "transparent"
    return f"rgba({UP if advantage > 0 else DOWN}, {0.10 + 0.15 * min(abs(advantage), 2):.2f})"


def _text(title: str, header: list[str], rows: list[list[str]]) -> str:
    table = [header, *[[cell.replace("\n", "\\n") for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([title, *lines] if title else lines)
