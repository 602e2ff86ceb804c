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
from mlx_grpo_kit.viz.live.curves import CurvePanel, Line, curve, describe_curves, draw_panels
from mlx_grpo_kit.viz.style import COLORS, LINE_STYLES, three_digits

MOST_POINTS = 240  # per line; in a longer run, each point is the mean of a few steps
HEIGHT = 190  # pixels per panel
ROWS_LEFT = 8  # rows of the table that are kept


def chart_run(steps: Sequence[Any], abandoned: Sequence[Sequence[Any]] = (), title: str = "") -> tuple[Chart, str]:
    """Draw a picture of a run; return it and its description in words.

    Args:
        steps: objects with `.step` and `.metrics`.
        abandoned: the steps that each rewind discarded; drawn in grey, and numbered if there are several rewinds.
    """
    metrics = dict.fromkeys(name for run in (steps, *abandoned) for step in run for name in step.metrics)
    panels = [panel for panel in run_panels(list(metrics)) if not panel.more]
    last = max((run[-1].step for run in (steps, *abandoned) if run), default=1)
    drawn = [_curve(panel, steps, abandoned) for panel in panels]
    chart = draw_panels(drawn, last, title=title, height=HEIGHT, xlabel="")
    history = {name: _column(steps, name) for name in names_of(panels)}
    shown = {panel.title: [name for name in panel.lines.values() if _finite(history[name])] for panel in panels}
    words = describe_curves(
        [step.step for step in steps if step.step], history, shown, title=title, smoothing=SMOOTHING
    )
    if abandoned:
        words += f" {len(abandoned)} abandoned {'branch' if len(abandoned) == 1 else 'branches'} in grey"
        words += ", numbered." if len(abandoned) > 1 else "."
    return chart, words


def table_of(record: RunRecord) -> CompletionsTable | None:
    """Return one group of the last step whose completions were kept, as a table with their turns; None if none was."""
    last = next((step for step in reversed(record.steps) if step.line is not None), None)
    rows = last.completions if last else []
    group = [row for row in rows if (row.group, row.prompt) == (rows[0].group, rows[0].prompt)][:ROWS_LEFT]
    told = [replace(row, completion=transcript(row)) for row in group]
    return completions_table(told, title=f"One group of step {last.step}") if group else None


def _curve(panel: RunPanel, steps: Sequence[Any], abandoned: Sequence[Sequence[Any]]) -> CurvePanel:
    first = next(iter(panel.lines.values()))
    lines = []
    for number, branch in enumerate(abandoned):
        points, look = _thinned(branch, _column(branch, first), panel.smoothing), {"style": LINE_STYLES[number % 4]}
        lines.append(Line(*points, COLORS[5], look | {"width": 1.5}, end=str(number + 1) if len(abandoned) > 1 else ""))
    lines += [Line(*points, COLORS[0], {"width": 0.8}) for points in _band(panel, steps)]
    for place, (words, name) in enumerate(panel.lines.items()):
        points = _thinned(steps, _column(steps, name), panel.smoothing)
        lines.append(Line(*points, COLORS[place % 5], {"style": LINE_STYLES[place % 4], "label": words}))
    now = _finite(_column(steps, first))
    return CurvePanel(
        panel.title,
        [line for line in lines if _finite(line.heights)],
        right=_words(now[-1]) if now else "",
        legend=len(panel.lines) > 1,
        empty=panel.empty if steps else "no values yet",
    )


def _band(panel: RunPanel, steps: Sequence[Any]) -> list[tuple[list[float], list[float]]]:
    """Return the points of the lower and the upper edge of the band, if the panel has one."""
    if panel.between:
        return [_thinned(steps, _column(steps, name)) for name in panel.between]
    if not panel.spread:
        return []
    names = (next(iter(panel.lines.values())), panel.spread, *panel.within)
    rows = list(zip(*(_column(steps, name) for name in names), strict=True))
    below = [a - b if math.isnan(low) else max(a - b, low) for a, b, low, _ in rows]
    above = [a + b if math.isnan(high) else min(a + b, high) for a, b, _, high in rows]
    return [_thinned(steps, edge) for edge in (below, above)]


def _thinned(
    steps: Sequence[Any], values: Sequence[float], smoothing: float = SMOOTHING
) -> tuple[list[float], list[float]]:
    """Return (steps, heights) of the curve, at most MOST_POINTS of them."""
    places, heights = curve(values, smoothing)
    size = math.ceil(len(places) / MOST_POINTS) or 1
    pieces = [slice(at, at + size) for at in range(0, len(places), size)]
    return [steps[places[piece][-1]].step for piece in pieces], [_mean(heights[piece]) for piece in pieces]


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
