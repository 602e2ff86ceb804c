"""The pictures of chapter 14: bars that add up, the completions to look at first, curves of hacked runs."""

import re

import pytest

from mlx_grpo_kit.course.chapters.chapter_14.pictures.rewards import draw_hack, draw_rewards, summarize
from mlx_grpo_kit.viz.style import NEGATIVE

PROMPTS = ["1+2="] * 4 + ["3+4="] * 4
TEXTS = ["3", "4", "5", "3", "7", "", "x<y", "1" * 40]
RIGHT = [True, False, False, True, True, False, False, False]


def drawn(rewards, **named):
    return draw_rewards(rewards, RIGHT, PROMPTS, TEXTS, 4, title="a reward", **named)


def bars(svg, color):
    return [float(height) for height in re.findall(rf'height="([\d.]+)" fill="{color}"', svg)]


def test_bars_are_as_tall_as_their_counts():
    chart, words = drawn([1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 0.0, 1.0])
    svg = chart.svg(words)
    blue, orange = bars(svg, "#5790fc")[:-1], bars(svg, NEGATIVE)[:-1]  # the last of each is the legend's
    assert blue[2] == pytest.approx(3 * orange[2], abs=0.2)  # at 1.0 three right ones and a wrong one
    assert orange[0] == pytest.approx(3 * orange[2], abs=0.2)  # at 0.0 three wrong ones
    assert blue[:2] == [0, 0]


def test_the_summary_counts_groups():
    assert summarize([1.0, 0.0, 0.5, 1.0, 0.2, 0.2, 0.2, 0.2], RIGHT, 4) == (
        "mean 0.41; 1 of 2 groups has equal rewards and teaches nothing; in 1 group a wrong answer is paid as much as "
        "the best right answer of its group."
    )
    assert "mean 1.00; 2 of 2 groups" in summarize([None] * 4 + [1.0, None, None, None], RIGHT, 4)
    assert summarize([None] * 8, RIGHT, 4).startswith("nothing is scored; 2 of 2 groups have equal rewards")
    assert "; no wrong answer is paid as much as" in summarize([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], RIGHT, 4)


def test_the_best_paid_wrong_answers_come_first_and_are_escaped():
    chart, words = drawn([1.0, 0.25, 0.5, 1.0, 1.0, 0.0, 0.75, -2.0])
    assert "Wrong, and paid most: 3+4=x<y 0.75, 1+2=5 0.5, 1+2=4 0.25, 3+4= 0, 3+4=111" in words
    assert "x<y" not in chart.svg(words)
    assert "x&lt;y" in chart.svg(words)


ODD = {
    "none": [None] * 8,
    "equal": [0.0] * 8,
    "all different": [number / 7 for number in range(8)],
    "huge": [1e20, -1e20, *[0.0] * 6],
    "tiny": [1e-9 * number for number in range(8)],
}


@pytest.mark.parametrize("rewards", ODD.values(), ids=ODD.keys())
def test_rewards_of_any_kind_are_drawn(rewards):
    chart, words = drawn(rewards)
    assert not re.search(r"\b(nan|inf)\b", chart.svg(words))
    assert 'width="-' not in chart.svg(words)


def test_many_different_rewards_share_bins():
    chart, words = draw_rewards(
        [i / 1000 for i in range(400)], [i % 3 == 0 for i in range(400)], ["p"] * 400, ["c"] * 400, 8, title="t"
    )
    blue = r'<rect x="([\d.]+)" y="[\d.]+" width="[\d.]+" height="[\d.]+" fill="#5790fc"'
    places = re.findall(blue, chart.svg(words))
    assert 20 <= len(set(places)) <= 26


def test_the_curves_of_a_hacked_run():
    chart, words = draw_hack({"seed 0": ([0.0, 1.0], [1.0, 0.0]), "b": ([0.5] * 9, [0.5] * 9)}, title="t", smoothing=2)
    assert words == (
        "t. seed 0, reward: from 0.00 to 0.50; seed 0, right answers: from 1.00 to 0.50; b, reward: from 0.50 to "
        "0.50; b, right answers: from 0.50 to 0.50."
    )
    assert list(chart.planes[0].lines) == ["reward", "right answers"]
