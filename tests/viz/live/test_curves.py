"""The picture of a run: its smoothed line against the definition, gaps, panels, and its description."""

import base64
import io
import json
import math
import re

import numpy as np
import pytest
from PIL import Image

from mlx_grpo_kit.viz.live.curves import (
    comes_now_and_then,
    curve,
    curves_for_page,
    describe_curves,
    draw_curves,
    five_digits,
    latest,
    smooth,
)
from mlx_grpo_kit.viz.picture import as_picture, new_figure, show_picture, to_png
from mlx_grpo_kit.viz.style import three_digits


def weighted_mean(values, smoothing):
    """Compute the definition: the newest finite value has weight 1, and each older one `smoothing` times as much."""
    finite = np.array([value for value in values if math.isfinite(value)])
    weights = smoothing ** np.arange(len(finite))[::-1]
    return float(np.sum(weights * finite) / np.sum(weights))


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9])
def test_smooth_is_the_weighted_mean_of_the_values_so_far(smoothing):
    values = np.random.default_rng(0).normal(size=40).tolist()
    expected = [weighted_mean(values[:end], smoothing) for end in range(1, 41)]
    np.testing.assert_allclose(smooth(values, smoothing), expected, rtol=1e-12)


def test_smooth_leaves_gaps_and_keeps_them_out_of_the_average():
    values = [1.0, math.nan, 3.0, math.inf, 5.0]
    averages = smooth(values, 0.5)
    assert [math.isnan(value) for value in averages] == [False, True, False, True, False]
    assert averages[4] == pytest.approx(weighted_mean(values, 0.5))


def test_a_nan_breaks_the_line_and_the_points():
    figure = draw_curves([1, 2, 3, 4], {"reward": [0.1, math.nan, 0.3, 0.4]}, {"reward": ["reward"]})
    points, line = figure.axes[0].lines
    assert np.isnan(points.get_ydata()).tolist() == np.isnan(line.get_ydata()).tolist() == [False, True, False, False]


NAN = math.nan


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([NAN, 0.1, NAN, NAN, 0.2, NAN, NAN, 0.3], True),
        ([0.1, NAN, 0.2, NAN, 0.3], True),
        ([0.1, 0.2, NAN, NAN, NAN, 0.3, 0.4], False),  # a gap in a metric of every step
        ([NAN] * 50 + [0.1, 0.2, 0.3], False),  # a metric that began late
        ([0.1, 0.2, 0.3] + [NAN] * 50, False),  # a metric that stopped early
        ([0.1, NAN, 0.2, 0.3], False),
        ([NAN, NAN, 0.1], False),
        ([NAN], False),
        ([], False),
    ],
)
def test_comes_now_and_then(values, expected):
    assert comes_now_and_then(values) is expected


def test_a_metric_measured_now_and_then_is_joined_without_smoothing():
    accuracy = [NAN, 0.5, NAN, NAN, 0.9, NAN, NAN, 0.7, NAN]
    figure = draw_curves([*range(10, 100, 10)], {"accuracy": accuracy}, {"accuracy": ["accuracy"]}, smoothing=0.9)
    [line] = figure.axes[0].lines
    assert line.get_xdata().tolist() == [20, 50, 80]
    assert line.get_ydata().tolist() == [0.5, 0.9, 0.7]  # no average, no gap
    assert line.get_markevery() is None
    assert line.get_marker() == "o"
    assert figure.axes[0].get_title(loc="right") == "0.700"
    words = describe_curves([*range(9)], {"accuracy": accuracy}, {"a": ["accuracy"]}, smoothing=0.9)
    assert words.endswith("accuracy: from 0.500 to 0.700 (lowest 0.500, highest 0.900).")


def test_a_logarithmic_panel_next_to_a_linear_one():
    history = {"loss": [2.0, 1.0, 0.5], "difference": [2e-16, 3e-15, 5e-14]}
    panels = {"loss": ["loss"], "largest difference": ["difference"]}
    plain, log = draw_curves([1, 2, 3], history, panels, smoothing=0.5, log=["largest difference"]).axes
    assert (plain.get_yscale(), log.get_yscale()) == ("linear", "log")
    assert log.get_ylim() == pytest.approx((1e-16, 1e-13), rel=1e-6)
    expected = 10 ** weighted_mean(np.log10(history["difference"]), 0.5)  # the mean of the logarithms
    assert log.lines[1].get_ydata()[-1] == pytest.approx(expected)
    assert log.get_title(loc="right") == three_digits(expected)
    assert plain.lines[1].get_ydata()[-1] == pytest.approx(weighted_mean(history["loss"], 0.5))


