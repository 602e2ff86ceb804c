"""Grids with named rows and columns: the logit lens, differences by token, statistics by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_grpo_kit.viz.chart import CHARACTER, Chart
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE, ZERO, ink_on, shades, three_digits

FEW = 14  # with up to this many columns, each cell shows its text
LEAST, MOST = 1e-7, 1.0  # differences: white below, orange from here on


def draw_lens(
    read: Sequence[str], places: Sequence[str], said: Sequence[Sequence[str]], shares: Any, *, title: str = ""
) -> tuple[Chart, str]:
    """(chart, words): the model's next token after each token, if it ended at each place.

    Args:
        read: the T tokens, shown above the columns
        places: the P names from the first to the last, shown before the rows
        said: [P, T], the likeliest next token; bold where it is the same as in the last row
        shares: [P, T], their probabilities; a stronger blue means a higher probability
    """
    quoted = [
        [f"\N{LEFT DOUBLE QUOTATION MARK}{token}\N{RIGHT DOUBLE QUOTATION MARK}" for token in row] for row in said
    ]
    color = shades(0, 1, (ZERO, POSITIVE))
    bold = [[token == last for token, last in zip(row, said[-1], strict=True)] for row in said]
    chart = _grid(
        places,
        [f"\N{LEFT DOUBLE QUOTATION MARK}{token}\N{RIGHT DOUBLE QUOTATION MARK}" for token in read],
        shares,
        color,
        lambda row, column: quoted[row][column],
        title=title,
        bold=bold,
        above="it has read, up to:",
        below="bold: the same token as in the last row; blue: its probability",
    )
    sentences = []
    for column, token in enumerate(read):
        steps = [f"{place} {said[row][column]!r} {float(shares[row][column]):.0%}" for row, place in enumerate(places)]
        sentences.append(f"Up to {token!r}: {', '.join(steps)}.")
    return chart, f"{title + '. ' if title else ''}{' '.join(sentences)}"


def draw_differences(differences: Mapping[str, Any], tokens: Sequence[str], *, title: str = "") -> tuple[Chart, str]:
    """(chart, words): the difference of two models in each inner value, in the order of computation, at each token.

    differences: name -> [T], as shares of the largest number under the name. White is rounding, orange a difference.
    """
    color = shades(math.log10(LEAST), math.log10(MOST), (ZERO, ZERO, NEGATIVE, NEGATIVE))
    numbers = [[float(each) for each in row] for row in differences.values()]
    logs = [[_log(each) for each in row] for row in numbers]
    chart = _grid(
        list(differences),
        tokens,
        logs,
        color,
        lambda row, column: _short(numbers[row][column]),
        title=title,
        above="at each token:",
        below="largest difference, as a share of the largest number under the name",
        height=20,
    )
    off = {
        name: [token for token, each in enumerate(row) if not each <= 1e-4]
        for name, row in zip(differences, numbers, strict=True)
    }
    first = next((name for name, places in off.items() if places), None)
    if first is None:
        words = "No difference beyond rounding."
    else:
        right = [place for place in range(len(tokens)) if place not in off[first]]
        words = f"The first difference is in {first}, " + (
            f"at all tokens except number {', '.join(map(str, right))}." if right else "at all tokens."
        )
        last = list(off)[-1]
        words += f" {last}: {'different' if off[last] else 'no difference beyond rounding'}."
    return chart, f"{title + '. ' if title else ''}{words}"


def draw_statistics(
    rows: Mapping[str, Sequence[float]], columns: Sequence[str], *, title: str = ""
) -> tuple[Chart, str]:
    """(chart, words): numbers above 0, such as the size of each inner value in each layer; larger numbers are bluer."""
    numbers = [[float(each) for each in row] for row in rows.values()]
    sizes = [math.log10(each) for row in numbers for each in row if each > 0]
    low, high = min(sizes), max(sizes)
    color = shades(low, max(high, low + 0.1), (ZERO, POSITIVE))
    chart = _grid(
        list(rows),
        columns,
        [[math.log10(each) if each > 0 else low for each in row] for row in numbers],
        color,
        lambda row, column: three_digits(numbers[row][column]),
        title=title,
    )
    said = "; ".join(
        f"{name} from {three_digits(row[0])} to {three_digits(row[-1])}"
        if len(row) > 1
        else f"{name} {three_digits(row[0])}"
        for name, row in zip(rows, numbers, strict=True)
    )
    return chart, f"{title + '. ' if title else ''}From {columns[0]} to {columns[-1]}: {said}."


def _short(number: float) -> str:
    return f"{number:.0f}" if number == 0 or number >= 0.95 else f"{number:.0e}".replace("e-0", "e-")


def _log(number: float) -> float:
    return math.log10(min(max(number, LEAST), MOST)) if number == number else math.log10(MOST)


def _grid(
    rows: Sequence[str],
    columns: Sequence[str],
    numbers: Any,
    color: Callable[[float], str],
    words: Callable[[int, int], str],
    *,
    title: str,
    bold: Sequence[Sequence[bool]] | None = None,
    above: str = "",
    below: str = "",
    height: float = 26,
) -> Chart:
    """Coloured cells; with many columns they are narrow and have no text."""
    left = 20 + CHARACTER * 12.5 * max(map(len, [*rows, above]))
    width = 64 if len(columns) <= FEW else max(6.0, 64 * FEW / len(columns))
    chart = Chart(max(left + width * len(columns) + 14, 460), 66 + height * len(rows) + (26 if below else 8))
    chart.text(14, 22, title, size=14, bold=True)
    chart.text(left - 8, 49, above, size=12, anchor="end", color="soft")
    stride = math.ceil(24 / width)
    for column, name in enumerate(columns):
        if column % stride == 0:
            chart.text(left + (column + 0.5) * width, 49, name, size=12, anchor="middle")
    for row, name in enumerate(rows):
        top = 58 + row * height
        chart.text(left - 8, top + height / 2 + 4.5, name, size=12.5, anchor="end")
        for column in range(len(columns)):
            at = left + column * width
            fill = color(float(numbers[row][column]))
            chart.bar(at, top, width - 1, height - 1, fill)
            if len(columns) <= FEW:
                is_bold = bool(bold and bold[row][column])
                middle = at + (width - 1) / 2
                chart.text(
                    middle,
                    top + height / 2 + 4,
                    words(row, column),
                    size=12,
                    anchor="middle",
                    color=ink_on(fill),
                    bold=is_bold,
                )
    chart.text(left, 58 + height * len(rows) + 17, below, size=11.5, color="soft")
    return chart
