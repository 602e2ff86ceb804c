"""Pictures of bandits, clouds of estimates, variances and the clip, and their words."""

import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_15.pictures.bandit import GRAY, draw_bandit, number, signed
from mlx_grpo_kit.course.chapters.chapter_15.pictures.clip import draw_clip
from mlx_grpo_kit.course.chapters.chapter_15.pictures.variance import draw_groups, draw_lines, draw_parabola
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE


def test_a_bandit_with_pushes_in_both_directions():
    chart, words = draw_bandit("ABC", [0.5, 0.25, 0.25], [0, 1, 3], [-0.5, 1e-9, 0.5], title="Arms")
    assert words == (
        "Arms: A 50%, reward 0, push \N{MINUS SIGN}0.50; B 25%, reward 1, push 0; C 25%, reward 3, push +0.50. "
        "The mean reward 1."
    )
    svg = chart.svg(words)
    assert svg.count(POSITIVE) == svg.count(NEGATIVE) == 1
    assert svg.count(GRAY) == 4  # three probabilities, and a push of nothing


def test_a_bandit_without_pushes_is_narrower():
    chart, words = draw_bandit("AB", [0.9, 0.1], [-1.5, 0.5], title="Two")
    assert chart.width == 640
    assert words == "Two: A 90%, reward \N{MINUS SIGN}1.5; B 10%, reward 0.5. The mean reward \N{MINUS SIGN}1.3."


def test_a_push_never_leaves_its_column():
    chart, _ = draw_bandit("A", [1.0], [1], [7.0], most=1.5)
    assert 'width="150.0"' in chart.svg("x")


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "+0.50"), (-0.0361, "\N{MINUS SIGN}0.036"), (1e-6, "0"), (12.0, "+12.00")]
)
def test_pushes_have_a_sign(value, text):
    assert signed(value) == text


def test_numbers_have_no_trailing_zeros():
    assert [number(value) for value in (1.0, 0.25, -0.001, -2.5)] == ["1", "0.25", "0", "\N{MINUS SIGN}2.5"]


def test_the_parabola_marks_the_mean_and_the_best():
    chart, words = draw_parabola([0, 1, 2], [2.0, 0.5, 1.0], {0.0: 2.1, 2.0: 0.9}, mean=1.0, best=1.25, title="Wild")
    assert words == (
        "Wild: a parabola with the value 2 at 0, the smallest value 0.5 near 1, and 1 at 2. The mean reward is 1, "
        "the best baseline 1.25."
    )
    svg = chart.svg(words)
    assert "mean reward 1<" in svg
    assert "best 1.25<" in svg


def groups(estimates, size=4):
    curves = {"none": ((2, 4), (1.0, 0.5)), "leave-one-out": ((2, 4), (0.8, 0.0))}
    return draw_groups(np.array(estimates), [-0.5, 0.5], curves, 0.6, size=size, chosen="none")


def test_the_true_gradient_follows_the_theme():
    svg = groups([[0.0, 0.0]])[0].svg("x")
    assert svg.count('fill="#24292f" style="fill:var(--ink,#24292f)"') == 2  # in the cloud and in its legend


def test_the_dots_of_the_cloud_can_be_seen():
    svg = groups([[0.0, 1.0], [0.0, 1.0], [0.2, 0.0]])[0].svg("x")
    dots = [path for path in re.findall("<path[^>]*>", svg) if f'stroke="{POSITIVE}"' in path]
    assert dots
    assert not any("opacity" in path for path in dots)


def test_the_words_give_exact_and_measured_variances():
    chart, words = groups([[0.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    assert words == (
        "Groups of 4. Exact variance: none 0.5, leave-one-out 0. Measured, none: 0.6, with 1 groups outside the "
        "picture. The true gradient is \N{MINUS SIGN}0.50 and +0.50."
    )
    svg = chart.svg(words)
    assert "1 are outside" in svg
    cloud, plane = chart.planes
    assert cloud.title == "3 groups of 4"
    assert plane.lines["none"] == ([2, 4], [1.0, 0.5])


def test_estimates_that_many_groups_share_are_larger_dots():
    many, few = (groups([[0.0, 1.0]] * count)[0].svg("x") for count in (100, 1))
    assert 'stroke-width="20"' in many
    assert 'stroke-width="5.6"' in few


def test_lines_with_measured_dots():
    chart, words = draw_lines(
        {"a": ([1, 2, 4], [1.0, 0.5, 0.25]), "b": ([1, 2, 4], [1, 1, 1])},
        {"a": ([1, 4], [1.1, 0.3])},
        title="Two",
        log_x=True,
        log_y=True,
    )
    assert words == "Two: a from 1 at 1 to 0.25 at 4; measured 1.1, 0.3; b from 1 at 1 to 1 at 4."
    [plane] = chart.planes
    assert [label for label, *_ in plane.labels] == ["a", "a, measured", "b"]


def test_five_lines_of_zeros_are_all_drawn():
    chart, _ = draw_lines({name: ([0, 1], [0, 0]) for name in "abcde"}, log_y=True)
    assert set(chart.planes[0].lines) == set("abcde")
    assert chart.planes[0].y[1] > chart.planes[0].y[0] > 0


def test_the_clip_of_both_signs():
    ratios = [0.5, 1.0, 1.5]
    chart, words = draw_clip(ratios, {1.0: [0.5, 1.0, 1.2], -1.0: [-0.8, -1.0, -1.5]}, epsilon=0.2)
    assert words.startswith("With advantage +1 the objective is flat above 1.2")
    assert "With advantage \N{MINUS SIGN}1 the objective is flat below 0.8" in words
    assert [plane.lines["with the clip"][1] for plane in chart.planes] == [[0.5, 1.0, 1.2], [-0.8, -1.0, -1.5]]