def test_a_long_unsmoothed_line_shows_points_only_where_no_line_is():
    values = [0.5] * 70
    values[10] = values[12] = NAN
    points, line = draw_curves([*range(70)], {"a": values}, {"a": ["a"]}, smoothing=0).axes[0].lines
    assert np.flatnonzero(np.isfinite(points.get_ydata())).tolist() == [11]
    assert np.isfinite(line.get_ydata()).sum() == 68
    assert np.isfinite(draw_curves([*range(70)], {"a": values}, {"a": ["a"]}).axes[0].lines[0].get_ydata()).sum() == 68
    assert (
        np.isfinite(
            draw_curves([*range(60)], {"a": values[:60]}, {"a": ["a"]}, smoothing=0).axes[0].lines[0].get_ydata()
        ).sum()
        == 58
    )


def test_zeros_on_a_logarithmic_axis_are_at_its_bottom():
    history = {"d": [0.0, 1e-16, 0.0, 1e-12, 0.0]}
    figure = draw_curves([1, 2, 3, 4, 5], history, {"d": ["d"]}, smoothing=0, log=["d"])
    to_png(figure)
    axis = figure.axes[0]
    _, line, zeros = axis.lines
    assert np.isnan(line.get_ydata()).tolist() == [True, False, True, False, True]
    assert zeros.get_xdata().tolist() == [1, 3, 5]
    bottom = axis.transAxes.transform((0, 0))[1]
    assert zeros.get_transform().transform([(1, 0.0)])[0][1] == pytest.approx(bottom)
    assert axis.get_title(loc="right") == "0.00"
    assert axis.get_ylim() == pytest.approx((1e-16, 1e-12))
    words = describe_curves([1, 2, 3, 4, 5], history, {"d": ["d"]}, smoothing=0, log=["d"])
    assert words.endswith("d: from 1.00e-16 to 0.00 (lowest 0.00, highest 1.00e-12).")


@pytest.mark.parametrize("values", [[0.0, 0.0], [-1.0, -2.0]])
def test_without_a_positive_value_the_axis_stays_linear(values):
    figure = draw_curves([1, 2], {"d": values}, {"d": ["d"]}, smoothing=0, log=["d"])
    assert figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].lines[1].get_ydata().tolist() == values
    assert describe_curves([1, 2], {"d": values}, {"d": ["d"]}, log=["d"]).endswith(
        f"d: from {values[0]:.2f} to {values[1]:.2f} (lowest {min(values):.2f}, highest {max(values):.2f})."
    )


def test_one_value_fills_a_power_of_ten():
    axis = draw_curves([1], {"d": [1e-3]}, {"d": ["d"]}, log=["d"]).axes[0]
    assert axis.get_ylim() == pytest.approx((1e-3, 1e-2))


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        ([1.0, 2.0], False, 2.0),
        ([1.0, NAN], False, NAN),
        ([1.0, 2.0, NAN, 3.0, NAN, NAN, 4.0, NAN], False, 4.0),
        ([1e-9, 0.0], True, 0.0),
        ([1e-9, 1e-7], True, 1e-7),
    ],
)
def test_the_current_number_of_a_metric(values, log, expected):
    assert latest(values, 0.0, log) == pytest.approx(expected, nan_ok=True)


def test_curve_returns_the_drawn_line():
    assert curve([4.0, 1.0], 0.0) == ([0, 1], [4.0, 1.0])
    assert curve([NAN, 4.0, NAN, 1.0], 0.5) == ([1, 3], [4.0, 1.0])


def test_an_infinite_value_does_not_spoil_the_axis():
    figure = draw_curves([1, 2, 3], {"kl": [0.1, math.inf, 0.3]}, {"kl": ["kl"]})
    to_png(figure)
    assert np.isfinite(figure.axes[0].get_ylim()).all()


def test_lines_of_one_panel_differ_in_colour_style_and_marker():
    names = ["a", "b", "c", "d"]
    figure = draw_curves([1, 2], {name: [1.0, 2.0] for name in names}, {"all": names})
    lines = figure.axes[0].lines[1::2]
    for look in ("get_color", "get_linestyle", "get_marker"):
        assert len({getattr(line, look)() for line in lines}) == 4, look
    assert [text.get_text().split()[0] for text in figure.axes[0].get_legend().get_texts()] == names


@pytest.mark.parametrize("log", [(), ["two"]])
def test_the_legend_is_above_the_lines(log):
    history = {"a": [1e-9, 1.0], "b": [1.0, 1e-6]}
    figure = draw_curves([1, 2], history, {"two": ["a", "b"], "one": ["a"]}, log=log)
    figure.draw_without_rendering()
    axis = figure.axes[0]
    assert axis.get_legend().get_window_extent().y0 >= axis.transData.transform((1, 1.0))[1]


def test_panels_wrap_and_unused_places_stay_empty():
    panels = {name: [name] for name in "abc"}
    figure = draw_curves([1], {name: [1.0] for name in "abc"}, panels)
    assert [axis.get_visible() for axis in figure.axes] == [True] * 3


