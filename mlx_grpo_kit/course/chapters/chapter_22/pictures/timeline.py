"""Who did what when: bars on lanes, for one run or several below each other, all on one scale of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlx_grpo_kit.viz.chart import CHARACTER, Chart, ticks
from mlx_grpo_kit.viz.style import COLORS, ink_on, short_number

WIDTH, LEFT, RIGHT = 1000, 150, 24  # pixels: of the page, of the lanes' names, free at the end
LANE, BAR = 30, 22
PALE = "#c9c9ce"
GRID = "#8c959f59"  # lets a third of it through: faint on a white page and on a black one


class Bar(NamedTuple):
    """What somebody did from `start` to `end`; `label` is written into it where there is room."""

    lane: str
    kind: str
    start: float
    end: float
    label: str = ""


def draw_timeline(
    runs: Mapping[str, Sequence[Bar]], *, title: str, unit: str = "ms", kinds: Sequence[str] = ()
) -> tuple[Chart, str]:
    """(chart, words): for each run its lanes, and how long it took.

    Args:
        runs: bars by the run's name, which stands above its lanes.
        title: words above.
        unit: of time.
        kinds: their order gives colours; by default that of their appearance. Those that begin with "waits" are pale.
    """
    bars = [bar for run in runs.values() for bar in run]
    kinds = [*dict.fromkeys([*kinds, *(bar.kind for bar in bars)])]
    working = [kind for kind in kinds if not kind.startswith("waits")]
    colors = {kind: COLORS[working.index(kind) % len(COLORS)] if kind in working else PALE for kind in kinds}
    end = max((bar.end for bar in bars), default=1.0) or 1.0
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
        chart.text(LEFT + total * scale, top + 20, f"{short_number(total)} {unit}", size=12.5, anchor="end", bold=True)
        for at, _ in grid:  # beside the lanes: names and times stand above them
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
