"""A text on its way into a model: its tokens, their ids, and the rows of the embedding that the ids name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE, ZERO, shades

MOST_COLUMNS = 40


def draw_rows(tokens: Sequence[str], ids: Sequence[int], vectors: Any) -> tuple[Chart, str]:
    """(chart, words): a line per token with its id and the first numbers of its vector as colours.

    Args:
        vectors: [T, hidden]
    """
    import numpy as np

    vectors = np.asarray(vectors, dtype=float)
    shown = vectors[:, :MOST_COLUMNS]
    far = max(float(np.abs(shown).max()), 1e-9)
    cell = min(26.0, 820 / shown.shape[1])
    chart = Chart(1000, 62 + cell * len(tokens) + 26)
    sheet = chart.add(
        Sheet(
            *(150, 52, cell * max(shown.shape), shown, shades(-far, far, (NEGATIVE, ZERO, POSITIVE))),
            title=f"the first {shown.shape[1]} of {vectors.shape[1]} numbers of its vector",
            below=f"orange {-far:.2f}, white 0, blue {far:.2f}".replace("-", "\N{MINUS SIGN}"),
        )
    )
    chart.text(20, 43, "token", size=14)
    chart.text(100, 43, "id", size=14)
    for row, (token, token_id) in enumerate(zip(tokens, ids, strict=True)):
        middle = 52 + sheet.cell * (row + 0.5) + 5
        chart.text(26, middle, repr(token), size=15)
        chart.text(100, middle, str(token_id), size=15, color="soft")
    listed = ", ".join(f"{token!r} is {token_id}" for token, token_id in zip(tokens, ids, strict=True))
    twice = sorted({token for token in tokens if list(tokens).count(token) > 1})
    same = f" The rows of {' and of '.join(map(repr, twice))} are equal wherever they appear." if twice else ""
    return chart, (
        f"{len(tokens)} tokens, their ids and the first {shown.shape[1]} numbers of their vectors: {listed}.{same}"
    )
