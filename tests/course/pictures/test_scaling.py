"""The pictures of chapter 21: memory by phase, small steps of a weight, a ring, machines and their waiting."""

import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_21.pictures.machines import draw_machines
from mlx_grpo_kit.course.chapters.chapter_21.pictures.memory_phases import LONGEST, PART_COLORS, draw_memory
from mlx_grpo_kit.course.chapters.chapter_21.pictures.ring import draw_ring
from mlx_grpo_kit.course.chapters.chapter_21.pictures.rounding import draw_rounding
from mlx_grpo_kit.viz.style import LINES_CONTRAST, contrast
from tests.course.pictures.drawn import bars, texts

PHASES = {
    "sampling": {"parameters": 2e9, "KV cache": 1e9, "reference": 0},
    "learning": {"parameters": 2e9, "gradients": 2e9, "activations": 4e9},
}


def test_memory_bars_are_proportional_to_bytes():
    chart, words = draw_memory(PHASES, 8e9, 100e9, title="A run")
    rows = [bar for bar in bars(chart) if bar[1] > 60]
    widths = {(top, color): width for _, top, width, color in rows}
    tops = sorted({top for top, _ in widths})
    assert widths[tops[0], PART_COLORS["KV cache"]] == pytest.approx(LONGEST / 8, abs=0.1)
    assert widths[tops[1], PART_COLORS["activations"]] == pytest.approx(LONGEST / 2, abs=0.1)
    assert "reference" not in texts(chart)  # it has no bytes, so it needs no colour
    assert words == (
        "A run. sampling: parameters 2 GB, KV cache 1 GB. learning: parameters 2 GB, gradients 2 GB, activations 4 GB. "
        "Together: at most 8 GB at once, which fits into this machine's 100 GB."
    )


def test_the_machines_memory_is_a_line_where_there_is_room_for_one():
    def line(room):
        chart, words = draw_memory(PHASES, 8e9, room, title="A run")
        found = [left for left, _, _, color in bars(chart) if color == "#8a8a8a"]
        assert all(left < chart.width for left in found)
        return found, words

    (at,), words = line(4e9)
    assert at == pytest.approx(110 + LONGEST / 2, abs=0.1)
    assert "does not fit into this machine's 4 GB" in words
    (at,), words = line(16e9)
    assert 110 + LONGEST / 2 < at <= 110 + LONGEST
    assert "which fits into this machine's 16 GB" in words
    assert line(100e9)[0] == []


def test_the_machines_line_does_not_cross_a_total():
    """For a machine with 2.1 GB the line would cross the words "2 GB" after a bar of 2 GB."""
    phases = {"sampling": {"parameters": 2e9}, "learning": {"parameters": 8e9}}
    chart, _ = draw_memory(phases, 8e9, 2.1e9, title="A run")
    (line,) = [left for left, _, _, color in bars(chart) if color == "#8a8a8a"]
    starts = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*>2 GB</text>', chart.svg("x"))]
    assert line + 2 < max(starts) < line + 20


def test_small_steps():
    exact, copies, rounded = np.linspace(1, 0.99, 5), [1, 1, 0.995, 0.995, 0.99], [1.0] * 5
    chart, words = draw_rounding(exact, copies, rounded, [0.985, 0.99, 0.995, 1.0, 1.01])
    (plane,) = chart.planes
    assert list(plane.lines["kept in bfloat16"][1]) == rounded
    assert list(plane.lines["master, in float32"][1]) == list(exact)
    assert plane.y[0] < 0.985 < 1.01 < plane.y[1]
    assert words == (
        "A weight of 1 in 4 equal steps. Kept in bfloat16 it does not move. The master ends at 0.99, and its copy has "
        "changed 2 times."
    )
    _, words = draw_rounding([1, 0.9], [1, 1], [1, 0.5], [])
    assert "it ends at 0.5" in words
    assert "its copy has not changed yet" in words


def test_a_ring():
    counts = np.array([[1, 2], [2, 1]])
    chart, words = draw_ring(counts, [1, 0], 1, 2)
    (sheet,) = chart.areas
    assert sheet.written == ["1", "2", "2", "1"]
    assert sheet.frames == [(0, 1, 1, 1), (1, 0, 1, 1)]
    assert words == (
        "A ring of 2: first round, message 1 of 1: the received part is added. 2 of 4 parts are complete; each "
        "process has sent 0.50 times its array."
    )
    chart, words = draw_ring(np.ones((3, 3)), None, 0, 4)
    assert chart.areas[0].frames == []
    assert "before the first message" in words
    _, words = draw_ring(np.full((3, 3), 3), [0] * 3, 4, 4)
    assert "second round, message 2 of 2: the received part replaces its own" in words


def test_machines():
    shares = {"slow": [0.0, 0.5, 0.9], "fast": [0.0, 0.25, 0.5]}
    chart, words = draw_machines([1, 3, 8], shares, (3, 8), title="Waiting", below="Some numbers.")
    (plane,) = chart.planes
    assert {name: ys for name, (_, ys) in plane.lines.items()} == shares
    assert words == "Waiting. slow: 50.0% with 3, 90.0% with 8. fast: 25.0% with 3, 50.0% with 8. Some numbers."
    names = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>(?:slow|fast)<', chart.svg(words))]
    assert abs(names[0] - names[1]) >= 17.9
    equal = draw_machines([1, 2], {f"n{n}": [0, 1.0] for n in range(3)}, (2,), title="t", below="b")[0]
    places = sorted(float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>n\d<', equal.svg("x")))
    assert np.diff(places).min() >= 17.9
    assert {"1", "2"} <= set(texts(equal))


@pytest.mark.parametrize("part", PART_COLORS)
def test_every_part_of_the_memory_can_be_seen_on_white(part):
    assert contrast(PART_COLORS[part], "#ffffff") >= LINES_CONTRAST
    assert list(PART_COLORS.values()).count(PART_COLORS[part]) == 1
