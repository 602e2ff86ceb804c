"""A model's parameters, operations and bytes: bars in parts, and a plan of which machine they fit into."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import CHARACTER, Chart
from mlx_grpo_kit.viz.style import COLORS, ink_on

PART_COLORS = {
    "embedding": COLORS[0],
    "attention": COLORS[1],
    "scores": "#e7c300",
    "mlp": COLORS[3],
    "norms": COLORS[2],
    "output layer": "#3d9970",
}
MACHINES = {"a laptop of 16 GB": 16e9, "a GPU of 80 GB": 80e9}
SMALLEST, LARGEST = 1e5, 1e13  # bytes, the ends of the plan's axis, which grows for larger numbers
WIDTH, LEFT, LONGEST = 900, 150, 560


def amount(number: float, unit: str = "") -> str:
    """A large number in words of three digits: 596049920 is "596 million"."""
    names = {1e18: "quintillion", 1e15: "quadrillion", 1e12: "trillion", 1e9: "billion", 1e6: "million"}
    for size, name in names.items():
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {name} {unit}".rstrip()
    return f"{number:,.0f} {unit}".rstrip()


def in_bytes(number: float) -> str:
    """Bytes in words of three digits: 1.19e9 is "1.19 GB"."""
    for size, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f} bytes"


def draw_shares(
    rows: Mapping[str, Mapping[str, float]], *, units: Sequence[str] | str = "", title: str = ""
) -> tuple[Chart, str]:
    """(chart, words): one bar per row, all equally long, divided into its parts, with its total after it.

    Args:
        rows: name -> {part: amount}; the parts are keys of `PART_COLORS`
        units: the unit after each total, one for all rows or one per row
    """
    units = [units] * len(rows) if isinstance(units, str) else units
    chart = Chart(WIDTH, 78 + 36 * len(rows))
    _legend(chart, list(dict.fromkeys(part for parts in rows.values() for part in parts)), title)
    words = [
        _share_bar(chart, 66 + 36 * row, name, parts, unit)
        for row, ((name, parts), unit) in enumerate(zip(rows.items(), units, strict=True))
    ]
    return chart, f"{title + '. ' if title else ''}{' '.join(words)}"


def draw_plan(
    parameters: Mapping[str, float], operations: Mapping[str, float], memory: Mapping[str, float], *, title: str
) -> tuple[Chart, str]:
    """(chart, words): the parts of parameters and operations, and bytes on a logarithmic axis with two machines.

    Args:
        parameters, operations: {part: amount}, parts of `PART_COLORS`
        memory: {purpose: bytes}
    """
    chart = Chart(WIDTH, 208 + 30 * len(memory))
    _legend(chart, list(dict.fromkeys([*parameters, *operations])), title)
    words = [
        _share_bar(chart, 66, "parameters", parameters, ""),
        _share_bar(chart, 102, "operations", operations, "FLOPs"),
    ]
    top, bottom = 172, 172 + 30 * len(memory)
    first, last = round(math.log10(SMALLEST)), round(math.log10(LARGEST))
    last += 2 * max(0, math.ceil((math.log10(max([1, *memory.values()])) - last) / 2))

    def place(size: float) -> float:
        share = (math.log10(max(size, SMALLEST)) - first) / (last - first)
        return LEFT + LONGEST * share

    for exponent in range(first, last + 1, 2):
        chart.text(place(10.0**exponent), bottom + 18, in_bytes(10.0**exponent), size=11, anchor="middle", color="soft")
        chart.bar(place(10.0**exponent), bottom, 1, 4, "#59636e")
    for name, size in MACHINES.items():
        chart.bar(place(size), top - 6, 1.2, bottom - top + 6, "#8a8a8a")
        anchor = "end" if size == min(MACHINES.values()) else "start"
        chart.text(place(size) + (3 if anchor == "start" else -3), top - 10, name, size=11, anchor=anchor, color="soft")
    for row, (purpose, size) in enumerate(memory.items()):
        y = top + 30 * row
        chart.text(LEFT - 8, y + 15, purpose, anchor="end")
        length = max(place(size) - LEFT, 1)
        chart.bar(LEFT, y + 2, length, 19, COLORS[0])
        chart.text(LEFT + LONGEST + 8, y + 16, in_bytes(size), size=12.5, bold=True)
        words.append(f"{purpose}: {in_bytes(size)}, {_where(size)}.")
    return chart, f"{title}. {' '.join(words)}"


def _where(size: float) -> str:
    fits = [name for name, room in MACHINES.items() if size <= room]
    return f"fits into {fits[0]}" if fits else "fits into neither machine"


def _legend(chart: Chart, parts: Sequence[str], title: str) -> None:
    chart.text(14, 22, title, size=14, bold=True)
    left = LEFT
    for part in parts:
        chart.bar(left, 36, 12, 12, PART_COLORS[part])
        chart.text(left + 17, 47, part, size=12)
        left += 36 + CHARACTER * 12 * len(part)


def _share_bar(chart: Chart, top: float, name: str, parts: Mapping[str, float], unit: str) -> str:
    """Draw a bar with its shares, and return the words for it."""
    total = sum(parts.values())
    chart.text(LEFT - 8, top + 17, name, anchor="end")
    left, said = LEFT, []
    for part, size in parts.items():
        share = size / total
        chart.bar(left, top, LONGEST * share, 24, PART_COLORS[part])
        if share >= 0.055:
            ink = ink_on(PART_COLORS[part])
            chart.text(left + LONGEST * share / 2, top + 17, f"{share:.0%}", size=12, anchor="middle", color=ink)
        if size:
            said.append(f"{part} {share:.0%}" if share >= 0.005 else f"{part} {share:.1g}".replace("e-0", "e-"))
        left += LONGEST * share
    chart.text(LEFT + LONGEST + 8, top + 17, amount(total, unit), size=12.5, bold=True)
    return f"{name}: {amount(total, unit)}; {', '.join(said)}."
