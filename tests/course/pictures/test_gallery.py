"""Functions above, slopes below: what is drawn, and where a line breaks."""

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_05.pictures.gallery import broken_at_jumps, draw_gallery, jumps_of

XS = np.linspace(-2, 2, 81)


def parts(figure, column, columns):
    """The axes of the function and of its slope."""
    return figure.axes[column], figure.axes[columns + column]


def test_function_above_and_slope_below():
    figure, words = draw_gallery({"square": (XS, XS**2, 2 * XS), "exp": (XS, np.exp(XS), np.exp(XS))})
    above, below = parts(figure, 0, 2)
    assert above.get_title(loc="left") == "square"
    assert above.lines[0].get_ydata() == pytest.approx(XS**2)
    assert below.lines[0].get_ydata() == pytest.approx(2 * XS)
    assert words == (
        "Functions and their slopes. square, x from -2 to 2: slopes from -4.00 to 4.00. exp, x from -2 to "
        "2: slopes from 0.14 to 7.39 and beyond."
    )


def test_a_jump_breaks_the_line_and_a_value_between_two_jumps_is_a_dot():
    (x, line), (alone, value) = broken_at_jumps(XS, np.sign(XS))
    assert alone.tolist() == [0.0]
    assert value.tolist() == [0.0]
    assert np.isnan(line[np.isin(x, 0.0)]).all()
    assert not np.isin(0.0, line[np.isfinite(line)])
    figure, words = draw_gallery({"abs": (XS, np.abs(XS), np.sign(XS))})
    _, below = parts(figure, 0, 1)
    assert below.lines[1].get_xdata().tolist() == [0.0]
    assert words.endswith("slopes from -1.00 to 1.00, with a jump.")


@pytest.mark.parametrize(
    "slope",
    [
        pytest.param(2 * XS, id="line"),
        pytest.param(np.cos(XS), id="cos"),
        pytest.param(1 / np.linspace(0.02, 3, 81), id="1 / x"),
        pytest.param(0.5 / np.sqrt(np.linspace(0.001, 3, 161)), id="slope of sqrt"),
        pytest.param(np.concatenate([[np.inf], 0.5 / np.sqrt(np.linspace(0.0375, 3, 80))]), id="from infinity"),
        pytest.param(1 - np.tanh(3 * XS) ** 2, id="bump"),
        pytest.param(np.zeros(81), id="flat"),
    ],
)
def test_smooth_slopes_have_no_jumps(slope):
    assert not jumps_of(slope).any()


def test_a_jump_between_slopes_that_are_not_flat():
    slope = np.where(XS > 0, 1 + XS / 10, XS / 10)
    assert np.flatnonzero(jumps_of(slope)).tolist() == [40]


def test_relu_has_one_jump_and_no_dot():
    slope = (XS > 0).astype(float)
    assert jumps_of(slope).sum() == 1
    assert len(broken_at_jumps(XS, slope)[1][0]) == 0


def test_steep_slopes_are_cut_off_and_scales_can_be_shared():
    curves = {"steep": (XS, XS, 100 * XS), "mild": (XS, XS, 0.25 * np.ones(81))}
    figure, _ = draw_gallery(curves, steepest=3.0)
    assert max(figure.axes[2].get_ylim()) < 4
    assert max(figure.axes[3].get_ylim()) < 0.4
    figure, _ = draw_gallery(curves, steepest=3.0, same_scale=True)
    assert figure.axes[2].get_ylim() == figure.axes[3].get_ylim()
