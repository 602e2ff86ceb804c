"""The bars of answers and the points of a step: every number in the picture comes from the data."""

import pytest

from mlx_grpo_kit.course.chapters.chapter_00.pictures.answers import describe_answers, draw_answers, draw_push
from mlx_grpo_kit.viz.picture import to_png


def bars(figure):
    """{name: {label: height}} as drawn."""
    [axis] = figure.axes
    labels = [tick.get_text() for tick in axis.get_xticklabels()]
    return {
        group.get_label(): dict(zip(labels, [bar.get_height() for bar in group], strict=True))
        for group in axis.containers
    }


def test_bars_are_shares_in_percent_in_the_order_of_the_first_entry():
    figure = draw_answers({"before": {"46": 5, "36": 10, "": 5}, "after": {"46": 3, "": 1}}, right="46")
    drawn = bars(figure)
    assert drawn == {
        "before": {"36": 50.0, "(empty)": 25.0, "46 ✓": 25.0},
        "after": {"36": 0, "(empty)": 25.0, "46 ✓": 75.0},
    }
    assert next(iter(drawn["before"])) == "36"
    to_png(figure)


def test_the_right_answer_is_shown_even_if_nobody_gave_it_and_rare_answers_are_added_up():
    drawn = bars(draw_answers({"before": {str(n): 10 for n in range(10)}}, right="46", most=3))["before"]
    assert list(drawn) == ["0", "1", "2", "46 ✓", "others"]
    assert drawn["46 ✓"] == 0
    assert drawn["others"] == pytest.approx(70)


def test_an_answer_that_only_comes_later_is_shown():
    counts = {"before": {str(n): 10 for n in range(10)}, "after": {"40": 100}}
    assert bars(draw_answers(counts, right="46", most=3))["after"]["40"] == 100


def test_an_entry_without_answers_is_refused():
    with pytest.raises(ValueError, match="'after' counts no answers"):
        draw_answers({"before": {"1": 1}, "after": {}}, right="1")


def test_words_for_the_bars():
    counts = {"before": {"55": 6, "65": 3, "": 1}, "after": {"64": 999, "65": 1}}
    assert describe_answers(counts, right="65", most=2) == (
        "Bars of the most frequent answers. before: 55 60%, 65 30%; the right answer 65 30%. "
        "after: 64 100%; the right answer 65 0%."
    )


def test_push_draws_each_completion_under_its_kind_in_percent():
    figure = draw_push([1.5, -0.5, -0.5, 0.0], before=[0.5, 0.25, 0.125, 1.0], after=[0.75, 0.125, 0.125, 1.0])
    drawn = {points.get_label(): points.get_offsets().tolist() for points in figure.axes[0].collections}
    assert drawn == {
        "better than its group": [[50, 75]],
        "worse than its group": [[25, 12.5], [12.5, 12.5]],
        "as good as all of its group": [[100, 100]],
    }
    to_png(figure)
