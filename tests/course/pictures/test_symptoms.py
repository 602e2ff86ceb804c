"""Two runs in nine small curves: all metrics are drawn and described, even for short runs and NaN."""

import re

import pytest

from mlx_grpo_kit.course.chapters.chapter_20.pictures.symptoms import PANELS, draw_rewards, draw_symptoms

HEALTHY = {name: [0.1 * place for place in range(10)] for name in PANELS}


def test_every_metric_has_a_curve_of_each_run_and_words():
    sick = {name: [0.9] * 10 for name in PANELS}
    chart, words = draw_symptoms(HEALTHY, sick, title="A: late", changed=["-    a", "+    b"], said=["Look here."])
    assert [plane.title for plane in chart.planes] == [title for title, *_ in PANELS.values()]
    markup = chart.svg(words)
    assert markup.count('role="img"') == 1
    assert "mean reward 0.90 to 0.90 (0.20 to 0.70)" in words
    assert words.endswith("Changed: -    a +    b Look here.")
    for shown in ("Changed lines", "Messages of diagnose", "Look here.", "\N{MINUS SIGN}    a", "+    b"):
        assert shown in markup


def test_a_run_of_one_step_without_a_gradient_is_a_point_and_words():
    sick = {name: [0.5] for name in PANELS} | {"grad_norm": [None]}
    chart, words = draw_symptoms(HEALTHY, sick, title="E")
    assert "gradient norm is not a number (0.20 to 0.70)" in words
    assert "not a number" in chart.svg(words)
    assert "nan" not in chart.svg(words)


def test_a_metric_that_a_run_lacks_is_no_error():
    chart, words = draw_symptoms(HEALTHY, {"reward": [0.1, 0.2]}, title="short")
    assert "entropy is not a number" in words
    assert chart.svg(words)


def test_long_words_are_wrapped_into_the_picture():
    said = ["word " * 100]
    chart, words = draw_symptoms(HEALTHY, HEALTHY, title="t", said=said)
    lines = re.findall(r">(\N{BULLET}? *word[^<]*)<", chart.svg(words))
    assert len(lines) == 4
    assert max(map(len, lines)) <= 132
    assert chart.height > draw_symptoms(HEALTHY, HEALTHY, title="t")[0].height


@pytest.mark.parametrize("hostile", ["<script>", "a & b", '"'])
def test_text_cannot_become_markup(hostile):
    chart, words = draw_symptoms(HEALTHY, HEALTHY, title=hostile, name=hostile, changed=["+" + hostile], said=[hostile])
    assert "<script>" not in chart.svg(words)


def test_rewards_of_several_runs_in_one_chart():
    chart, words = draw_rewards({"one": [0.0] * 5 + [1.0] * 5, "two": [0.5, None, 0.5]}, title="Four")
    assert list(chart.planes[0].lines) == ["one", "two"]
    assert chart.planes[0].x[0] < 1 < 10 < chart.planes[0].x[1], "all steps are in the picture"
    assert words == "Four. At the start and at the end: one 0.00 to 1.00; two 0.50 to 0.50."
