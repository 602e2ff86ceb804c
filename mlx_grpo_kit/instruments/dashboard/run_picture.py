"""A still picture of a whole run: small curves with few points, the state in words, and one group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlx_grpo_kit.instruments.dashboard.panels import SMOOTHING, RunPanel, names_of, run_panels
from mlx_grpo_kit.runs.record import RunRecord, transcript
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.live.completions import CompletionsTable, completions_table
from mlx_grpo_kit.viz.live.curves import comes_now_and_then, curve, describe_curves, smooth
from mlx_grpo_kit.viz.style import COLORS, LINE_STYLES, three_digits

MOST_POINTS = 240  # per line; in a longer run, each point is the mean of a few steps
COLUMNS = 2
WIDTH, HEIGHT = 320, 190  # pixels per panel
ROWS_LEFT = 8  # rows of the table that are kept


def chart_run(steps: Sequence[Any], abandoned: Sequence[Sequence[Any]] = (), title: str = "") -> tuple[Chart, str]:
    """Draw a picture of a run; return it and its description in words.

    Args:
        steps: objects with `.step` and `.metrics`.
        abandoned: the steps that each rewind discarded; drawn in grey, and numbered if there are several rewinds.
    """
    metrics = dict.fromkeys(name for run in (steps, *abandoned) for step in run for name in step.metrics)
    panels = [panel for panel in run_panels(list(metrics)) if not panel.more]
    header = 34 if title else 6
    rows = math.ceil(len(panels) / COLUMNS)
    chart = Chart(WIDTH * COLUMNS, header + HEIGHT * rows)
    if title:
        chart.text(14, 24, title, size=16, bold=True)
    last = max((run[-1].step for run in (steps, *abandoned) if run), default=1)
    for place, panel in enumerate(panels):
        row, column = divmod(place, COLUMNS)
        _draw(chart, (WIDTH * column + 58, header + HEIGHT * row + 28), panel, steps, abandoned, last)
    history = {name: _column(steps, name) for name in names_of(panels)}
    shown = {panel.title: [name for name in panel.lines.values() if _finite(history[name])] for panel in panels}
    words = describe_curves(
        [step.step for step in steps if step.step], history, shown, title=title, smoothing=SMOOTHING
    )
    if abandoned:
        words += f" {len(abandoned)} abandoned {'branch' if len(abandoned) == 1 else 'branches'} in grey"
        words += ", numbered." if len(abandoned) > 1 else "."
    return chart, words


def run_in_words(record: RunRecord, state: str, seconds: float) -> str:
    """Describe a run in one line: "running: step 37 of 300 · reward 0.710 · 12 s"."""
    steps = record.steps
    if not steps:
        return state
    total = f" of {record.max_steps}" if record.max_steps else ""
    words = [f"{state}: step {steps[-1].step}{total}"]
    reward = steps[-1].metrics.get("reward", math.nan)
    if math.isfinite(reward):
        words.append(f"reward {three_digits(reward)}")
    if seconds:
        words.append(f"{seconds:.0f} s")
    return " · ".join(words)


def table_of(record: RunRecord) -> CompletionsTable | None:
    """Return one group of the last step whose completions were kept, as a table with their turns; None if none was."""
    last = next((step for step in reversed(record.steps) if step.line is not None), None)
    rows = last.completions if last else []
    group = [row for row in rows if (row.group, row.prompt) == (rows[0].group, rows[0].prompt)][:ROWS_LEFT]
    told = [replace(row, completion=transcript(row)) for row in group]
    return completions_table(told, title=f"One group of step {last.step}") if group else None


def _draw(
    chart: Chart,
    corner: tuple[float, float],
    panel: RunPanel,
    steps: Sequence[Any],
    abandoned: Sequence[Sequence[Any]],
    last: int,
) -> None:
    lines = {words: _thinned(steps, name, panel.smoothing) for words, name in panel.lines.items()}
    lines = {words: line for words, line in lines.items() if _finite(line[1])}
    greys = [_thinned(branch, next(iter(panel.lines.values())), panel.smoothing) for branch in abandoned]
    band = _band(panel, steps)
    heights = [y for _, ys in [*lines.values(), *greys, *band] for y in _finite(ys)]
    low, high = (min(heights), max(heights)) if heights else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.05
    legend = (
        (17 * len(lines) + 8) / (HEIGHT - 64) if len(lines) > 1 else 0.0
    )  # the legend's share of the height, above the lines
    room = (high - low + 2 * margin) * legend / (1 - min(legend, 0.7))
    now = _finite(_column(steps, next(iter(panel.lines.values()))))
    plane = chart.plane(
        *corner,
        *(WIDTH - 82, HEIGHT - 64),
        x=(0, max(last, 5)),
        y=(low - margin, high + margin + room),
        title=panel.title,
        right=_words(now[-1]) if now else "",
    )
    for number, (xs, ys) in enumerate(greys):
        plane.line(xs, ys, COLORS[5], style=LINE_STYLES[number % 4], width=1.5)
        ends = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
        if len(greys) > 1 and ends:
            plane.text(*ends[-1], str(number + 1), dx=3, dy=4, size=11, color="soft")
    for xs, ys in band:
        plane.line(xs, ys, COLORS[0], width=0.8)
    for place, (words, (xs, ys)) in enumerate(lines.items()):
        plane.line(xs, ys, COLORS[place % 5], style=LINE_STYLES[place % 4], label=words)
    if len(lines) > 1:
        plane.legend("upper right", size=11)
    if not heights:
        words = panel.empty if steps else "no values yet"
        plane.text(max(last, 5) / 2, (low + high) / 2, words, size=11, anchor="middle", color="soft")


def _band(panel: RunPanel, steps: Sequence[Any]) -> list[tuple[list[float], list[float]]]:
    if panel.between:
        return [_thinned(steps, name) for name in panel.between]
    if panel.spread:
        xs, middle = _thinned(steps, next(iter(panel.lines.values())))
        _, spread = _thinned(steps, panel.spread)
        low, high = (_thinned(steps, name)[1] for name in panel.within)
        below = [a - b if math.isnan(end) else max(a - b, end) for a, b, end in zip(middle, spread, low, strict=True)]
        above = [a + b if math.isnan(end) else min(a + b, end) for a, b, end in zip(middle, spread, high, strict=True)]
        return [(xs, below), (xs, above)]
    return []


def _thinned(steps: Sequence[Any], name: str, smoothing: float = SMOOTHING) -> tuple[list[float], list[float]]:
    """Return (steps, smoothed values), at most MOST_POINTS of them."""
    values = _column(steps, name)
    if comes_now_and_then(values):
        places, heights = curve(values, smoothing)
        return [steps[place].step for place in places], heights
    values = smooth(values, smoothing)
    size = math.ceil(len(steps) / MOST_POINTS) or 1
    pieces = range(0, len(steps), size)
    xs = [steps[min(at + size, len(steps)) - 1].step for at in pieces]
    return xs, [_mean(values[at : at + size]) for at in pieces]


def _mean(values: Sequence[float]) -> float:
    """Return the mean, rounded to six digits so that a constant stays constant."""
    values = _finite(values)
    return float(f"{sum(values) / len(values):.6g}") if values else math.nan


def _words(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else three_digits(value)


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _column(steps: Sequence[Any], name: str) -> list[float]:
    return [step.metrics.get(name, math.nan) for step in steps]
