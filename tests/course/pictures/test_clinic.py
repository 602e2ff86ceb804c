"""The pictures of chapter 06: steps and their errors, maps of errors, the switchboard and its table."""

import math

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_06.pictures.step_sizes import (
    STEPS,
    best_step,
    draw_step_sizes,
    measured_slope,
    slope_errors,
)
from mlx_grpo_kit.course.chapters.chapter_06.pictures.switchboard import draw_patients, draw_switch, draw_verdicts
from mlx_grpo_kit.viz.error_maps import draw_check, short, tiles


def texts(axis):
    return [text.get_text() for text in axis.texts]


def image(axis):
    return np.asarray(axis.images[0].get_array())


# -- step sizes -------------------------------------------------------------------------------------------------------


def test_the_three_ways_to_measure_agree_with_calculus():
    # one side is off by h/2 f'', both sides by h^2/6 f''', the complex step by -h^2/6 f'''
    h = 1e-2
    errors = {
        method: measured_slope(np.sin, 1.0, h, method) - math.cos(1.0)
        for method in ("one side", "both sides", "complex step")
    }
    assert errors["one side"] == pytest.approx(-h / 2 * math.sin(1.0), rel=1e-2)
    assert errors["both sides"] == pytest.approx(-h * h / 6 * math.cos(1.0), rel=1e-2)
    assert errors["complex step"] == pytest.approx(h * h / 6 * math.cos(1.0), rel=1e-2)
    with pytest.raises(ValueError, match="no method is called 'guess'"):
        measured_slope(np.sin, 1.0, h, "guess")


@pytest.mark.parametrize(
    ("method", "dtype", "low", "high", "least"),
    [
        ("both sides", "float64", 1e-6, 1e-4, 1e-10),
        ("one side", "float64", 1e-9, 1e-6, 1e-7),
        ("both sides", "float32", 5e-4, 5e-2, 1e-4),
        ("complex step", "float64", 1e-14, 1e-7, 1e-15),
    ],
)
def test_the_best_steps(method, dtype, low, high, least):
    step, error = best_step(slope_errors(np.sin, np.cos, 1.0, method, dtype))
    assert low <= step <= high
    assert error <= least


def test_one_lucky_error_is_not_the_best_step():
    errors = np.where(STEPS > 1e-5, STEPS, 1e-10 / STEPS)
    errors[3] = 0.0
    step, error = best_step(errors)
    assert 1e-6 < step < 1e-4
    assert error > 1e-6


def test_float32_is_computed_in_float32():
    assert measured_slope(np.sin, 1.0, 1e-9, "both sides", "float32") == 0.0  # 1 + 1e-9 is 1 there
    assert measured_slope(np.sin, 1.0, 1e-9, "both sides", "float64") == pytest.approx(math.cos(1.0), rel=1e-6)


def test_the_words_and_the_digits_of_a_step():
    def draw(functions, h, method):
        chart, words = draw_step_sizes(*functions, 1.0, h, method=method, name="f")
        return words, chart.svg(words)

    sine = (np.sin, np.cos)
    words, svg = draw(sine, 1e-5, "both sides")
    assert words.startswith("The slope of f at x = 1 in float64, by both sides. With h = 1.0e-05 the")
    assert "a V: rounding on its left arm" in words
    assert 'stroke-width="2.4"' in svg
    assert ">+0.5403023058681398</tspan>" in svg  # the digits of cos(1)
    assert "Grey digits cancel; 5 remain" in draw(sine, 1e-12, "both sides")[1]
    assert "All digits agree." in draw(sine, 1e-12, "complex step")[1]
    assert "a flat line: this method is wrong here" in draw((np.abs, np.sign), 1e-12, "complex step")[0]


def test_a_step_must_be_positive():
    with pytest.raises(ValueError, match="h is 0; expected a positive step"):
        draw_step_sizes(np.sin, np.cos, 1.0, 0)


# -- maps of errors ---------------------------------------------------------------------------------------------------


def test_arrays_of_any_shape_are_drawn():
    assert tiles(np.arange(3))[0].tolist() == [[0, 1, 2]]
    assert tiles(np.array(5.0))[0].tolist() == [[5.0]]
    beside, size = tiles(np.arange(8).reshape(2, 2, 2))
    assert beside.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert size == (2, 2)
    table, _ = tiles(np.arange(24).reshape(3, 2, 2, 2))
    assert table.shape == (6, 4)
    assert table[2].tolist() == [8, 9, 12, 13]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1e-9, "0"), (0.25, ".25"), (-0.25, "-.25"), (3.456, "3.46"), (0.0012, "1e-3"), (12345.0, "1e4"),
        (math.nan, "nan"),
    ],
)  # fmt: skip
def test_short_numbers(value, text):
    assert short(value) == text