def test_the_axis_is_as_long_as_the_whole_run():
    assert draw_curves([1, 2], {"a": [1, 2]}, {"a": ["a"]}, max_steps=60).axes[0].get_xlim()[1] > 60
    assert draw_curves([1, 9], {"a": [1, 2]}, {"a": ["a"]}).axes[0].get_xlim()[1] < 10


def test_a_metric_without_values_is_named_along_with_existing_metrics():
    figure = draw_curves([1], {"reward": [1.0], "kl": [0.0]}, {"rewrad": ["rewrad"]})
    [words] = [text.get_text() for text in figure.axes[0].texts]
    assert words == "waiting for rewrad\nmetrics so far: kl, reward"


def test_the_picture_is_white_and_has_the_size_it_says():
    figure = draw_curves([1], {"a": [1.0]}, {"a": ["a"]}, title="T", note="n")
    data = as_picture(figure, 'words & "more"')._repr_mimebundle_()
    png = re.search(r"data:image/png;base64,([^\"]+)", data["text/html"])[1]
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    assert picture.getpixel((1, 1)) == (255, 255, 255)
    assert picture.width == pytest.approx(int(re.search(r'width="(\d+)"', data["text/html"])[1]) * 1.5, abs=1)
    assert 'alt="words &amp; &quot;more&quot;"' in data["text/html"]
    assert data["text/plain"] == 'words & "more"'


def test_the_description_has_start_end_and_extremes():
    history = {"reward": [0.25, 1.0, 0.0, 0.75], "kl": [math.nan] * 4}
    words = describe_curves([1, 2, 3, 4], history, {"both": ["reward", "kl"]}, title="Addition", smoothing=0.0)
    assert words == (
        "Addition. Training curves over 4 steps. reward: from 0.250 to 0.750 (lowest 0.00, highest 1.00). "
        "kl: no values."
    )


@pytest.mark.parametrize(("value", "words"), [(0.71, "0.710"), (1.0, "1.00"), (123.4, "123"), (1e-6, "1.00e-06")])
def test_three_digits(value, words):
    assert three_digits(value) == words


def test_a_picture_without_a_description_raises_an_error():
    with pytest.raises(ValueError, match="alt is empty"):
        show_picture(new_figure(1, 1), " ")


# -- for a live page --------------------------------------------------------------------------------------------------


def test_a_page_gets_every_step_of_a_short_run_with_the_line_that_the_stored_picture_has():
    history = {"reward": [0.1, 0.2, math.nan, 1 / 3], "d": [1e-3, 0.0, 1e-5, 1e-6]}
    page = curves_for_page([1, 2, 5, 6], history, {"reward": ["reward"], "difference": ["d"]}, log=["difference"])
    assert page["steps"] == [1, 2, 5, 6]
    assert page["columns"] == {"reward": [0.1, 0.2, None, 0.33333], "d": [1e-3, 0.0, 1e-5, 1e-6]}
    reward, difference = page["panels"]
    for panel, name, log in ((reward, "reward", False), (difference, "d", True)):
        assert panel["log"] == log
        sent = [math.nan if height is None else height for height in panel["heights"][name]]
        assert sent == pytest.approx(curve(history[name], 0.7, log)[1], rel=1e-4, nan_ok=True)
    assert json.loads(json.dumps(page, allow_nan=False)) == page


def test_a_page_draws_a_line_without_smoothing_from_its_values_alone():
    history = {"reward": [0.1, 0.2], "eval": [math.nan, 0.5]}
    (panel,) = curves_for_page([1, 2], history, {"both": ["reward", "eval"]}, smoothing=0)["panels"]
    assert (panel["heights"], panel["rare"]) == ({}, [])


def test_a_page_gets_some_six_hundred_steps_of_a_long_run_with_its_extremes_its_gaps_and_what_is_rare():
    rng = np.random.default_rng(0)
    steps = [*range(1, 5001)]
    noise, other, rare = ([*map(float, rng.normal(size=5000))] for _ in range(3))
    noise[1234], noise[4321] = 50.0, -50.0
    other[777] = math.inf
    rare = [value if step % 100 == 50 else math.nan for step, value in zip(steps, rare, strict=True)]
    history = {"noise": noise, "other": other, "rare": rare}
    page = curves_for_page(steps, history, {"a": ["noise", "other"], "b": ["rare"]})
    assert 300 < len(page["steps"]) <= 700
    assert page["steps"] == sorted({*page["steps"]})
    assert page["steps"][-1] == 5000
    columns = page["columns"]
    assert (max(columns["noise"]), min(columns["noise"])) == (50.0, -50.0)
    assert columns["other"][page["steps"].index(778)] is None
    assert [value for value in columns["rare"] if value is not None] == [five_digits(v) for v in rare if v == v]
    first, second = page["panels"]
    assert second["rare"] == ["rare"]
    heights = curve(noise, 0.7)[1]
    assert first["heights"]["noise"] == pytest.approx([heights[step - 1] for step in page["steps"]], rel=1e-4)
