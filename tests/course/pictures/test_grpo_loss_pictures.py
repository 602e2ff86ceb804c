"""Advantages, the clip, token weights, estimators of KL, runs and agreement: what is drawn, and what is said."""

import re

import pytest
import torch

from mlx_grpo_kit.course.chapters.chapter_16.pictures.advantages import draw_advantages, draw_pushes
from mlx_grpo_kit.course.chapters.chapter_16.pictures.clip_surface import draw_clip, objective, slope
from mlx_grpo_kit.course.chapters.chapter_16.pictures.estimators import ESTIMATORS, SLOPES, draw_estimators
from mlx_grpo_kit.course.chapters.chapter_16.pictures.series import draw_series
from mlx_grpo_kit.course.chapters.chapter_16.pictures.token_weights import draw_token_weights
from mlx_grpo_kit.course.pictures.agreement import draw_agreement
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE


def test_a_group_with_its_mean_deviation_and_advantages():
    chart, words = draw_advantages(["a", "b", "c", "d"], [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5])
    assert words.startswith("Mean 0.25, deviation 0.5. a: reward 1, advantage +1.50, b: reward 0, advantage -0.50")
    svg = chart.svg(words)
    assert "mean 0.25, deviation 0.5" in svg
    assert svg.count(f'stroke="{POSITIVE}"') == 2  # one reward above the mean, one advantage above 0
    assert svg.count(f'stroke="{NEGATIVE}"') == 6


def test_equal_rewards_push_nothing_and_a_group_of_one_is_drawn():
    for answers in (["a", "b"], ["a"]):
        chart, words = draw_advantages(answers, [0.5] * len(answers), [0.0] * len(answers), scaled=False)
        assert "deviation 0." in words
        assert "no push at all" in chart.svg(words)
        assert "not divided" in chart.svg(words)


def test_how_hard_a_group_is_pushed():
    chart, words = draw_pushes([0, 0.5, 1], {"divided": [0, 0.9, 0], "plain": [0, 0.5, 0]}, title="push")
    assert words == (
        "push. divided: 0.00 at 0%, 0.90 at 50%, 0.00 at 100%. plain: 0.00 at 0%, 0.50 at 50%, 0.00 at 100%."
    )
    assert chart.planes[0].lines["plain"] == ([0, 0.5, 1], [0, 0.5, 0])


@pytest.mark.parametrize("advantage", [1.5, -0.5])
@pytest.mark.parametrize("ratio", [0.1, 0.79, 0.81, 1.0, 1.27, 1.29, 1.9])
def test_objective_and_slope_equal_torchs(ratio, advantage):
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    value = torch.minimum(r * advantage, r.clamp(0.8, 1.28) * advantage)
    value.backward()
    assert objective(ratio, advantage, 0.8, 1.28) == pytest.approx(value.item())
    assert slope(ratio, advantage, 0.8, 1.28) == r.grad.item()


def test_the_clip_shows_which_tokens_are_pushed():
    _, words = draw_clip(1.35, 0.2, 0.28)
    assert words == (
        "Ratio 1.35, edges 0.80 and 1.28. A = +1.0: objective +1.28, slope 0, clipped: far enough, no gradient. "
        "A = -1.0: objective -1.35, slope -1.0, pushed down: r should fall."
    )
    assert "pushed up: r should grow" in draw_clip(0.5, 0.2, 0.2)[1]
    assert draw_clip(1.0, 0.0, 0.0)[1].count("clipped") == 0
    chart, words = draw_clip(0.0, 0.9, 0.0, size=2.0)
    assert "A = +2.0: objective +0.00, slope +2.0" in words
    assert len(chart.planes) == 2


def test_the_name_of_an_edge_near_the_right_end_is_on_its_left():
    """On its right it would leave the picture, and the point at ratio 2 would cover it."""
    charts = [draw_clip(2.0, 0.2, high)[0].svg("x") for high in (0.2, 0.9)]
    places = [re.findall(r'text-anchor="(\w+)"[^>]*>1 \+ ε high<', chart) for chart in charts]
    assert places == [["start"] * 2, ["end"] * 2]


def test_token_weights_as_boxes():
    chart, words = draw_token_weights([[0.25, 0.25], [0.5]], [1, -1], most=4, title="grpo")
    assert words == (
        "grpo. good, 2: a token 25.0%, the completion 50.0%. bad, 1: a token 50.0%, the completion 50.0%. "
        "All together 100.0%."
    )
    svg = chart.svg(words)
    assert svg.count(f'fill="{POSITIVE}"') == 2
    assert svg.count(f'fill="{NEGATIVE}"') == 1
    assert "bad, 1 token<" in svg


def test_estimators_of_kl():
    _, words = draw_estimators()
    assert "k3 = exp(d) - d - 1: 0.37 at -1, 0.72 at 1" in words
    assert [function(0.0) for function in ESTIMATORS.values()] == [0, 0, 0]
    for estimator, its_slope in zip(ESTIMATORS.values(), SLOPES.values(), strict=True):
        for d in (-1.5, 0.0, 2.0):  # d falls as the log-probability rises
            assert its_slope(d) == pytest.approx((estimator(d - 1e-5) - estimator(d + 1e-5)) / 2e-5, abs=1e-6)


def test_series_side_by_side():
    curves = {"loss": {"a": [0.0, 0.1], "b": [0.0, -0.25]}, "reward": {"": [0.5, 0.75]}}
    chart, words = draw_series(curves, xlabel="step", limits={"loss": (-1, 1), "reward": (0, 1)})
    assert words == "a: loss from 0 to 0.1. b: loss from 0 to -0.25. reward: reward from 0.5 to 0.75."
    assert [plane.title for plane in chart.planes] == ["loss", "reward"]
    assert "step" in chart.svg(words)


def test_agreement_of_engines():
    rows = {"scalar": [0.125, -0.5], "tensor": [0.125, -0.5], "MLX": [0.125, -0.5]}
    chart, words = draw_agreement(["loss", "w"], rows, {"scalar": 0, "tensor": 3e-16, "MLX": 2e-7}, title="one")
    assert words == "one. Largest difference from scalar: scalar 0e+00, tensor 3e-16, MLX 2e-07."
    svg = chart.svg(words)
    assert svg.count("\N{MINUS SIGN}0.500000000") == 3
    assert svg.count(f'fill="{POSITIVE}"') == 2
    assert svg.count(f'fill="{NEGATIVE}"') == 1
