"""The picture of a step's groups: every answer once, coloured by its group, and the same in words."""

import re

import pytest

from mlx_grpo_kit.course.chapters.chapter_18.pictures.groups import ON_COLOR, PLAIN, draw_groups
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE

QUESTIONS = ["1+1="] * 3 + ["2+2="] * 3
ANSWERS = ["2", "3", "11", "4", "4", "4"]


def test_an_answer_is_coloured_by_its_group():
    chart, words = draw_groups(QUESTIONS, ANSWERS, [1, 0, 0, 1, 1, 1], 3, title="a step")
    svg = chart.svg(words)
    legend = 1
    assert svg.count(f'fill="{POSITIVE}"') == 1 + legend
    assert svg.count(f'fill="{NEGATIVE}"') == 2 + legend
    assert svg.count(f'fill="{PLAIN}"') == 3 + legend
    assert svg.count(f'fill="{ON_COLOR}"') == 6
    assert svg.count("nothing to learn") == 1
    assert "2 groups of 3 answers; 1 of them have answers with different rewards" in words
    assert "1+1= 0.33, 2+2= 1.00" in words


def test_text_from_a_model_is_escaped_and_fits_its_cell():
    chart, words = draw_groups(["<b>"] * 2, ["<script>alert(1)</script>", "a\nb"], [0.0, 1.0], 2)
    svg = chart.svg(words)
    assert "<script>" not in svg
    assert "&lt;script&gt;…" in svg or "&lt;script…" in svg
    assert "a␊b" in svg or "a⏎b" in svg or "a\N{RETURN SYMBOL}b" in svg


@pytest.mark.parametrize("group_size", [2, 16])
def test_any_size_fits_the_page(group_size):
    chart, words = draw_groups(["q"] * group_size, ["x"] * group_size, [*range(group_size)], group_size)
    assert chart.width == 1000
    assert f"1 groups of {group_size} answers" in words


@pytest.mark.parametrize("title", ["", "a step", "after the training, the next questions"])
def test_a_long_title_does_not_reach_the_legend(title):
    svg = draw_groups(QUESTIONS, ANSWERS, [1, 0, 0, 1, 1, 1], 3, title=title)[0].svg("words")
    left = float(re.search(rf'<rect x="([\d.]+)" y="12.0" width="16.0" height="13.0" fill="{POSITIVE}"', svg)[1])
    assert left > 14 + 0.56 * 15 * len(title)
    assert left + 300 + 22 + 0.56 * 12.5 * len("like all the others") < 1000
