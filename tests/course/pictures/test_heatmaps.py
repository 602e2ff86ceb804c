"""Gradient heatmaps and matrices with numbers: what is drawn for given arrays, as chapter 05's panel asks for it."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from mlx_grpo_kit.course.pictures.heatmaps import (
    CELL_HEIGHT,
    CELL_WIDTH,
    cell_text,
    draw_gradient_heatmap,
    draw_matrices,
)
from mlx_grpo_kit.viz.style import NEGATIVE

MINUS = "\N{MINUS SIGN}"
X = np.array([[1.0, -2.0], [3.0, 0.5]])


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def cells(figure):
    """(left, bottom, colour, text) of every filled cell; the texts of cells are centred in them."""
    page = figure.axes[0]
    found = []
    for box in page.patches:
        if isinstance(box, Rectangle) and box.get_fill():
            x, y = box.get_xy()
            [text] = [
                t.get_text()
                for t in page.texts
                if t.get_position() == pytest.approx((x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2))
            ]
            found.append((x, y, box.get_facecolor()[:3], text))
    return found


def frames(figure):
    return [box for box in figure.axes[0].patches if isinstance(box, Rectangle) and not box.get_fill()]


def colors_of(figure, text):
    return {color for _, _, color, each in cells(figure) if each == text}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"), (1e-15, "0"), (0.004, "≈0"), (-0.004, "≈0"), (0.25, "0.25"), (-0.5, f"{MINUS}0.5"), (2.0, "2"),
        (20.0, "20"), (12.34, "12.3"), (1234.5, "1234"), (np.nan, "nan"), (np.inf, "inf"), (-np.inf, f"{MINUS}inf"),
    ],
)  # fmt: skip
def test_numbers_in_cells(number, text):
    assert cell_text(number) == text


def test_colours_are_centred_on_zero_and_zero_is_white():
    grad = np.array([[0.0, 4.0], [-2.0, -4.0]])
    figure, _ = draw_gradient_heatmap("f(x)", {"x": np.full((2, 2), 7.0)}, [[9.0]], [[1.0]], {"x": grad})
    assert colors_of(figure, "0") == {to_rgb("#ffffff")}
    (strongest,), (weaker,), (opposite,) = (colors_of(figure, text) for text in (f"{MINUS}4", f"{MINUS}2", "4"))
    assert strongest == pytest.approx(to_rgb(NEGATIVE))
    assert opposite == pytest.approx(to_rgb("#5790fc"))
    assert weaker == pytest.approx((np.array(strongest) + 1) / 2, abs=0.01)  # half way to white


def test_a_nan_and_an_inf_are_written_and_do_not_set_the_scale():
    figure, words = draw_gradient_heatmap("f(x)", {"x": X}, [[1.0]], [[1.0]], {"x": [[np.nan, np.inf], [0.5, 0.0]]})
    assert colors_of(figure, "nan") == colors_of(figure, "inf") == {to_rgb("#d0d0d0")}
    assert to_rgb("#5790fc") in [pytest.approx(color) for color in colors_of(figure, "0.5")]
    assert "they sum to nan" in words


def test_the_element_is_framed_in_out_and_in_g():
    g = np.array([[0.0, 0.0], [1.0, 0.0]])
    figure, words = draw_gradient_heatmap("2 * x", {"x": X}, 2 * X, g, {"x": 2 * g})
    framed = [box.get_xy() for box in frames(figure)]
    places = {(round(x, 6), round(y, 6)): text for x, y, _, text in cells(figure)}
    assert [places[round(x, 6), round(y, 6)] for x, y in framed] == ["6", "1"]
    assert words == ("Heatmaps of 2 * x. Starting with out[1, 0] = 6: only x[1, 0] gets a gradient, 2.")
    assert "only x[1, 0] gets a gradient, 2." in texts(figure)


@pytest.mark.parametrize(
    ("grad", "words"),
    [
        (np.zeros((2, 2)), "no number of x gets a gradient."),
        ([[0.25, -0.25], [0, 0]], "2 of the 4 numbers of x get a gradient, all in row 0; they sum to 0."),
        ([[0.5, 0.5], [0, 0]], "2 of the 4 numbers of x get a gradient, all in row 0; they sum to 1."),
        ([[0.1, 0.2], [-0.3, 0]], "3 of the 4 numbers of x get a gradient; they sum to 0."),
        ([[0, 1.0], [0, 2.0]], "2 of the 4 numbers of x get a gradient, all in column 1; they sum to 3."),
        ([[1.0, 1], [0, 2.0]], "3 of the 4 numbers of x get a gradient; they sum to 4."),
        ([[1.0, 1], [0, 2], [0, 0]], "3 of the 6 numbers of x get a gradient, all in rows 0, 1; they sum to 4."),
        ([[1.0, 1], [1, 1]], "all 4 numbers of x get a gradient; they sum to 4."),
        ([[1e-17, 0], [0, 3.0]], "only x[1, 1] gets a gradient, 3."),
    ],
)
def test_the_words_name_the_numbers_that_get_a_gradient(grad, words):
    _, alt = draw_gradient_heatmap("f(x)", {"x": np.ones(np.shape(grad))}, [[1.0]], [[1.0]], {"x": grad})
    assert alt == f"Heatmaps of f(x). Starting with out[0, 0] = 1: {words}"


def test_two_inputs_of_different_shapes_and_a_start_with_all():
    b, out = np.array([10.0, 20.0]), X + np.array([10.0, 20.0])
    figure, words = draw_gradient_heatmap(
        "x + b", {"x": X, "b": b}, out, np.ones((2, 2)), {"x": np.ones((2, 2)), "b": np.array([2.0, 2.0])}
    )
    assert {"x", "b", "out", "gradient of x", "gradient of b", "g", "forward", "backward"} <= set(texts(figure))
    assert words.startswith("Heatmaps of x + b. Starting with the sum of all of out: all 4 numbers of x")
    assert words.endswith("all 2 numbers of b get a gradient; they sum to 4.")
    assert len(frames(figure)) == 2  # one around all of out, one around all of g
    assert len(cells(figure)) == 2 * (4 + 2 + 4)
    width, height = figure.get_size_inches()
    for x, y, _, _ in cells(figure):
        assert 0 < x < width - CELL_WIDTH
        assert 0 < y < height - CELL_HEIGHT


def test_matrices_are_side_by_side():
    p = np.array([0.5, 0.5])
    figure, words = draw_matrices(
        {"p": p, "Jacobian": np.diag(p) - np.outer(p, p)},
        colored=["Jacobian"],
        framed={"p": [[True, False]]},
        title="Two logits",
    )
    assert words == (f"Two logits. p: 0.5, 0.5. Jacobian: 0.25, {MINUS}0.25; {MINUS}0.25, 0.25.")
    assert len(cells(figure)) == 6
    assert len(frames(figure)) == 1
    assert colors_of(figure, "0.5") == {to_rgb("#f3f3f3")}
    assert colors_of(figure, f"{MINUS}0.25") != colors_of(figure, "0.25")
