"""Masks: the tokens that each token may look at, for every row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_11.pictures.attention_maps import shown_token
from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import POSITIVE

SIDE, GAP = 210, 70
SEEN, HIDDEN = POSITIVE, "#f3f3f3"


def draw_masks(masks: Any, rows: Sequence[Sequence[str]], titles: Sequence[str]) -> tuple[Chart, str]:
    """(chart, words): a square for each row of a batch, blue where a token (down) may look at another (across).

    Args:
        masks: booleans [B, T, S], S at least T; the last T of the S keys belong to the queries
        rows: S tokens for each of the B rows; "" is padding
        titles: B of them
    """
    masks = np.asarray(masks, bool)
    chart = Chart(len(masks) * (SIDE + GAP) + 20, SIDE * max(1, masks.shape[1] / masks.shape[2]) + 118)
    sentences = []
    for place, (mask, tokens, title) in enumerate(zip(masks, rows, titles, strict=True)):
        names = [shown_token(token) if token else "\N{MIDDLE DOT}" for token in tokens]
        left, top = 48 + place * (SIDE + GAP), 78
        sheet = chart.add(Sheet(left, top, SIDE, mask, lambda seen: SEEN if seen else HIDDEN, most=48))
        chart.text(left, 22, title, size=14, bold=True)
        chart.text(left, 41, f"{mask.sum()} of {mask.size} pairs are visible", size=12, color="soft")
        for column, name in enumerate(names):
            chart.text(left + (column + 0.5) * sheet.cell, top - 8, name, size=14, anchor="middle")
        for row, name in enumerate(names[-len(mask) :]):
            chart.text(left - 9, top + (row + 0.5) * sheet.cell + 5, name, size=14, anchor="end")
        last = [name for name, seen in zip(names, mask[-1], strict=True) if seen]
        sentences.append(f"{title}: {mask.sum()} of {mask.size}; the last token sees {' '.join(last) or 'nothing'}")
    return chart, f"Which token may look at which. {'; '.join(sentences)}."
