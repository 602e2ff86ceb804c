"""A chat in tokens, and bars with their numbers in words."""

import itertools
import re

from mlx_grpo_kit.course.chapters.chapter_23.pictures.chat import BOX, WIDTH, draw_chat
from mlx_grpo_kit.course.pictures.bars import draw_bars
from mlx_grpo_kit.viz.style import COLORS


def boxes(svg, color):
    return [
        tuple(map(float, found))
        for found in re.findall(rf'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]*{color}', svg)
    ]


def test_every_token_has_a_box_of_its_kind():
    chart, words = draw_chat([("<|im_start|>", True), ("user", False), ("\n", False), (" 1<2", False)])
    svg = chart.svg(words)
    assert len(boxes(svg, BOX[True])) == 1
    assert len(boxes(svg, BOX[False])) == 3
    assert "\N{OPEN BOX}1&lt;2" in svg
    assert "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}" in svg
    assert words == "4 tokens, 1 of them marks, shown in brackets here: ['<|im_start|>'] 'user' '\\n' ' 1<2'."


def test_long_chats_continue_on_the_next_line_and_stay_on_the_page():
    chart, words = draw_chat([("answer", False)] * 60)
    places = boxes(chart.svg(words), BOX[False])
    assert len({y for _, y, _ in places}) > 3
    assert all(x + width <= WIDTH for x, _, width in places)
    assert max(y for _, y, _ in places) + 30 < chart.height
    for (x, y, width), (after, y_after, _) in itertools.pairwise(places):
        assert y_after > y or after >= x + width


def test_bars_are_on_one_scale_and_named():
    chart, words = draw_bars(
        {"a": ([1.0, 2.0], "3 s"), "long name": ([6.0, 0.0], "6 s")}, title="Time", parts=("x", "y")
    )
    svg = chart.svg(words)
    blue = [width for _, y, width in boxes(svg, "#5790fc") if y > 60]
    orange = [width for _, y, width in boxes(svg, COLORS[1]) if y > 60]
    assert abs(blue[1] / blue[0] - 6) < 0.1
    assert abs(orange[0] / blue[0] - 2) < 0.1
    assert words == "Time. a: 3 s; long name: 6 s."
    for name in ("a", "long name", "x", "y", "6 s"):
        assert f">{name}</text>" in svg


def test_bars_of_nothing():
    chart, words = draw_bars({"a": ([0.0], "0")}, title="t")
    assert "<svg" in chart.svg(words)
