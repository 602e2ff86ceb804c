"""A table, in HTML and in words, of gradients that are infinite, not a number, or a choice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.live.completions import STYLE

Number = float | Sequence[float]
MINUS, INFINITY = "\N{MINUS SIGN}", "\N{INFINITY}"
TINTS = {"infinite": "rgba(248, 156, 32, .22)", "nan": "rgba(248, 156, 32, .22)", "a choice": "rgba(87, 144, 252, .16)"}
TIGHT = "padding-left:6px;padding-right:6px;"
HEADER = ("operation", "at", "value", "gradient", "torch", "elsewhere", "why")


@dataclass(frozen=True)
class EdgeRow:
    """One edge, measured.

    Attributes:
        family, operation: the group of rows, and the code of the operation
        point: its inputs, each a number or several
        value, gradients: the result, and the gradient of each input
        torch_value, torch_gradients: the result and gradients of torch
        why: a short clause
        is_choice: True if mathematics allows several gradients, so that the framework had to choose one
        elsewhere: the gradients of frameworks that differ from torch, such as {"JAX": (0.5,)}
    """

    family: str
    operation: str
    point: tuple[Number, ...]
    value: Number
    gradients: tuple[Number, ...]
    torch_value: Number
    torch_gradients: tuple[Number, ...]
    why: str
    is_choice: bool = False
    elsewhere: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """True if value and gradients equal torch's, up to rounding; a nan equals a nan."""
        ours, theirs = (
            _flat([*gradients, value])
            for gradients, value in ((self.gradients, self.value), (self.torch_gradients, self.torch_value))
        )
        return len(ours) == len(theirs) and all(
            a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or (a != a and b != b)
            for a, b in zip(ours, theirs, strict=True)
        )

    @property
    def kind(self) -> str:
        """The kind of gradient: "nan", "infinite", "a choice" or "exact"."""
        numbers = _flat(self.gradients)
        if any(number != number for number in numbers):
            return "nan"
        if any(math.isinf(number) for number in numbers):
            return "infinite"
        return "a choice" if self.is_choice else "exact"


@printable
class EdgeTable:
    """A table as HTML, and the same table in words: a Picture for a Panel."""

    def __init__(self, html: str, alt: str):
        self.html, self.alt = html, alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.alt}

    def __repr__(self) -> str:
        return self.alt


def edge_table(rows: Iterable[EdgeRow], family: str = "") -> EdgeTable:
    """The rows of one family, or all of them, one below the other. Raises KeyError for a family without rows."""
    rows = list(rows)
    shown = [row for row in rows if not family or row.family == family]
    if not shown:
        known = ", ".join(dict.fromkeys(repr(row.family) for row in rows))
        raise KeyError(f"no rows of family {family!r}; there are {known}")
    head = "".join(f'<th scope="col" style="{STYLE["th"]}{TIGHT}">{name}</th>' for name in HEADER)
    body, lines = [], []
    for name, group in groupby(shown, key=lambda row: row.family):
        body.append(
            f'<tr><th colspan="{len(HEADER)}" scope="rowgroup" style="{STYLE["th"]}padding-top:10px;">'
            f"{escape(name)}</th></tr>"
        )
        lines.append(f"{name}:")
        for row in group:
            cells = _cells(row)
            body.append(
                f'<tr style="background:{TINTS.get(row.kind, "transparent")}">'
                + "".join(
                    f'<td style="{_style(column)}">{escape(cell)}</td>'
                    for column, cell in zip(HEADER, cells, strict=True)
                )
                + "</tr>"
            )
            lines.append("  " + _in_words(row, dict(zip(HEADER, cells, strict=True))))
    html = (
        f'<div style="overflow-x:auto"><table style="{STYLE["table"]}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
    return EdgeTable(html, "\n".join(lines))


def number_text(number: Number) -> str:
    """A number with four digits, "nan", or an infinity sign; "(1, 0)" for several numbers."""
    if isinstance(number, Sequence):
        return f"({', '.join(map(number_text, number))})"
    if number != number:
        return "nan"
    if math.isinf(number):
        return f"{MINUS if number < 0 else ''}{INFINITY}"
    return f"{number:.4g}".replace("-", MINUS) if number else "0"


def _numbers_text(numbers: Sequence[Number]) -> str:
    """Numbers separated by commas: "12, nan"."""
    return ", ".join(map(number_text, numbers))


def _cells(row: EdgeRow) -> list[str]:
    torch = (
        "same"
        if row.agrees
        else (f"NOT the same: {number_text(row.torch_value)}; {_numbers_text(row.torch_gradients)}")
    )
    elsewhere = "\n".join(
        f"{name} {_numbers_text(gradients)}" if len(gradients) == 1 else f"{name} ({_numbers_text(gradients)})"
        for name, gradients in row.elsewhere.items()
    )
    return [
        row.operation,
        _numbers_text(row.point),
        number_text(row.value),
        _numbers_text(row.gradients),
        torch,
        elsewhere,
        f"{'a choice: ' if row.kind == 'a choice' else ''}{row.why}",
    ]


def _in_words(row: EdgeRow, cells: dict[str, str]) -> str:
    elsewhere = f" Elsewhere {', '.join(cells['elsewhere'].splitlines())}." if row.elsewhere else ""
    return (
        f"{cells['operation']} at {cells['at']}: value {cells['value']}, gradient {cells['gradient']}, "
        f"torch {cells['torch']}.{elsewhere} Why: {cells['why']}."
    )


def _style(column: str) -> str:
    if column == "why":
        return STYLE["td"] + TIGHT + "min-width:8em;overflow-wrap:normal;"
    font = STYLE["code"] if column in ("operation", "at", "value", "gradient") else ""
    return STYLE["td"] + TIGHT + font + "white-space:pre-wrap;overflow-wrap:normal;"


def _flat(numbers: Iterable[Number]) -> list[float]:
    return [float(x) for number in numbers for x in (number if isinstance(number, Sequence) else [number])]
