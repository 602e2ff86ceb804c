"""Lines and clouds on logarithmic axes, and paths in a valley: drawings and descriptions."""

import numpy as np
import pytest
from matplotlib.text import Text

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_07.pictures.descent import draw_descent
from mlx_grpo_kit.course.pictures.comparisons import draw_shares
from mlx_grpo_kit.course.pictures.lines import draw_clouds, draw_lines
from mlx_grpo_kit.gradcheck import gradcheck
from mlx_grpo_kit.viz.live.curves import draw_curves
from mlx_grpo_kit.viz.picture import new_figure, to_png


def named(figure):
    """Return the names at the right of the axes and their heights, lowest first."""
    return sorted((text.get_position()[1], text.get_text()) for text in figure.texts)


def test_lines_show_the_values_and_differ_without_colour():
    lines = {"ours": [1, 2, 8], "theirs": [2, 2, 2]}
    figure, words = draw_lines([1, 2, 4], lines, xlabel="size", title="ms", log_x=True)
    ours, theirs = figure.axes[0].lines
    assert (ours.get_ydata().tolist(), theirs.get_xdata().tolist()) == ([1, 2, 8], [1, 2, 4])
    for look in ("get_color", "get_linestyle", "get_marker"):
        assert getattr(ours, look)() != getattr(theirs, look)()
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("log", "log")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1", "2", "4"]
    assert words == "ms. From size 1 to 4: ours from 1.00 to 8.00; theirs from 2.00 to 2.00."


def test_names_are_at_the_ends_and_do_not_overlap():
    lines = {"high": [1, 1e-3], "low": [1, 1e-9], "close": [1, 1.01e-9]}
    figure, _ = draw_lines(range(1, 3), lines, levels={"eps": 0.99e-9})
    heights, names = zip(*named(figure), strict=True)
    assert names == ("eps", "low", "close", "high")
    assert np.diff(heights).min() > 0.9 * 15 / (72 * figure.get_figheight())
    axis = figure.axes[0]
    end = figure.transFigure.inverted().transform(axis.transData.transform((2, 1e-3)))[1]
    assert heights[-1] == pytest.approx(end)


def test_ticks_of_a_short_axis_are_plain_numbers():
    figure, _ = draw_lines([1, 2], {"a": [0.4, 3]})
    to_png(figure)
    low, high = figure.axes[0].get_ylim()
    ticks = [
        label.get_text()
        for label, place in zip(figure.axes[0].get_yticklabels(), figure.axes[0].get_yticks(), strict=True)
        if low < place < high
    ]
    assert ticks == ["0.5", "1", "2"]


def figures_with(word):
    """Figures that have the reader's word at every kind of place."""
    bars = new_figure(3, 2)
    axis = bars.subplots()
    axis.bar(range(2), [1, 2], label=word)
    axis.set_xticks(range(2), [word, "b"])
    axis.annotate(word, (0, 1))
    axis.legend(title=word)
    bars.suptitle(word)
    check = gradcheck(lambda x: x * x, T.Tensor([0.5, 2.0], label=word))
    return [
        draw_lines([1, 10], {word: [1, 1e6]}, xlabel=word, title=word, levels={"level " + word: 2.0}, log_x=True)[0],
        draw_clouds({word: (np.ones(2), np.ones(2))}, xlabel=word, ylabel=word)[0],
        draw_curves([1, 2], {"loss": [1.0, 2.0], word: [3.0, 1e4]}, {word: ["loss", word]}, title=word, note=word),
        draw_shares({word: 0.5, "b": 0.5}, best="b", title=word)[0],
        check.plot().figure,
        bars,
    ]


@pytest.mark.parametrize("word", ["$$", "from $5 to $6", "m$frac$"])
def test_a_dollar_in_a_word_of_the_reader_is_drawn_as_it_is(word):
    for figure in figures_with(word):
        assert to_png(figure).startswith(b"\x89PNG")
        drawn = [each for each in figure.findobj(Text) if word in each.get_text()]
        assert drawn
        assert not any(each.get_parse_math() for each in drawn)


def test_the_numbers_of_a_logarithmic_axis_are_formulas():
    figure, _ = draw_lines([1, 10], {"loss": [1, 1e6]}, title="$$")
    to_png(figure)
    numbers = [each for each in figure.axes[0].get_yticklabels() if each.get_text()]
    assert all("$" in each.get_text() and each.get_parse_math() for each in numbers)
    assert numbers


def test_many_points_have_no_markers():
    figure, _ = draw_lines(range(1, 101), {"a": np.ones(100)})
    assert figure.axes[0].lines[0].get_marker() == ""


def test_clouds_mark_their_highest_point_and_count_omitted_points():
    x, y = np.array([1e-3, 1e-1, 1e-2, 0.0, 1.0]), np.array([1e-9, 1e-8, 3e-7, 1.0, 0.0])
    figure, words = draw_clouds({"one": (x, y), "two": (x, y)}, xlabel="size", ylabel="off")
    points, _, ring = figure.axes[1].lines
    assert points.get_xdata().tolist() == [1e-3, 1e-1, 1e-2]
    assert (ring.get_xdata(), ring.get_ydata()) == ([1e-2], [3e-7])
    assert words.startswith(
        "Points of off against size. one: 3 points (2 at 0 are left out). The highest, 3e-07, is "
        "at 0.01; 1 are left of it. two:"
    )
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def bowl(a, b):
    return a * a + b * b


def test_paths_and_heights_of_a_descent():
    path = np.array([[2.0, 1.0], [1.0, 0.5], [0.0, 0.1]])
    figure, words = draw_descent(bowl, {"SGD": path, "Adam": path[:2]}, title="t")
    plane, curve = figure.axes
    sgd = next(line for line in plane.lines if line.get_label() == "SGD")
    np.testing.assert_array_equal(np.transpose(sgd.get_data()), path)
    np.testing.assert_allclose(curve.lines[0].get_ydata(), [5, 1.25, 0.01])
    assert words == (
        "t. SGD went from a height of 5 down to 0.01 in 2 steps; Adam went from a height of 5 down to 1.2 in 1 steps."
    )


def test_a_path_that_leaves_the_picture_is_drawn_and_described():
    path = np.array([[1.0, 1.0], [1e200, 0.0], [np.inf, np.nan]])
    figure, words = draw_descent(bowl, {"SGD": path})
    to_png(figure)
    assert words == "SGD went from a height of 2 up and away in 2 steps."
    assert np.isfinite(figure.axes[1].lines[0].get_ydata()).all()