def test_a_check_is_drawn_where_it_is_wrong():
    analytic, numeric = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]), np.arange(1.0, 7.0).reshape(2, 3)
    figure, words = draw_check(
        ["w"],
        [analytic],
        [numeric],
        [analytic != numeric],
        steps=np.array([1e-1, 1e-3]),
        errors=np.array([0.5, 0.5]),
        where="w at (1, 2)",
    )
    assert image(figure.axes[0]).tolist() == [[0, 0, 0], [0, 0, 0.5]]
    assert texts(figure.axes[0]) == ["0", "0", "0", "0", "0", ".50"]
    assert figure.axes[1].lines[0].get_ydata().tolist() == [0.5, 0.5]
    assert words == (
        "Maps of analytic minus numeric, one for each input. w, 2 by 3: 1 of 6 wrong, by up to 0.5 at "
        "(1, 2). At w at (1, 2) the measured slope comes closest to backward's with a step of 1e-01: "
        "5e-01 apart. No step makes them agree: the curve is flat at the bottom, so the gradient is off."
    )


def test_rounding_is_white_and_elements_that_were_not_compared_are_grey():
    numeric = np.full((20, 20), np.nan)
    numeric[3, 4] = 1.0
    figure, words = draw_check(["x"], [np.ones((20, 20)) + 1e-12], [numeric], [np.zeros((20, 20), bool)])
    low, high = figure.axes[0].images[0].get_clim()
    assert (low, high) == (-1e-6, 1e-6)
    assert np.ma.getmaskarray(figure.axes[0].images[0].get_array()).sum() == 399
    assert "compared in sums; 1 compared alone" in words


def test_wrong_elements_of_a_large_map_get_a_cross():
    wrong = np.zeros((20, 20), bool)
    wrong[3, 4] = True
    figure, _ = draw_check(["x"], [np.where(wrong, 2.0, 1.0)], [np.ones((20, 20))], [wrong])
    [cross] = figure.axes[0].lines
    assert (cross.get_xdata().tolist(), cross.get_ydata().tolist(), cross.get_marker()) == ([4], [3], "x")


def test_many_inputs_take_several_rows():
    figure, words = draw_check(list("abcdef"), [np.ones(2)] * 6, [np.ones(2)] * 6, [np.zeros(2, bool)] * 6)
    assert len([axis for axis in figure.axes if axis.get_visible()]) == 6
    assert figure.get_figwidth() <= 10
    assert figure.axes[0].get_position().y0 > figure.axes[5].get_position().y1  # in two rows
    assert words.count("only rounding") == 6


# -- the switchboard --------------------------------------------------------------------------------------------------

TRIAL = {
    "name": "neg: a sign is lost",
    "healthy": "x: -g",
    "broken": "x: g",
    "analytic": np.array([[1.0, 2.0]]),
    "numeric": np.array([[-1.0, -2.0]]),
}


def test_a_switch_shows_formula_maps_and_verdicts():
    figure, words = draw_switch(**TRIAL, is_broken=True, verdicts={"mine": "caught", "sum": "missed"})
    formulas, values, backward, difference = figure.axes
    assert "broken  (in use)" in texts(formulas)
    assert {"\N{CHECK MARK} caught", "\N{BALLOT X} missed"} <= set(texts(formulas))
    assert image(values).tolist() == [[-1, -2]]
    assert image(backward).tolist() == [[1, 2]]
    assert image(difference).tolist() == [[2, 4]]
    assert words == (
        "neg: a sign is lost. The rule in use is broken: x: g. Backward's gradient has 2 of 2 "
        "wrong, by up to 4. mine: caught; sum: missed."
    )
    figure, words = draw_switch(**TRIAL, is_broken=False, verdicts={"mine": "passed", "sum": "missed"})
    assert "right  (in use)" in texts(figure.axes[0])
    assert "The rule in use is right: x: -g." in words


def test_the_table_counts_what_was_missed():
    sick = {"neg": {"mine": "caught", "sum": "missed"}, "exp": {"mine": "caught", "sum": "caught"}}
    healthy = {"neg": {"mine": "passed", "sum": "passed"}, "exp": {"mine": "false alarm", "sum": "passed"}}
    figure, words = draw_verdicts(sick, healthy)
    assert words == (
        "A table of 2 broken rules and 2 checkers. mine caught 2; false alarms on right rules: exp. sum "
        "caught 1 and missed neg; false alarms on right rules: none."
    )
    stamps = [text[2:] for text in texts(figure.axes[0]) if text[:1] in "\N{CHECK MARK}\N{BALLOT X}"]
    assert stamps == ["caught", "missed", "passed", "caught", "caught", "false alarm"]


def test_patients_have_scales_of_their_own():
    healthy = np.array([[1.0, 2.0], [3.0, 4.0]])
    figure, words = draw_patients([(healthy + 1e-11, healthy), (-healthy, healthy)])
    assert len(figure.axes) == 6
    assert figure.axes[4].images[0].get_clim() == pytest.approx((-1e-11, 1e-11), rel=1e-3)
    assert figure.axes[5].images[0].get_clim() == (-8, 8)
    assert "Patient 2: the measured gradient, row by row, is 1, 2; 3, 4; backward differs by -2, -4; -6, -8." in words
