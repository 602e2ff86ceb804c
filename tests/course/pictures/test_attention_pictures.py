"""Pictures of attention for given weights, queries and masks: what is drawn, the words, and the keyboard's focus."""

import itertools
import math
import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_11.pictures.ablation import draw_ablations
from mlx_grpo_kit.course.chapters.chapter_11.pictures.attention_maps import (
    HIDDEN,
    MAP,
    draw_attention_map,
    draw_attention_maps,
    weight_color,
)
from mlx_grpo_kit.course.chapters.chapter_11.pictures.masks import HIDDEN as MASKED
from mlx_grpo_kit.course.chapters.chapter_11.pictures.masks import SEEN, draw_masks
from mlx_grpo_kit.course.chapters.chapter_11.pictures.one_query import SIDE, draw_one_query
from mlx_grpo_kit.viz.style import POSITIVE
from tests.every import every

WEIGHTS = np.array([[1.0, 0, 0], [0.25, 0.75, 0], [0.004, 0.5, 0.496]])
KEYS, VALUES, NAMES = [[1, 0], [0, 1], [1, 0]], [[7, 0], [0, 1], [5, 0]], ["7", "+", "5"]


def test_the_numbers_of_a_map_can_be_read_by_eye_pointer_and_keyboard():
    chart, words = draw_attention_map(WEIGHTS, ["1", " ", "="], 2, title="layer 0, head 3")
    assert words == (
        'Attention map, layer 0, head 3. "=" at position 2 looks most at "\N{OPEN BOX}" at position 1 with 0.50, "=" '
        "at position 2 with 0.50."
    )
    [sheet] = chart.areas[:1]
    assert sheet.written == ["1.00", "", "", ".25", ".75", "", "", ".50", ".50"]
    assert sheet.frames == [(2, 0, 1, 3)]
    svg = chart.svg(words)
    cells = re.findall(r'<g class="kit-cell" tabindex="0" aria-label="([^"]*)"><title>([^<]*)</title>', svg)
    assert len(cells) == 9
    assert all(label == title for label, title in cells)
    assert cells[3][0] == "&quot;\N{OPEN BOX}&quot; looks at &quot;1&quot;, position 0: 0.250"
    assert cells[5][0] == "&quot;=&quot;, position 2, is hidden from &quot;\N{OPEN BOX}&quot;"
    assert [svg.count(f">{share}<") for share in ("0.00", "0.50")] == [1, 2]  # the bars of the last row


def test_hidden_cells_are_grey_and_visible_cells_range_from_white_to_blue():
    assert weight_color(0.0) == HIDDEN
    assert weight_color(1.0) == POSITIVE
    assert weight_color(1e-9) == "#ffffff"


def test_a_map_that_is_wider_than_high():
    chart, words = draw_attention_map(WEIGHTS[1:], ["b", "c"], 0, seen=["a", "b", "c"])
    sheet = chart.areas[0]
    assert sheet.numbers.shape == (2, 3)
    assert '"b" at position 0 looks most at "b" at position 1 with 0.75, "a" at position 0 with 0.25' in words


def test_many_tokens_have_no_numbers_in_their_cells():
    weights = np.tril(np.ones((20, 20)))
    chart, _ = draw_attention_map(weights / weights.sum(1, keepdims=True), "a" * 20, 19)
    assert chart.areas[0].written == []
    assert chart.areas[0].cell * 20 == pytest.approx(MAP)
    lines = [float(y) for y in re.findall(r'<text x="0.0" y="([\d.]+)"', chart.svg("a"))]
    assert chart.areas[0].top + max(lines) < chart.height - 4  # what the cells say is on the page


def test_maps_side_by_side():
    chart, words = draw_attention_maps([(f"head {i}", WEIGHTS) for i in range(5)], ["1", "+", "="], across=4)
    lefts = [sheet.left for sheet in chart.areas]
    assert lefts[4] == lefts[0]
    assert chart.areas[4].top > chart.areas[0].top
    assert lefts[3] + 3 * chart.areas[3].cell < chart.width
    assert 'head 4: "=" looks most at "+" at 1' in words


def test_one_query_by_hand():
    chart, words = draw_one_query((2, 0), KEYS, VALUES, NAMES)
    high = math.exp(2) / (2 * math.exp(2) + 1)
    assert f'"7" has score 2.00 and weight {high:.3f}' in words
    assert f'"+" has score 0 and weight {1 - 2 * high:.3f}' in words
    assert words.endswith(f"The values mix to ({12 * high:.2f}, {1 - 2 * high:.2f}).")
    assert f"mixture: ({12 * high:.2f}, {1 - 2 * high:.2f})" in chart.svg(words)
    chart, words = draw_one_query((-3, 3), KEYS, VALUES, NAMES, scale=9)
    [label] = re.findall(r'<text x="([\d.]+)" y="[\d.]+" font-size="14"[^>]*>1.000<', chart.svg(words))
    assert float(label) + 40 < chart.planes[1].left - 30  # does not reach the next plane
    _, even = draw_one_query((3, -3), KEYS, VALUES, NAMES, scale=0)
    assert "The values mix to (4.00, 0.33)." in even
    _, sharp = draw_one_query((-3, 3), KEYS, VALUES, NAMES, scale=1000)
    assert "The values mix to (0.00, 1.00)." in sharp


@every("query", [*itertools.product((-3, -1.5, 0, 1.5, 3), repeat=2)])
def test_the_querys_name_stays_within_its_plane(query):
    chart, words = draw_one_query(query, KEYS, VALUES, NAMES)
    x, y, anchor = re.search(
        r'<text x="([-\d.]+)" y="([-\d.]+)"[^>]*text-anchor="(\w+)"[^>]*>query<', chart.svg(words)
    ).groups()
    left = float(x) - (45 if anchor == "end" else 0)
    assert 0 < left < SIDE - 45
    assert 10 < float(y) < SIDE


def test_masks():
    masks = np.tril(np.ones((2, 3, 3), bool))
    masks[1, :, 0] = False
    chart, words = draw_masks(masks, [["a", "b", "c"], ["", "b", " "]], ["first", "second"])
    assert words == (
        "Which token may look at which. first: 6 of 9; the last token sees a b c; second: 3 of 9; the last token "
        "sees b \N{OPEN BOX}."
    )
    first, second = chart.areas
    assert first.color(True) == SEEN
    assert first.color(False) == MASKED
    assert first.left + 3 * first.cell < second.left
    assert chart.svg(words).count(">\N{MIDDLE DOT}<") == 2  # padding as a query and as a key


def test_a_mask_of_the_last_tokens_alone():
    chart, words = draw_masks([[[True, True, False]]], [["", "b", "c"]], ["one"])
    assert "2 of 3; the last token sees \N{MIDDLE DOT} b" in words
    assert chart.svg(words).count(">c<") == 2


def test_ablations():
    chart, words = draw_ablations({"whole": (1.0, 0.0), "no head": (0.5, 0.75)}, ("plain", "carry"), "Right")
    assert words == "Right. whole: plain 100%, carry 0%; no head: plain 50%, carry 75%."
    svg = chart.svg(words)
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="18.0"', svg)]
    assert widths[1] / widths[0] == pytest.approx(0.5, abs=0.01)
    assert max(float(x) for x in re.findall(r'<text x="([\d.]+)"', svg)) < chart.width - 10
