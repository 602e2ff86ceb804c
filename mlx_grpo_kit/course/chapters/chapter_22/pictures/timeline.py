"""A timeline: bars on lanes, for one run or several runs below each other, all on one time scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlx_grpo_kit.viz.chart import CHARACTER, Chart, ticks
from mlx_grpo_kit.viz.style import COLORS, ink_on, short_number

WIDTH, LEFT, RIGHT = 1000, 150, 24  # pixels: the page, the names of the lanes, the margin at the end
LANE, BAR = 30, 22
PALE = "#c9c9ce"
GRID = "#8c959f59"  # transparent: faint on a white page and on a black page


class Bar(NamedTuple):
    """An activity on a lane from `start` to `end`; `label` is written into the bar if there is room."""

    lane: str
    kind: str
    start: float
    end: float
    label: str = ""


def draw_timeline(
    runs: Mapping[str, Sequence[Bar]], *, title: str, unit: str = "ms", kinds: Sequence[str] = (), until: float = 0.0
) -> tuple[Chart, str]:
    """(chart, words): the lanes of each run, and its duration.

    Args:
        runs: the bars of each run, by the run's name, which is written above its lanes.
        title: the text above the picture.
        unit: the unit of time.
        kinds: the kinds in the order of their colours; by default the order of appearance. A kind that begins with
            "waits" is pale.
        until: the end of the time axis, if no run takes longer. A fixed end makes pictures comparable.
    """
    bars = [bar for run in runs.values() for bar in run]
    kinds = [*dict.fromkeys([*kinds, *(bar.kind for bar in bars)])]
    working = [kind for kind in kinds if not kind.startswith("waits")]
    colors = {kind: COLORS[working.index(kind) % len(COLORS)] if kind in working else PALE for kind in kinds}
    end = max([until, *(bar.end for bar in bars)]) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / end
    heights = [34 + LANE * len({bar.lane for bar in run}) for run in runs.values()]
    chart = Chart(WIDTH, 66 + sum(heights) + 44)
    chart.text(14, 24, title, size=15)
    x = 14.0
    for kind in kinds:
        chart.bar(x, 40, 14, 12, colors[kind])
        chart.text(x + 20, 51, kind, size=12.5)
        x += 44 + CHARACTER * 12.5 * len(kind)
    top, said = 66.0, []
    bottom = top + sum(heights)
    grid = [(LEFT + number * scale, words) for number, words in ticks((0, end), False, 10)]
    for at, words in grid:
        chart.text(at, bottom + 16, words, size=11, anchor="middle", color="soft")
    chart.text(LEFT + (WIDTH - LEFT - RIGHT) / 2, bottom + 36, f"time ({unit})", size=12, anchor="middle")
    for (name, run), height in zip(runs.items(), heights, strict=True):
        total = max((bar.end for bar in run), default=0.0)
        lanes = [*dict.fromkeys(bar.lane for bar in run)]
        chart.text(14, top + 20, name, size=13.5, bold=True)
        duration = f"{short_number(total)} {unit}"
        after_the_name = 14 + CHARACTER * (14.5 * len(name) + 13.5 * len(duration)) + 12
        right = max(LEFT + total * scale, after_the_name)
        chart.text(right, top + 20, duration, size=12.5, anchor="end", bold=True)
        for at, _ in grid:  # only behind the lanes: names and durations are above them
            chart.bar(at, top + 28, 0.8, height - 28, GRID)
        for bar in run:
            y = top + 30 + LANE * lanes.index(bar.lane)
            left, width = LEFT + bar.start * scale, max((bar.end - bar.start) * scale, 1.0)
            chart.bar(left, y, max(width - 0.8, 1.0), BAR, colors[bar.kind])
            if width > 8 + CHARACTER * 11 * len(bar.label):
                chart.text(
                    left + width / 2, y + 15, bar.label, size=11, anchor="middle", color=ink_on(colors[bar.kind])
                )
        busy = {
            lane: sum(bar.end - bar.start for bar in run if bar.lane == lane and bar.kind in working) for lane in lanes
        }
        for row, lane in enumerate(lanes):
            chart.text(LEFT - 8, top + 30 + LANE * row + 15, lane, size=12.5, anchor="end")
        shares = ", ".join(f"{lane} busy {busy[lane] / (total or 1):.0%}" for lane in lanes)
        said.append(f"{name}: {short_number(total)} {unit}, {shares}")
        top += height
    return chart, f"{title}. {'. '.join(said)}."
