"""Distributions over tokens, filters, accuracy against temperature, the cache and padding: what is drawn and said."""

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_13.pictures.decoding import (
    COMPUTED,
    KEPT,
    draw_computed,
    draw_cost,
    draw_padding,
)
from mlx_grpo_kit.course.chapters.chapter_13.pictures.sampling import draw_accuracy, draw_sampling, draw_steps, percent

OUT = -np.inf


def test_a_text_grows_step_by_step():
    chart, words = draw_steps([("1+2=", {"'3'": 0.7, "'4'": 0.3}, "'3'"), ("1+2=3", {"end": 1.0}, "end")])
    assert words == "After '1+2=': '3' 70%, '4' 30%; taken: '3'. After '1+2=3': end 100%; taken: end."
    svg = chart.svg(words)
    assert "what comes next?" in svg
    assert "1+2=3" in svg


def test_kept_tokens_are_named_and_so_is_the_first_filter_that_removed_a_token():
    names = ["a", "b", "c", "d"]
    policy = [0.1, 0.5, 0.25, 0.15]
    stages = {
        "top-k": np.array([OUT, 2.0, 1.0, 0.5]),
        "min-p": np.array([OUT, 2.0, 1.0, 0.5]),
        "top-p": np.array([OUT, 2.0, 1.0, OUT]),
    }
    chart, words = draw_sampling(names, policy, [0, 2 / 3, 1 / 3, 0], stages, title="after x")
    assert words == "after x: 2 of 4 tokens kept: b c. top-k removed 1. top-p removed 1. Drawn: b 67%, c 33%."
    svg = chart.svg(words)
    assert svg.index(">b<") < svg.index(">c<") < svg.index(">d<") < svg.index(">a<")  # by the policy
    assert svg.count("out: top-k") == svg.count("out: top-p") == 1


def test_many_tokens_are_counted():
    names = [f"t{token}" for token in range(40)]
    policy = np.full(40, 1 / 40)
    _, words = draw_sampling(names, policy, policy, {}, rows=5)
    assert "40 of 40 tokens kept: t0 t1 t2 t3 t4 t5 t6 t7 t8 t9 and 30 more" in words
    chart, _ = draw_sampling(names, policy, policy, {}, rows=5)
    assert "35 more tokens: 88% of the policy, 88% of the draws" in chart.svg("x")


def test_percentages_above_zero_never_round_to_zero():
    assert [percent(share) for share in (0, 0.0004, 0.004, 0.04, 1)] == ["0", "<0.1%", "0.4%", "4%", "100%"]


def test_accuracy_is_a_line_and_dots():
    chart, words = draw_accuracy([0, 0.5, 2], [0.5, 0.6, 0.1], {"seed 0": [0.5, 0.55, 0.12]}, title="right")
    assert words == (
        "right: 50% at temperature 0, at most 60% (at 0.5), and 10% at 2. Draws with 1 seed are off by up to 5 points."
    )
    [plane] = chart.planes
    assert plane.lines["its exact value"] == ([0, 0.5, 2], [50, 60, 10])
    assert [label for label, *_ in plane.labels] == ["its exact value", "seed 0"]


@pytest.mark.parametrize(("prompt", "new"), [(4, 4), (1, 3), (5, 1)])
def test_positions_that_are_computed_with_and_without_a_cache(prompt, new):
    chart, words = draw_computed(["x"] * (prompt + new), prompt)
    without = sum(prompt + step for step in range(new))
    assert words.endswith(f"{without} positions go through the model without a cache, {prompt + new - 1} with one.")
    left, right = chart.areas
    assert (left.numbers == 2).sum() == without
    assert (right.numbers == 2).sum() == prompt + new - 1
    assert ((left.numbers > 0) == (right.numbers > 0)).all()  # both look at the same positions
    assert {left.color(2), right.color(1)} == {COMPUTED, KEPT}


def test_the_cost_of_a_token():
    lengths = list(range(5, 25))
    chart, words = draw_cost(lengths, [float(n) for n in lengths], [1.0] * 20, token=10, of=40)
    assert words == (
        "At 15 positions one more token takes about 15.0 ms without a cache, where 15 positions go through the model, "
        "and 1.0 ms with one, where a single one does."
    )
    [plane] = chart.planes
    assert plane.x == (0, 40)
    assert plane.lines["with a cache"] == (lengths, [1.0] * 20)
    assert chart.svg(words).count(COMPUTED) >= 2


def test_one_pause_of_the_machine_does_not_show_in_the_line():
    times = [1.0] * 20
    times[7] = 500.0
    chart, _ = draw_cost(range(20), times, [0.5] * 20)
    assert max(chart.planes[0].lines["without a cache"][1]) == 1.0
    assert chart.planes[0].y[1] < 2


def test_a_cost_of_one_measurement_is_drawn():
    _, words = draw_cost([9], [2.0], [1.0], of=100)
    assert words.startswith("At 9 positions")


def test_padding_on_both_sides():
    chart, words = draw_padding(["ab=", "c=", "defg="], ["x;", "yz;", "w;"])
    assert words == (
        "3 prompts of 2 to 5 tokens. Padded on the left, each completion follows its prompt; padded on the right, 2 of "
        "them have a gap in between."
    )
    left, right = chart.areas
    assert left.numbers[0].tolist() == [0, 0, 1, 1, 1, 2, 2, 0]
    assert right.numbers[0].tolist() == [1, 1, 1, 0, 0, 2, 2, 0]
    assert "".join(left.written[8:16]).split() == ["c=yz;"]
