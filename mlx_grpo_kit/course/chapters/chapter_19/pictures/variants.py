"""Variants of a loss side by side: their pushes on tokens, the directions of their gradients, and runs by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, FAINT, INK, NEGATIVE, ORANGE, POSITIVE, ZERO, shades

CELL, ROW = 72, 34
MINUS = "\N{MINUS SIGN}"


def draw_pushes(
    tokens: Sequence[Sequence[str]],
    rewards: Sequence[float],
    sides: Mapping[str, Any],
    largest: float,
    title: str = "",
) -> tuple[Chart, str]:
    """(chart, words): the completions of one prompt, one per row, and how two or more losses push their tokens.

    Args:
        tokens: the tokens of each completion, as texts.
        rewards: one per completion.
        sides: for each loss, [completions, T] shares of its pushes in percent; positive is up.
        largest: the share that gets the full colour.
    """
    columns = max(map(len, tokens))
    width = CELL * columns + 34
    chart = Chart(150 + width * len(sides), 84 + ROW * len(tokens))
    chart.text(14, 24, title, size=14, bold=True)
    chart.text(14, 62, "answer", size=12.5, color="soft")
    chart.text(92, 62, "reward", size=12.5, color="soft")
    color = shades(-largest, largest, (NEGATIVE, ZERO, POSITIVE))
    for side, name in enumerate(sides):
        chart.text(150 + width * side, 62, name, size=14, bold=True)
    for row, (names, reward) in enumerate(zip(tokens, rewards, strict=True)):
        y = 72 + ROW * row
        chart.digits(14, y + 21, [("".join(name for name in names if name != "end"), "ink")], size=14)
        chart.text(100, y + 21, f"{reward:g}", size=13)
        for side, pushes in enumerate(sides.values()):
            for column, token in enumerate(names):
                x, push = 150 + width * side + CELL * column, float(pushes[row][column])
                chart.bar(x, y, CELL - 3, ROW - 4, FAINT)
                chart.bar(x + 1, y + 1, CELL - 5, ROW - 6, color(push))
                chart.text(x + 5, y + 20, token, size=13, color=INK)
                chart.text(x + CELL - 7, y + 20, _signed(push), size=11, anchor="end", color=INK)
    answers = ["".join(name for name in names if name != "end") for names in tokens]
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{answer} " + " ".join(_signed(float(push)) for push in pushes[row][: len(tokens[row])])
            for row, answer in enumerate(answers)
        )
        for name, pushes in sides.items()
    )
    return chart, f"{title} Percent of all pushes, token by token. {told}."


def draw_cosines(names: Sequence[str], tables: Mapping[str, Any]) -> tuple[Chart, str]:
    """(chart, words): cosines between gradients, a square table [N, N] for each heading."""
    size, left = 36 * len(names), 118
    chart = Chart(left + (size + 30) * len(tables), size + 150)
    color = shades(-1, 1, (NEGATIVE, ZERO, POSITIVE))
    words = []
    for place, (title, table) in enumerate(tables.items()):
        x = left + (size + 30) * place
        sheet = chart.add(Sheet(x, 40, size, table, color, title=title))
        sheet.write([[f"{value:.2f}".replace("-", MINUS).replace("0.", ".") for value in row] for row in table], 11.5)
        for column, name in enumerate(names):
            chart.text(x + sheet.cell * (column + 0.5), size + 56 + 13 * (column % 3), name, size=10, anchor="middle")
        least = min(range(1, len(names)), key=lambda other: table[0][other])
        words.append(
            f"{title}: with {names[0]} "
            + ", ".join(f"{name} {table[0][place]:.2f}" for place, name in enumerate(names) if place)
            + f"; the lowest is {names[least]}"
        )
    for row, name in enumerate(names):
        chart.text(left - 8, 40 + 36 * (row + 0.5) + 4, name, size=12, anchor="end")
    return chart, f"Cosines between the gradients of {len(names)} variants. {'. '.join(words)}."


def draw_seeds(results: Mapping[str, Sequence[float]], xlabel: str, first: float | None = None) -> tuple[Chart, str]:
    """(chart, words): for each variant one dot per seed, the mean (orange), and a bar of two standard errors around it.

    Args:
        results: by variant, one number per seed; the first variant is the one to compare with.
        xlabel: the name of the numbers.
        first: a value before training, drawn as a dotted line.
    """
    values = [value for each in results.values() for value in each]
    errors = [mean_and_error(each) for each in results.values()]
    values += [mean + sign * 2 * error for mean, error in errors for sign in (-1, 1)]
    low, high = min([*values, *([first] if first is not None else [])]), max(values)
    margin = 0.06 * (high - low or 1)
    step = 88 if len(results) <= 10 else 70
    chart = Chart(70 + max(step * len(results), 7.5 * len(xlabel)), 380)
    plane = chart.plane(
        *(58, 34, step * len(results), 280), x=(-0.5, len(results) - 0.5), y=(low - margin, high + margin),
        title=xlabel, numbers=False,
    )  # fmt: skip
    if first is not None:
        plane.across(first, label="before")
    words = []
    for place, (name, each) in enumerate(results.items()):
        mean, error = mean_and_error(each)
        plane.line([place, place], [mean - 2 * error, mean + 2 * error], COLORS[0], width=3)
        offsets = [place + 0.18 + 0.05 * number for number in range(len(each))]
        plane.dots(offsets, each, COLORS[0], size=5)
        plane.line([place - 0.14, place + 0.14], [mean, mean], ORANGE, width=3)
        x = 58 + step * (place + 0.5)
        chart.text(x, 336 + 17 * (place % 2), name, size=13, anchor="middle", bold=not place)
        words.append(f"{name} {mean:.3f} \N{PLUS-MINUS SIGN} {error:.3f}")
    return chart, f"{xlabel}, mean and standard error over {len(each)} seeds: {', '.join(words)}."


def draw_curves(curves: Mapping[str, Sequence[float]], updates: int, title: str = "") -> tuple[Chart, str]:
    """(chart, words): one small chart per variant: its reward in blue, the first variant's reward in grey.

    Args:
        curves: by variant, rewards at evenly spaced points of a run.
        updates: the number of updates of the run.
    """
    names = [*curves]
    columns = 5
    rows = math.ceil((len(names)) / columns)
    chart = Chart(970, 46 + 172 * rows)
    chart.text(14, 22, title, size=14, bold=True)
    values = [value for curve in curves.values() for value in curve]
    reference, told = curves[names[0]], []
    for place, name in enumerate(names):
        row, column = divmod(place, columns)
        plane = chart.plane(
            *(40 + 188 * column, 58 + 172 * row, 140, 112), x=(0, updates), y=(min(values), max(values)), title=name
        )
        for curve, color, width in ((reference, COLORS[5], 2.0), (curves[name], COLORS[0], 2.2)):
            xs = [updates * (point + 0.5) / len(curve) for point in range(len(curve))]
            if curve is not reference or place == 0 or color == COLORS[5]:
                plane.line(xs, curve, color, width=width)
        told.append(f"{name} from {curves[name][0]:.2f} to {curves[name][-1]:.2f}")
    return chart, f"{title} Mean reward along the run: {', '.join(told)}."


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error: the standard deviation (dividing by n - 1) divided by the root of n."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def _signed(value: float) -> str:
    return "0" if abs(value) < 0.005 else f"{value:+.1f}".replace("-", MINUS)
