"""Networks side by side: gradients by layer, shares, running statistics."""

import pytest

from mlx_grpo_kit.course.pictures.comparisons import draw_depth, draw_running, draw_shares


def test_gradients_by_layer_and_smoothed_losses():
    figure, words = draw_depth(
        {"plain": [1e-9, 1e-3], "residual": [2.0, 1.0]},
        {"plain": [2.0, 2.0, 2.0, 2.0], "residual": [4.0, 2.0, 1.0, 0.0]},
        window=2,
    )
    assert words == (
        "plain: gradient of the first layer 1e-09, of the last 1e-03; loss from 2.00 to 2.00. "
        "residual: gradient of the first layer 2e+00, of the last 1e+00; loss from 3.00 to 0.50."
    )
    left, right = figure.axes
    assert left.get_yscale() == "log"
    assert [line.get_ydata().tolist() for line in left.lines] == [[1e-9, 1e-3], [2.0, 1.0]]
    assert right.lines[1].get_xydata().tolist() == [[2, 3], [3, 1.5], [4, 0.5]]
    assert len({line.get_linestyle() for line in right.lines}) == 2  # told apart without colour


def test_shares():
    figure, words = draw_shares({"eval()": 0.986, "one by one": 0.57}, best="eval()", title="right")
    assert words == "right: eval() 99%, one by one 57%"
    [axis] = figure.axes
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([98.6, 57])
    assert [text.get_text() for text in axis.texts] == ["99%", "57%"]
    assert axis.patches[0].get_facecolor() != axis.patches[1].get_facecolor()
    assert axis.yaxis_inverted()  # from top to bottom


def test_running_statistics_are_described_next_to_the_true_values():
    figure, words = draw_running([(2.0, 3.0, 0.2, 1.2), (4.0, 5.0, 0.6, 1.6)], true_mean=3.0, true_var=4.0)
    assert "the running mean ends at 0.60 (true 3), the running variance at 1.60 (true 4)" in words
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["mean", "variance"]


def test_long_names_of_bars_have_room():
    figure, _ = draw_shares({"ResNet, scrambled, moved by a pixel": 0.5}, best="none")
    figure.draw_without_rendering()
    [label] = figure.axes[0].get_yticklabels()
    assert label.get_window_extent().x0 >= 0
