"""Several runs in one picture: every line, its name at its end, names that do not overlap."""

import itertools
import re

from mlx_grpo_kit.course.chapters.chapter_18.pictures.futures import APART, draw_futures


def test_every_run_has_its_line_its_name_and_its_words():
    curves = {"small": [0.5, 0.6, 0.25], "large": [0.5, 0.1, 0.0]}
    chart, words = draw_futures([1, 2, 3], curves, title="reward", names="rate")
    (plane,) = chart.planes
    assert {name: ys for name, (_, ys) in plane.lines.items()} == curves
    svg = chart.svg(words)
    assert "small: 0.250" in svg
    assert "rate" in svg
    assert words == "reward, steps 1 to 3. small: from 0.500 to 0.250. large: from 0.500 to 0.00."


def test_names_do_not_overlap_and_stay_on_the_page():
    for ends in ([0.5] * 4, [0.0] * 4, [1.0] * 4, [0.51, 0.5, 0.0, 0.01]):
        chart, words = draw_futures([1, 2], {f"run {n}": [0.5, end] for n, end in enumerate(ends)}, title="t")
        svg = chart.svg(words)
        places = sorted(float(re.search(rf'y="([\d.]+)"[^>]*>run {n}:', svg)[1]) for n in range(4))
        assert all(b - a >= APART - 0.2 for a, b in itertools.pairwise(places)), (ends, places)
        assert places[0] > 10
        assert places[-1] < chart.height - 20


def test_long_names_have_room():
    chart, _ = draw_futures([1, 2], {"a name of many words and more": [0, 1]}, title="t", names="what they are")
    (plane,) = chart.planes
    assert chart.width - plane.left - plane.width > 7 * len("a name of many words and more: 1.00")
    assert plane.width > 500
