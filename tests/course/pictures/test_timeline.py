"""Bars are placed by their times on the lanes of their run, and the words agree with them."""

import re

from mlx_grpo_kit.course.chapters.chapter_22.pictures.timeline import GRID, LANE, LEFT, RIGHT, WIDTH, Bar, draw_timeline
from mlx_grpo_kit.viz.chart import ticks

RUNS = {
    "one": [Bar("loop", "prepares", 0, 10, "1"), Bar("thread", "learns", 10, 40, "a long label for this bar")],
    "two": [Bar("thread", "learns", 0, 20), Bar("thread", "waits for it", 20, 30), Bar("loop", "prepares", 5, 80)],
}


def rectangles(svg):
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="22.0" fill="(#\w+)"', svg)
    return [(float(x), float(y), float(width), color) for x, y, width, color in found]


def test_bars_are_placed_by_their_times():
    chart, words = draw_timeline(RUNS, title="who does what", unit="s")
    bars = rectangles(chart.svg(words))
    scale = (WIDTH - LEFT - RIGHT) / 80
    assert len(bars) == 5
    for (x, _, width, _), bar in zip(bars, [bar for run in RUNS.values() for bar in run], strict=True):
        assert abs(x - LEFT - bar.start * scale) < 0.1
        assert abs(width - (bar.end - bar.start) * scale) < 1
    assert bars[1][1] - bars[0][1] == LANE, "a lane each"
    assert bars[2][1] == bars[3][1], "one lane"
    assert bars[0][3] == bars[4][3] != bars[1][3] == bars[2][3], "a colour for each kind"
    assert bars[3][3] not in (bars[0][3], bars[1][3])
    assert all(x + width <= WIDTH for x, _, width, _ in bars)


def test_the_grid_covers_only_the_lanes_and_crosses_no_words():
    svg = draw_timeline(RUNS, title="t", unit="s")[0].svg("")
    lines = re.findall(rf'y="([\d.]+)" width="0.8" height="([\d.]+)" fill="{GRID}"', svg)
    headings = [float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*font-weight', svg)]
    assert len(lines) == len(set(lines)) * len(ticks((0, 80), False, 10))
    assert len(headings) == 2 * len(set(lines)) == 4, "a name and a time for each run"
    for y, height in {tuple(map(float, line)) for line in lines}:
        assert not any(y < heading < y + height for heading in headings)
        assert height >= LANE


def test_words_and_names():
    chart, words = draw_timeline(RUNS, title="who does what", unit="s")
    svg = chart.svg(words)
    assert words == (
        "who does what. one: 40.0 s, loop busy 25%, thread busy 75%. two: 80.0 s, thread busy 25%, loop busy 94%."
    )
    for name in ("one", "two", "loop", "thread", "prepares", "learns", "waits for it", "time (s)", ">1<"):
        assert name in svg
    assert "a long label" in svg
    narrow, said = draw_timeline({"one": [*RUNS["one"], Bar("thread", "learns", 900, 901, "long")]}, title="t")
    assert ">long<" not in narrow.svg(said), "what has no room is not written"


def test_a_fixed_axis():
    """A run half as long has bars half as long, and its duration does not overlap its name."""
    widths = []
    for end in (40, 80):
        run = {"a run with quite a long name": [Bar("loop", "works", 0, end)]}
        chart, words = draw_timeline(run, title="t", unit="s", until=160)
        svg = chart.svg(words)
        ((_, _, width, _),) = rectangles(svg)
        widths.append(width)
    assert abs(widths[1] / widths[0] - 2) < 0.02
    assert widths[1] < (WIDTH - LEFT - RIGHT) / 2 + 1
    chart, words = draw_timeline({"a run with quite a long name": [Bar("loop", "works", 0, 1)]}, title="t", until=160)
    at = float(re.search(r'<text x="([\d.]+)"[^>]*>1.00 ms<', chart.svg(words))[1])
    assert at > 250
    chart, words = draw_timeline({"long": [Bar("loop", "works", 0, 320)]}, title="t", until=160)
    ((x, _, width, _),) = rectangles(chart.svg(words))
    assert x + width <= WIDTH, "a run that takes longer moves the end of the axis"


def test_a_run_without_bars():
    chart, words = draw_timeline({"none": []}, title="t")
    assert "none: 0.00 ms" in words
    assert chart.svg(words)
