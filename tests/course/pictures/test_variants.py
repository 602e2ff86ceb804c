"""Pictures of variants: pushes side by side, cosines, seeds with their errors, curves."""

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_19.pictures.variants import (
    draw_cosines,
    draw_curves,
    draw_pushes,
    draw_seeds,
    mean_and_error,
)


def test_pushes_side_by_side():
    sides = {"dapo": [[1.0, -0.5, 0], [0, 0, 0]], "gspo": [[0.001, 2, 0], [-3, 0, 0]]}
    chart, words = draw_pushes([["4", "2", "end"], ["7"]], [1.0, 0.0], sides, 2.5, "40+2= now.")
    assert "dapo: 42 +1.0 \N{MINUS SIGN}0.5 0, 7 0" in words
    assert "gspo: 42 0 +2.0 0, 7 \N{MINUS SIGN}3.0" in words
    svg = chart.svg(words)
    assert svg.count(">end<") == 2
    assert "40+2= now." in svg


def test_cosines():
    chart, words = draw_cosines(["a", "b", "c"], {"now": np.array([[1, 0.5, -0.25], [0.5, 1, 0], [-0.25, 0, 1]])})
    assert words == "Cosines between the gradients of 3 variants. now: with a b 0.50, c -0.25; the lowest is c."
    assert chart.areas[0].written == ["1.00", ".50", "\N{MINUS SIGN}.25", ".50", "1.00", ".00",
                                      "\N{MINUS SIGN}.25", ".00", "1.00"]  # fmt: skip


def test_seeds_with_their_errors():
    values = [0.5, 0.7, 0.6]
    chart, words = draw_seeds({"a": values, "b": [0.4, 0.4, 0.4]}, "accuracy", first=0.3)
    error = np.std(values, ddof=1) / np.sqrt(3)
    assert words == (
        f"accuracy, mean and standard error over 3 seeds: a 0.600 \N{PLUS-MINUS SIGN} {error:.3f}, b 0.400 "
        "\N{PLUS-MINUS SIGN} 0.000."
    )
    assert mean_and_error(values) == pytest.approx((0.6, error))
    assert mean_and_error([2.0]) == (2.0, 0.0)
    assert "<title>accuracy" in chart.svg(words)
    low, high = draw_seeds({"a": [0.5, 0.7]}, "accuracy")[0].planes[0].y
    assert low < 0.6 - 0.2 < 0.6 + 0.2 < high, "the bars of two standard errors are whole"
    title = "accuracy after 25 steps (dotted: before)"
    assert draw_seeds({"a": values, "b": values}, title)[0].width > 58 + 0.56 * 13 * len(title)


def test_curves_beside_the_first():
    curves = {name: [0.1, 0.2 + 0.1 * place] for place, name in enumerate("abcdefg")}
    chart, words = draw_curves(curves, 10, "Reward")
    assert len(chart.planes) == 7
    assert "a from 0.10 to 0.20, b from 0.10 to 0.30" in words
    assert chart.svg(words).count("<path") >= 14
