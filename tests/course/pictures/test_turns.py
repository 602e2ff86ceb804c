"""The picture of a completion with turns: every token has its position, its colour and its number."""

import re
from itertools import pairwise

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_25.pictures.turns import LIGHT, TALLEST, WIDTH, draw_runs, draw_turns, visible
from mlx_grpo_kit.viz.style import BLUE, GREY, ORANGE

PROMPT = ["<|im_start|>", "user", "\n", "What", " is", " ", "1", "+", "2", "?"]
TOKENS = ["<tool_call>", "\n", "add", "</tool_call>", "<|im_end|>", "\n", "3", "<|im_end|>", "\n", "3"]
MASK = [True] * 5 + [False] * 4 + [True]


def boxes(chart):
    """(left, top, width, colour) of each token's box; the first three are the legend's."""
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="22.0" fill="(#\w+)"', chart.svg(""))
    return [(float(left), float(top), float(width), color) for left, top, width, color in found]


def test_each_token_has_a_box_of_its_authors_color():
    chart, words = draw_turns(PROMPT, TOKENS, MASK, title="a completion")
    colors = [color for *_, color in boxes(chart)]
    expected = [GREY] * len(PROMPT) + [BLUE if drawn else ORANGE for drawn in MASK]
    assert colors == [LIGHT[each] for each in expected]
    assert words.startswith("a completion. The policy drew 5 tokens, ")
    assert "A tool returned 4 tokens" in words
    assert "The policy drew 1 token, '3'." in words


def test_boxes_do_not_touch_and_stay_on_the_page():
    rng = np.random.default_rng(0)
    for _ in range(20):
        tokens = ["x" * int(n) + "\n" * int(rng.integers(8) == 0) for n in rng.integers(0, 30, 60)]
        chart, _ = draw_turns(tokens[:20], tokens[20:], [True] * 40)
        placed = boxes(chart)
        assert len(placed) == 60
        for (left, top, width, _), (after, below, *_) in pairwise(placed):
            assert left + width < after or below > top
            assert left + width <= WIDTH
        assert placed[-1][1] + 36 <= chart.height


def test_values_shade_the_tokens_that_the_policy_drew():
    chart, words = draw_turns([], TOKENS, MASK, values=[0.5] * 5 + [0.0] * 4 + [1.0])
    colors = [color for *_, color in boxes(chart)]
    assert len({*colors[:5]}) == 1
    assert len({colors[0], colors[5], colors[9]}) == 3
    assert "each worth 0.5" in words
    assert draw_turns([], TOKENS, MASK, values=[0.0] * 10)[0].svg("")


def test_invisible_characters_get_a_sign():
    assert [*map(visible, ["\n", " a", "", "b"])] == ["⏎", "·a", "∅", "b"]


def test_runs_are_described_by_their_first_and_last_values():
    _, words = draw_runs(
        {"a": [0.0, 1.0], "b": [1.0, 0.0]}, title="t", name="n", highest=1, level=(0.5, "half"), smoothing=1
    )
    assert words == "t, n over 2 steps. a: from 0.00 to 1.00; b: from 1.00 to 0.00; half: 0.50."


def test_runs_of_several_seeds_are_thin_lines_around_their_mean():
    chart, words = draw_runs({"a": [[0.0, 1.0], [1.0, 0.5]]}, title="t", name="n", highest=1, smoothing=1)
    assert words == "t, n over 2 steps. a: from 0.50 to 0.75."
    drawn = re.findall(r'<path d="M[^"]+"[^>]*stroke-width="([\d.]+)"', chart.svg(""))
    assert drawn.count("0.8") == 2
    assert drawn.count("2.4") == 1


def test_a_value_is_written_once_where_it_begins():
    chart, _ = draw_turns([], TOKENS, MASK, values=[0.25] * 2 + [0.5] * 3 + [0.0] * 4 + [0.5])
    written = re.findall(r'font-size="10.5"[^>]*>([^<]*)<', chart.svg(""))
    assert written == ["0.25", "0.5", "0.5"]
    chart, _ = draw_turns([], TOKENS, MASK)
    assert re.findall(r'font-size="10.5"[^>]*>([^<]*)<', chart.svg("")) == [str(int(drawn)) for drawn in MASK]


def test_each_author_begins_a_line():
    chart, _ = draw_turns(PROMPT, TOKENS, MASK)
    placed = boxes(chart)
    authors = [None] * len(PROMPT) + MASK
    for (left, top, *_), (_, above, *_), author, before in zip(placed[1:], placed, authors[1:], authors, strict=False):
        assert (left == 14.0 and top > above) == (author != before)


def test_bars_hang_below_their_tokens():
    heights = [*range(1, len(PROMPT) + len(TOKENS) + 1)]
    chart, words = draw_turns(PROMPT, TOKENS, MASK, bars=heights)
    found = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="(#\w+)"', chart.svg("")
    )
    bars = [row for row in found if row[4] in (BLUE, ORANGE, GREY)]
    expected = [(f"{left:.1f}", f"{top + 24:.1f}") for left, top, *_ in boxes(chart)]
    assert [(left, top) for left, top, *_ in bars] == expected
    assert [float(height) for *_, height, _ in bars] == [round(TALLEST * each / 20, 1) for each in heights]
    assert words.endswith("The tallest bars: 20 under '3', 19 under '\\n', 18 under '<|im_end|>'.")
