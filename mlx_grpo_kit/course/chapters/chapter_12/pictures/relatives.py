"""One block of three families of models: the parts that all have, and those that only one has."""

from __future__ import annotations

from itertools import pairwise

from mlx_grpo_kit.viz.chart import Chart, arrow, outline, text
from mlx_grpo_kit.viz.style import BLUE, EDGE, ORANGE

WIDTH, HEIGHT = 500, 628
STREAM, LEFT, WIDE = 34, 72, 416  # pixels: the line of the stream, and the left edge and the width of the boxes
TALL, ROW = 32, 46  # the height of a box, and from one row to the next
LOOKS = {"all": (EDGE, ""), "qwen2": (ORANGE, "6 4"), "qwen3": (BLUE, "")}
"""The colour and the dashes of the boxes that a family has."""

ATTENTION = (
    (("all", "norm (input_layernorm)"),),
    (("all", "q_proj"), ("all", "k_proj"), ("all", "v_proj")),
    (("qwen2", "+ q_proj.bias"), ("qwen2", "+ k_proj.bias"), ("qwen2", "+ v_proj.bias")),
    (("qwen3", "q_norm"), ("qwen3", "k_norm"), None),
    (("all", "rotate"), ("all", "rotate"), None),
    (("all", "scores, softmax, mixture"),),
    (("all", "o_proj"),),
)
MLP = (
    (("all", "norm (post_attention_layernorm)"),),
    (("all", "gate_proj, silu"), ("all", "up_proj")),
    (("all", "product, down_proj"),),
)
"""Rows of boxes, each (family, words), or None where a line goes past."""


def draw_relatives() -> tuple[Chart, str]:
    """(chart, words): one block, with what only a Qwen2 or only a Qwen3 has in colour."""
    chart = Chart(WIDTH, HEIGHT)
    for x, family, words in ((14, "all", "every family"), (154, "qwen2", "Qwen2 only"), (290, "qwen3", "Qwen3 only")):
        chart.draw([outline(x, 12, 26, 18, *_line(family)), text(x + 33, 26, words, color=_ink(family))])
    chart.text(STREAM - 20, 58, "the stream x", color="soft")
    after = _half(chart, 92, ATTENTION)
    chart.draw([arrow([(STREAM, 66), (STREAM, _half(chart, after + 36, MLP) + 24)], EDGE)])
    return chart, (
        "One block, from top to bottom. Every family: norm; q_proj, k_proj and v_proj; rotation of queries and keys; "
        "scores, softmax and mixture; o_proj; the sum with the stream; norm; gate_proj with silu times up_proj; "
        "down_proj; the sum with the stream. Qwen2 only, after the three projections: q_proj.bias, k_proj.bias and "
        "v_proj.bias are added. Qwen3 only, before the rotation: q_norm for the queries and k_norm for the keys. A "
        "Llama has neither."
    )


def _half(chart: Chart, top: float, rows: tuple) -> float:
    """Draw rows of boxes that read the stream and are added to it; return the height of the end."""
    middle = LEFT + WIDE / 2
    chart.draw([arrow([(STREAM, top - 14), (middle, top - 14), (middle, top)], EDGE)])
    for number, row in enumerate(rows):
        y = top + ROW * number
        for x, box in zip(_columns(row), row, strict=True):
            if box is None:
                chart.draw([_past(x, y, TALL)])
                continue
            family, words = box
            wide = WIDE / len(row) - (12 if len(row) > 1 else 0)
            chart.draw([outline(x - wide / 2, y, wide, TALL, *_line(family))])
            chart.text(x, y + 21, words, size=14, anchor="middle", color=_ink(family), bold=family != "all")
    for number, (row, below) in enumerate(pairwise(rows)):
        y, wider = top + ROW * number + TALL, max(row, below, key=len)
        for place, x in enumerate(_columns(wider)):
            is_empty = len(below) > 1 and below[place] is None
            chart.draw([_past(x, y, ROW - TALL) if is_empty else arrow([(x, y), (x, y + ROW - TALL)], EDGE)])
    bottom = top + ROW * (len(rows) - 1) + TALL
    end = bottom + 20
    chart.draw([arrow([(middle, bottom), (middle, end), (STREAM + 1, end)], EDGE)])
    chart.text(STREAM + 18, end - 7, "+", size=16, bold=True)
    return end


def _columns(row: tuple) -> list[float]:
    """The middles of the boxes of a row."""
    return [LEFT + WIDE * (place + 0.5) / len(row) for place in range(len(row))]


def _past(x: float, y: float, long: float) -> str:
    """A line that goes down past a row."""
    return f'<path d="M{x:g} {y:g}v{long:g}" fill="none" stroke="{EDGE}" stroke-width="2"/>'


def _line(family: str) -> tuple[str, float, str]:
    color, dash = LOOKS[family]
    return color, 2, dash


def _ink(family: str) -> str:
    return "ink" if family == "all" else LOOKS[family][0]
