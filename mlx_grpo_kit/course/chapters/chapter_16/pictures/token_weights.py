"""The share of the loss that each token has: one bar per token, one row per completion."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import EDGE, NEGATIVE, POSITIVE

ROW, LEFT, WIDE = 46, 130, 640  # pixels


def draw_token_weights(
    weights: Sequence[Sequence[float]], signs: Sequence[int], *, most: int, title: str
) -> tuple[Chart, str]:
    """(chart, words): a box for each token, as high as its weight, with the row's sum to the right.

    Args:
        weights: for each completion, the weights of its tokens.
        signs: signs of the completions' advantages; a completion with an advantage above 0 is blue.
        most: the largest possible number of tokens in a completion.
        title: text above the picture.
    """
    highest = max(max(row) for row in weights)
    cell = WIDE / most
    chart = Chart(1000, 84 + ROW * len(weights))
    chart.text(14, 24, title, size=15)
    chart.text(LEFT + WIDE + 24, 46, "a token", size=12, color="soft")
    chart.text(LEFT + WIDE + 112, 46, "the completion", size=12, color="soft")
    words = []
    for number, (row, sign) in enumerate(zip(weights, signs, strict=True)):
        bottom = 54 + ROW * (number + 1) - 8
        kind = "good" if sign > 0 else "bad"
        chart.text(14, bottom - 8, f"{kind}, {len(row)} {'token' if len(row) == 1 else 'tokens'}", size=13.5)
        for place, weight in enumerate(row):
            high = max(1.5, (ROW - 12) * weight / highest)
            color = POSITIVE if sign > 0 else NEGATIVE
            chart.bar(LEFT + cell * place + 1, bottom - high, cell - 2, high, color)
        chart.bar(LEFT, bottom, WIDE, 1, EDGE)
        chart.text(LEFT + WIDE + 24, bottom - 8, f"{row[0]:.1%}", size=14, bold=True)
        chart.text(LEFT + WIDE + 112, bottom - 8, f"{sum(row):.1%}", size=14)
        words.append(f"{kind}, {len(row)}: a token {row[0]:.1%}, the completion {sum(row):.1%}.")
    total = sum(map(sum, weights))
    chart.text(14, 74 + ROW * len(weights), f"all together {total:.1%}", size=13, color="soft")
    return chart, f"{title}. {' '.join(words)} All together {total:.1%}."
