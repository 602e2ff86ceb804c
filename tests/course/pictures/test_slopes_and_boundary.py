"""The pictures of chapters 01 and 03: what they draw for given numbers, as a panel would ask for them."""

import math

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_01.pictures.slopes import best_step, draw_slope, slope_error
from mlx_grpo_kit.course.pictures.boundary import draw_boundary


def lines(axis, label):
    return next(line for line in axis.lines if line.get_label().startswith(label))


@pytest.mark.parametrize(("both_sides", "slope"), [(False, 2.5), (True, 2.0)])
def test_the_line_runs_through_the_two_points(both_sides, slope):
    chart, words = draw_slope(lambda x: x * x, lambda x: 2 * x, 1.0, 0.5, both_sides=both_sides)
    (x0, x1), (y0, y1) = chart.planes[0].lines[f"through the two points: slope {slope:.2f}"]
    assert (y1 - y0) / (x1 - x0) == pytest.approx(slope)
    left = 0.5 if both_sides else 1.0
    assert np.interp(left, [x0, x1], [y0, y1]) == pytest.approx(left**2)
    assert np.interp(1.5, [x0, x1], [y0, y1]) == pytest.approx(2.25)
    assert f"Its slope is {slope:.2f}" in words


@pytest.mark.parametrize("both_sides", [False, True])
def test_the_words_mention_a_v_only_if_there_is_one(both_sides):
    assert "a V that falls" in draw_slope(math.sin, math.cos, x=0.5, h=0.1, both_sides=both_sides)[1]
    assert "does not rise again" in draw_slope(math.sin, math.cos, x=0.0, h=0.1, both_sides=both_sides)[1]


def test_slope_and_error_are_of_the_same_measurement():
    _, words = draw_slope(math.sin, math.cos, x=1.0, h=3e-15)
    slope = (math.sin(1 + 3e-15) - math.sin(1)) / 3e-15
    assert f"Its slope is {slope:.3f}" in words
    assert f"the error is {abs(slope - math.cos(1)):.1e}" in words


def test_the_errors_agree_with_calculus():
    # f(x + h) = f + h f' + h^2/2 f'' + h^3/6 f''': one side is off by h/2 f'', both sides by h^2/6 f'''.
    h = 1e-2
    assert slope_error(math.sin, math.cos, 1.0, h, False) == pytest.approx(h / 2 * math.sin(1.0), rel=1e-2)
    assert slope_error(math.sin, math.cos, 1.0, h, True) == pytest.approx(h * h / 6 * math.cos(1.0), rel=1e-2)


def test_the_best_steps_are_where_rounding_takes_over():
    assert 1e-9 < best_step(math.sin, math.cos, 1.0, False) < 1e-6
    assert 1e-7 < best_step(math.sin, math.cos, 1.0, True) < 1e-3


def test_a_step_must_be_positive():
    with pytest.raises(ValueError, match="h is 0; expected a positive step"):
        draw_slope(math.sin, math.cos, 1.0, 0)


def test_the_points_and_the_error_are_written():
    assert "x = 1 and x + h = 1.1" in draw_slope(math.sin, math.cos, 1.0, 0.1)[1]
    chart, words = draw_slope(math.sin, math.cos, 1.0, 1e-12)
    coarse = slope_error(math.sin, math.cos, 1.0, 1e-12, False)
    assert f">error of the slope: {coarse:.1e}</text>" in chart.svg(words)
    assert "x - h = 0.5 and x + h = 0.5" in draw_slope(math.sin, math.cos, 0.5, 1e-12, both_sides=True)[1]


POINTS, LABELS = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], [-1, 1, -1, 1]


def boundary_of(figure):
    """The line where the score is 0, as an array of points."""
    [contour] = [each for each in figure.axes[0].collections if np.array_equal(getattr(each, "levels", []), [0.0])]
    return np.concatenate([path.vertices for path in contour.get_paths()])


def test_the_boundary_is_where_the_score_is_zero():
    figure, words = draw_boundary(lambda p: p[0] - 0.25, POINTS, LABELS, title="A line")
    np.testing.assert_allclose(boundary_of(figure)[:, 0], 0.25, atol=1e-6)
    assert words.startswith("A line. 4 points, 2 of them of class 1. The line where the score is 0 has 4 of them on")


def test_points_are_drawn_by_class_and_need_no_score():
    figure, words = draw_boundary(None, POINTS, LABELS)
    ones = next(line for line in figure.axes[0].lines if line.get_label() == "label 1")
    assert ones.get_xdata().tolist() == [1.0, 1.0]
    assert words == "4 points, 2 of them of class 1."
    assert {line.get_marker() for line in figure.axes[0].lines} == {"o", "s"}


def test_a_score_of_one_sign_has_no_boundary():
    figure, words = draw_boundary(lambda p: 1.0, POINTS, LABELS, losses=[1.0, 0.5])
    with pytest.raises(ValueError, match="not enough values"):
        boundary_of(figure)
    assert "has 2 of them on their own side" in words
    assert "from 1.000 to 0.500 in 2 steps" in words
    assert figure.axes[1].lines[0].get_ydata().tolist() == [1.0, 0.5]


def test_the_line_keeps_its_kinks():
    """If the score bends along a corner, the line bends there too, within a fraction of a cell."""
    calls = []

    def score(point):
        calls.append(point)
        return point[1] - abs(point[0] - 0.33)

    figure, _ = draw_boundary(score, POINTS, LABELS, cells=24)
    [path] = figure.axes[0].collections[-1].get_paths()
    middles = (path.vertices[1:] + path.vertices[:-1]) / 2
    assert np.abs(middles[:, 1] - np.abs(middles[:, 0] - 0.33)).max() < 0.015
    assert len(calls) < 2 * 24 * 24
