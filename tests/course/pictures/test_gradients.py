"""Pictures of gradients in a whole model: by token, by parameter, in a plane, along a step, and what they cost."""

import math
import re

import pytest

from mlx_grpo_kit.course.pictures.gradients import (
    draw_costs,
    draw_curves,
    draw_lengths,
    draw_projection,
    draw_token_gradients,
)


def test_tokens_that_get_a_gradient():
    chart, words = draw_token_gradients(
        ["2", "+", "3"], ["+", "3", "="], {"last norm": [0, 1.25, 0], "embedding": [0.5, 2, 0]}, [1], 0.75
    )
    assert words == (
        "Loss 0.75, the surprise at '3'. At the embedding, the gradient reaches 2 of 3 tokens, up to token 2; most at "
        "token 2, '+'."
    )
    [sheet] = chart.areas
    assert sheet.written == ["0", "1.2", "0", "0.50", "2.0", "0"]
    svg = chart.svg(words)
    assert svg.count("yes") == 1
    assert re.search(r'font-weight="700"[^>]*>&#x27;3&#x27;', svg)  # the token that is asked for


def test_no_gradient_at_all():
    chart, words = draw_token_gradients(["2"], ["+"], {"embedding": [0.0]}, [], 0.0)
    assert words == ("No token's surprise counts: the loss is 0. At the embedding, the gradient reaches 0 of 1 tokens.")
    assert "#ffffff" in chart.svg(words)


NAMES = ["embedding.weight", "layers.0.input_layernorm.weight", "layers.0.mlp.up_proj.weight", "final_norm.weight"]


def test_lengths_of_parameters():
    before, after = dict(zip(NAMES, [5, 0.01, 1, 0.2], strict=True)), dict(zip(NAMES, [2, 0, 3, 0.1], strict=True))
    chart, words = draw_lengths({"before": before, "after": after}, shown=NAMES[1:3], title="length")
    assert words == (
        "length. before: from 0.010 (layers.0.input_layernorm.weight) to 1.0 (layers.0.mlp.up_proj.weight), 2 "
        "parameters. after: from 0 (layers.0.input_layernorm.weight) to 3.0 (layers.0.mlp.up_proj.weight), 2 "
        "parameters."
    )
    [plane] = chart.planes
    assert plane.log_y
    assert plane.y[0] < 0.01 < 5 < plane.y[1]
    assert [label for label, *_ in plane.labels] == ["before", "after"]
    assert len({marker for *_, marker in plane.labels}) == 2  # told apart without colour
    svg = chart.svg(words)
    for text in ("embed", "norm 1", "up", "layer 0"):
        assert f"{text}</text>" in svg
    assert ">0</text>" not in svg  # no numbers where the names stand


def test_lengths_that_are_all_zero():
    zeros = dict.fromkeys(NAMES, 0.0)
    _, words = draw_lengths({"now": zeros}, shown=NAMES, title="length")
    assert words == "length. now: all 4 are 0."


def test_one_parameter_alone_in_words():
    lengths = {"now": {"embedding.weight": 2.5}, "then": {"embedding.weight": 0.0}}
    _, words = draw_lengths(lengths, shown=["embedding.weight"], title="length")
    assert words == "length. now: 2.5 (embedding.weight). then: it is 0."


def test_a_deep_model_has_no_names_at_its_parameters():
    names = [f"layers.{layer}.mlp.up_proj.weight" for layer in range(60)]
    chart, words = draw_lengths({"now": dict.fromkeys(names, 1.0)}, shown=names, title="length")
    svg = chart.svg(words)
    assert "up</text>" not in svg
    assert "layer 8</text>" in svg
    assert "layer 9</text>" not in svg


def test_projection():
    chart, words = draw_projection([3, 4], [1, 1], [1 - 0.84, 1 - 1.12])
    assert words == (
        "x is (3.00, 4.00). What arrives, divided by r, has length 1.41, of which 1.40 lies along x and is taken out. "
        "The gradient of x has length 0.20 and is at a right angle to x."
    )
    [plane] = chart.planes
    assert plane.x == plane.y == pytest.approx((-4.6, 4.6))
    assert plane.width == plane.height  # right angles look right
    assert [label for label, *_ in plane.labels] == ["x", "arrives (over r)", "goes back to x"]
    flat, words = draw_projection([1, 0], [-0.5, -1e-9], [0, -1e-9])
    assert "arrives, over r: (\N{MINUS SIGN}0.50, 0.00)" in flat.svg(words)  # no zero has a sign


def test_errors_by_step():
    chart, words = draw_curves(
        [1e-3, 1e-2, 1e-1],
        {"float32": [1e-2, 1e-5, 1e-3], "float64": [1e-9, 1e-8, 1e-3]},
        title="error",
        xlabel="step",
        log=True,
    )
    assert words == (
        "error. float32: smallest, 1e-05, at 1e-02; 1e-02 at 1e-03. float64: smallest, 1e-09, at 1e-03; 1e-09 at 1e-03."
    )
    [plane] = chart.planes
    assert plane.log_x
    assert plane.log_y
    assert plane.lines["float32"] == ([1e-3, 1e-2, 1e-1], [1e-2, 1e-5, 1e-3])


def test_curves_of_a_run():
    chart, words = draw_curves(range(1, 4), {"loss": [0.5, 2.0, 1.0]}, title="loss", xlabel="step")
    assert words == "loss. loss: from 0.500 to 2.00."
    [plane] = chart.planes
    assert plane.y[0] == 0
    assert plane.y[1] > 2


def test_costs():
    chart, words = draw_costs({"forward": (20.0, 14.2), "backward": (40.0, 7.1)})
    assert words == "forward: 20 milliseconds, 14 megabytes; backward: 40 milliseconds, 7.1 megabytes"
    widths = [float(width) for width in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', chart.svg(words))]
    assert widths == [112.5, 225, 225, 112.5]
    assert math.isfinite(chart.height)
