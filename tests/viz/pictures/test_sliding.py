"""Pictures of a kernel that slides and of im2col's matrix: what is drawn and said, as a panel would ask for them."""

import numpy as np
import pytest
import torch
from ipywidgets import IntSlider

from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.viz.pictures.tensors.sliding import draw_convolution, draw_im2col, read_kernel, stops

RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(size=(8, 6))
SOBEL = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])


def titled(figure, title):
    """The axes under a title that starts so."""
    [axis] = [
        axis for axis in figure.axes if any(axis.get_title(loc=loc).startswith(title) for loc in ("left", "center"))
    ]
    return axis


def pixels(axis):
    return np.asarray(axis.images[0].get_array())


def frame(axis):
    """(row, column, height, width) of the frame that is not filled."""
    [patch] = [patch for patch in axis.patches if not patch.get_fill()]
    return patch.get_y() + 0.5, patch.get_x() + 0.5, patch.get_height(), patch.get_width()


def written(axis):
    return [text.get_text() for text in axis.texts]


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1), (3, 2)])
def test_the_output_is_torchs(stride, padding):
    figure, words = draw_convolution(IMAGE, SOBEL, stride=stride, padding=padding, position=1)
    expected = torch.conv2d(
        torch.tensor(IMAGE)[None, None], torch.tensor(SOBEL)[None, None], stride=stride, padding=padding
    )[0, 0].numpy()
    output = titled(figure, "output")
    np.testing.assert_allclose(pixels(output), expected)
    assert stops(IMAGE.shape, 3, stride, padding) == expected.shape
    assert f"at stop 2 of {expected.size} on an image of 8 x 6" in words
    assert f"add up to {expected[0, 1]:.2f}".replace("-", "\N{MINUS SIGN}") in words
    assert f"the output of {expected.shape[0]} x {expected.shape[1]}." in words
    # Colours stand for the same size on both sides of 0.
    assert output.images[0].norm.vmin == pytest.approx(-np.abs(expected).max())
    assert output.images[0].norm.vmax == pytest.approx(np.abs(expected).max())


def test_the_window_and_its_products():
    figure, _ = draw_convolution(IMAGE, SOBEL, stride=2, padding=1, position=4)  # row 1, column 1 of an output 4 x 3
    window = np.pad(IMAGE, 1)[2:5, 2:5]
    assert frame(titled(figure, "image 8 x 6, padding 1")) == (2, 2, 3, 3)
    assert frame(titled(figure, "output 4 x 3")) == (1, 1, 1, 1)
    np.testing.assert_allclose(pixels(titled(figure, "window")), window)
    np.testing.assert_allclose(pixels(titled(figure, "products")), window * SOBEL)
    assert written(titled(figure, "kernel")) == [
        "\N{MINUS SIGN}1",
        "0",
        "1",
        "\N{MINUS SIGN}2",
        "0",
        "2",
        "\N{MINUS SIGN}1",
        "0",
        "1",
    ]
    total = f"{(window * SOBEL).sum():.2f}".replace("-", "\N{MINUS SIGN}")
    assert f"their sum is {total}" in [text.get_text() for text in figure.texts]


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
def test_a_kernel_out_of_words(text, numbers):
    assert read_kernel(text).shape == (3, 3)
    assert read_kernel(text).ravel().tolist() == list(numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [("1 2 x", "'x' is no number"), ("", "0 numbers"), ("1 " * 12, "12 numbers"), ("inf", "'inf' is")],
)
def test_what_is_no_kernel_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_kernel(text)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 0), (3, 1, 1), (2, 2, 0), (3, 2, 1)])
def test_the_matrix_is_torchs_unfold(size, stride, padding):
    figure, words = draw_im2col((5, 4), size, stride=stride, padding=padding, position=0, pixel=6)
    numbers = torch.arange(1.0, 21.0).reshape(1, 1, 5, 4)  # torch pads with 0, so pixel 0 is called 1
    expected = torch.nn.functional.unfold(numbers, size, padding=padding, stride=stride)[0].numpy() - 1
    right = titled(figure, "columns")
    texts = np.array(written(right)).reshape(expected.shape)
    assert texts.tolist() == [
        ["\N{MIDDLE DOT}" if number < 0 else f"{number:.0f}" for number in row] for row in expected
    ]
    assert right.get_title(loc="left") == f"columns [{size * size}, {expected.shape[1]}]: one for each stop"
    copies = int((expected == 6).sum())
    assert words.endswith(f"Pixel 6 stands in {copies} of the columns.")
    assert int((pixels(right) == 1).sum()) == copies
    assert (pixels(right) == 0.5).sum() == (expected < 0).sum()


def test_the_im2col_panel():
    panel = Panel(
        lambda stop, pixel, stride: draw_im2col((5, 5), 3, stride=stride, position=stop, pixel=pixel),
        stop=IntSlider(4, max=24),
        pixel=IntSlider(12, max=24),
        stride=IntSlider(1, min=1, max=3),
    )
    assert "pixels 6, 7, 8, 11, 12, 13, 16, 17, 18. Pixel 12 stands in 9 of" in panel.picture.alt
    assert frame(titled(panel.picture.figure, "columns")) == (0, 4, 9, 1)
    panel.set(pixel=0)
    assert "Pixel 0 stands in 1 of" in panel.picture.alt
    panel.set(stride=2, stop=24)
    assert "matrix of 9 rows and 4 columns" in panel.picture.alt
    assert frame(titled(panel.picture.figure, "columns")) == (0, 3, 9, 1)
    assert frame(titled(panel.picture.figure, "image")) == (2, 2, 3, 3)
