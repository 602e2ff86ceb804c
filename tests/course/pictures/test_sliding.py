"""Pictures of a kernel that slides and of im2col's matrix: what is drawn and said, as a panel would ask for them."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course.chapters.chapter_08.pictures.sliding import (
    BORDER,
    CHOSEN,
    draw_convolution,
    draw_im2col,
    read_kernel,
    stops,
)
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE, ZERO

RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(size=(8, 6))
SOBEL = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])


def titled(chart, title):
    """The sheet whose title starts with `title`."""
    [sheet] = [sheet for sheet in chart.areas if sheet.title.startswith(title)]
    return sheet


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1), (3, 2)])
def test_the_output_equals_torchs(stride, padding):
    chart, words = draw_convolution(IMAGE, SOBEL, stride=stride, padding=padding, position=1)
    expected = torch.conv2d(
        torch.tensor(IMAGE)[None, None], torch.tensor(SOBEL)[None, None], stride=stride, padding=padding
    )[0, 0].numpy()
    output = titled(chart, "output")
    np.testing.assert_allclose(output.numbers, expected)
    assert stops(IMAGE.shape, 3, stride, padding) == expected.shape
    assert f"at stop 2 of {expected.size} on an image of 8 x 6" in words
    assert f"add up to {expected[0, 1]:.2f}".replace("-", "\N{MINUS SIGN}") in words
    assert f"the output of {expected.shape[0]} x {expected.shape[1]}." in words
    # Colours stand for the same size on both sides of 0.
    far = np.abs(expected).max()
    assert [output.color(number) for number in (-far, 0, far)] == [NEGATIVE, ZERO, POSITIVE]


def test_the_window_and_its_products():
    chart, _ = draw_convolution(IMAGE, SOBEL, stride=2, padding=1, position=4)  # row 1, column 1 of an output 4 x 3
    window = np.pad(IMAGE, 1)[2:5, 2:5]
    assert titled(chart, "image 8 x 6, padding 1").frames == [(2, 2, 3, 3)]
    assert titled(chart, "output 4 x 3").frames == [(1, 1, 1, 1)]
    np.testing.assert_allclose(titled(chart, "window").numbers, window)
    np.testing.assert_allclose(titled(chart, "products").numbers, window * SOBEL)
    assert titled(chart, "kernel").written == "-1 0 1 -2 0 2 -1 0 1".replace("-", "\N{MINUS SIGN}").split()
    total = f"{(window * SOBEL).sum():.2f}".replace("-", "\N{MINUS SIGN}")
    assert f"their sum is {total}" in chart.svg("")


def test_a_stop_beyond_the_last_is_the_last():
    assert draw_convolution(IMAGE, SOBEL, position=999)[1] == draw_convolution(IMAGE, SOBEL, position=23)[1]
    assert "at stop 24 of 24" in draw_convolution(IMAGE, SOBEL, position=999)[1]


def test_a_kernel_that_does_not_fit():
    with pytest.raises(ValueError, match="a kernel of 3 x 3 does not fit into an image of 2 x 5 with padding 0"):
        draw_convolution(np.zeros((2, 5)), SOBEL)
    assert stops((2, 5), 3, 1, 1) == (2, 5)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("-1 0 1  -2 0 2  -1 0 1", SOBEL.ravel()),
        (".5, 1.25 +3; 1e-3 2. -.5 0 0 1", [0.5, 1.25, 3, 1e-3, 2, -0.5, 0, 0, 1]),
        ("[[1, 2, 3], [4, 5, 6], [7, 8, 9]]", range(1, 10)),
    ],
)
def test_a_kernel_typed_as_text(text, numbers):
    assert read_kernel(text).shape == (3, 3)
    assert read_kernel(text).ravel().tolist() == list(numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [("1 2 x", "'x' is not a number"), ("", "0 numbers"), ("1 " * 12, "12 numbers"), ("inf", "'inf' is")],
)
def test_text_that_is_not_a_kernel_raises_an_error(text, words):
    with pytest.raises(ValueError, match=words):
        read_kernel(text)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 0), (3, 1, 1), (2, 2, 0), (3, 2, 1)])
def test_the_matrix_is_torchs_unfold(size, stride, padding):
    chart, words = draw_im2col((5, 4), size, stride=stride, padding=padding, position=0, pixel=6)
    numbers = torch.arange(1.0, 21.0).reshape(1, 1, 5, 4)  # torch pads with 0, so pixel 0 is called 1
    expected = torch.nn.functional.unfold(numbers, size, padding=padding, stride=stride)[0].numpy() - 1
    right = titled(chart, "columns")
    texts = np.array(right.written).reshape(expected.shape)
    assert texts.tolist() == [
        ["\N{MIDDLE DOT}" if number < 0 else f"{number:.0f}" for number in row] for row in expected
    ]
    assert right.title == f"columns [{size * size}, {expected.shape[1]}]: one for each stop"
    copies = int((expected == 6).sum())
    assert words.endswith(f"Pixel 6 is in {copies} of the columns.")
    colors = [right.color(number) for number in right.numbers.ravel()]
    assert colors.count(CHOSEN) == copies
    assert colors.count(BORDER) == (expected < 0).sum()


def test_im2col_frames_the_stop_and_its_column():
    chart, words = draw_im2col((5, 5), 3, position=4, pixel=12)
    assert "pixels 6, 7, 8, 11, 12, 13, 16, 17, 18. Pixel 12 is in 9 of" in words
    assert titled(chart, "columns").frames == [(0, 4, 9, 1)]
    assert "Pixel 0 is in 1 of" in draw_im2col((5, 5), 3, position=4, pixel=0)[1]
    chart, words = draw_im2col((5, 5), 3, stride=2, position=24, pixel=0)  # the last stop
    assert "matrix of 9 rows and 4 columns" in words
    assert titled(chart, "columns").frames == [(0, 3, 9, 1)]
    assert titled(chart, "image").frames == [(2, 2, 3, 3)]
