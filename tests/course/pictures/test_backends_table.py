"""A number and a bar in each cell, on the scale of its column."""

import re

from mlx_grpo_kit.course.chapters.chapter_22.pictures.table import draw_table


def test_numbers_and_bars():
    rows = {"one": [1.5, 200.0], "two": [3.0, 100.0], "three": [None, 0.0]}
    chart, words = draw_table({"first gradient": "s", "lines": ""}, rows, title="measured")
    svg = chart.svg(words)
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="13.0"', svg)]
    assert len(widths) == 5
    assert abs(widths[1] - 2 * widths[0]) < 0.2
    assert abs(widths[2] - 2 * widths[3]) < 0.2
    assert widths[4] == 1.5
    for text in ("first gradient (s)", ">lines<", ">1.50<", ">3.00<", ">200<", ">0.00<", "\N{EN DASH}", ">three<"):
        assert text in svg
    assert words == (
        "measured. one: first gradient 1.50 s, lines 200; two: first gradient 3.00 s, lines 100; three: lines 0.00."
    )
