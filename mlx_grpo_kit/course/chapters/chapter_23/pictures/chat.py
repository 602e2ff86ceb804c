"""A chat as its model gets it: one box per token, with another color for the marks of the template."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart

WIDTH, LINE, CHARACTER, SIZE = 1000, 34, 8.6, 14
BOX = {True: "#fbd9a8", False: "#d8e5fd"}  # a mark, a piece of text
INK = "#24292f"


def draw_chat(tokens: Sequence[tuple[str, bool]], title: str = "") -> tuple[Chart, str]:
    """(chart, words): tokens from left to right, line by line.

    Args:
        tokens: (the token's text, True if it is a mark: an added token such as `<|im_end|>`).
        title: the text above the picture.
    """
    boxes, x, y = [], 16.0, 50.0
    for text, is_mark in tokens:
        shown = text.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}").replace(" ", "\N{OPEN BOX}")
        width = CHARACTER * len(shown) + 10
        if x + width > WIDTH - 12 and x > 16:
            x, y = 16.0, y + LINE
        boxes.append((x, y, width, shown, is_mark))
        x += width + 4
    chart = Chart(WIDTH, y + LINE + 26)
    marks = sum(is_mark for _, is_mark in tokens)
    chart.text(16, 28, title or f"{len(tokens)} tokens, {marks} of them marks", size=15)
    for left, top, width, shown, is_mark in boxes:
        chart.bar(left, top, width, 25, BOX[is_mark])
        chart.digits(left + 5, top + 17, [(shown, INK)], size=SIZE)
    chart.text(
        *(
            16,
            y + LINE + 14,
            "orange: marks, each one token. blue: pieces of text. signs for a blank and a line break:",
        ),
        size=12.5,
        color="soft",
    )
    chart.digits(566, y + LINE + 14, [("\N{OPEN BOX} \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "ink")], size=13)
    listed = " ".join(f"[{text!r}]" if is_mark else repr(text) for text, is_mark in tokens)
    return chart, f"{len(tokens)} tokens, {marks} of them marks, shown in brackets here: {listed}."
