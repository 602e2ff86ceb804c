"""The picture of the silent broadcast: the given losses, lines and differences are drawn."""

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_04.pictures.mismatch import draw_mismatch


@pytest.fixture
def drawn():
    x, targets = np.array([1.0, -1.0, 0.0]), np.array([3.0, -3.0, 0.0])
    flat, steep = np.zeros((3, 1)), 3 * x[:, None]
    return draw_mismatch(
        x,
        targets,
        {"wrong": ([7.0, 6.0], flat, flat - targets), "right": ([7.0, 0.5], steep, steep - targets[:, None])},
    )


def test_losses_and_lines(drawn):
    figure, words = drawn
    curve, plane = figure.axes[:2]
    assert [line.get_ydata().tolist() for line in curve.lines] == [[7.0, 6.0], [7.0, 0.5]]
    assert [line.get_linestyle() for line in curve.lines] == ["--", "-"]
    wrong, right = plane.lines[1:]
    assert right.get_xdata().tolist() == [-1.0, 0.0, 1.0]
    assert right.get_ydata().tolist() == [-3.0, 0.0, 3.0]
    assert wrong.get_ydata().tolist() == [0.0, 0.0, 0.0]
    assert "wrong: the loss goes from 7.00 to 6.00, and the line has a slope of 0.00." in words
    assert "right: the loss goes from 7.00 to 0.500, and the line has a slope of 3.00." in words


def test_the_image_has_all_differences_of_the_first_run_in_the_order_of_x(drawn):
    image = drawn[0].axes[2]
    np.testing.assert_array_equal(image.images[0].get_array(), [[3.0, 0.0, -3.0]] * 3)
    assert image.get_title(loc="left") == "(3, 3) differences"
    assert "3 by 3 differences" in drawn[1]


def test_the_slope_in_words_falls_where_the_line_falls():
    x = np.array([0.0, 1.0])
    falling = -2 * x[:, None]
    words = draw_mismatch(x, falling[:, 0], {"run": ([1.0, 0.0], falling, falling - falling[:, 0])})[1]
    assert "slope of -2.00" in words
