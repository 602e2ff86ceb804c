"""A step of GRPO as boxes and arrows: what is computed from what, and in which shape."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_grpo_kit.viz.chart import Chart, arrow, text
from mlx_grpo_kit.viz.style import BLUE, EDGE, ORANGE

WIDTH, HEIGHT = 1000, 310
BOX, TALL = 166, 54  # pixels: width and height of a box
COLUMNS, ROWS = (14, 215, 416, 617, 818), (46, 144, 242)

BOXES = {
    "questions": (0, 0, "soft"),
    "prompts": (1, 0, "soft"),
    "completions": (2, 0, BLUE),
    "rewards": (3, 0, BLUE),
    "advantages": (4, 0, BLUE),
    "parameters": (1, 1, ORANGE),
    "log-probabilities": (2, 1, ORANGE),
    "ratio": (3, 1, ORANGE),
    "loss": (4, 1, ORANGE),
    "gradient": (4, 2, "soft"),
}
"""Name -> column, row and colour."""

ARROWS = (
    ("questions", "prompts", ""),
    ("prompts", "completions", ""),
    ("parameters", "completions", "sample"),
    ("completions", "rewards", ""),
    ("rewards", "advantages", ""),
    ("completions", "log-probabilities", ""),
    ("parameters", "log-probabilities", ""),
    ("log-probabilities", "ratio", ""),
    ("ratio", "loss", ""),
    ("advantages", "loss", ""),
    ("loss", "gradient", ""),
    ("gradient", "parameters", "AdamW"),
)


def draw_step(shapes: Mapping[str, str]) -> tuple[Chart, str]:
    """(chart, words): one step, with a line below each name.

    Args:
        shapes: what is written below, by the names in `BOXES`.
    """
    markup = [_arrow(start, end, words) for start, end, words in ARROWS]
    for name, (column, row, color) in BOXES.items():
        x, y = COLUMNS[column], ROWS[row]
        look = f'class="page soft" stroke="{EDGE}"' if color == "soft" else f'class="page" stroke="{color}"'
        markup += [
            f'<rect {look} x="{x}" y="{y}" width="{BOX}" height="{TALL}" rx="6" fill="#fff" stroke-width="2"/>',
            text(x + BOX / 2, y + 22, name, size=13.5, anchor="middle", bold=True),
            text(x + BOX / 2, y + 42, shapes.get(name, ""), size=12.5, anchor="middle", color="soft"),
        ]
    chart = Chart(WIDTH, HEIGHT)
    chart.draw(markup)
    chart.text(
        14,
        24,
        "one step of GRPO: orange has a gradient, blue is a constant for the loss, grey goes in or comes out",
        size=15,
    )
    said = ", ".join(f"{name} {shapes[name]}" for name in BOXES if name in shapes)
    ways = "; ".join(f"{start} to {end}" for start, end, _ in ARROWS)
    return chart, f"One step of GRPO as boxes: {said}. Arrows: {ways}."


def _arrow(start: str, end: str, words: str) -> str:
    """A line from box to box, straight down or to the side, with a head and words beside it."""
    (c0, r0, _), (c1, r1, _) = BOXES[start], BOXES[end]
    if c0 == c1:
        x = COLUMNS[c0] + BOX / 2
        y0, y1 = (ROWS[r0] + TALL, ROWS[r1]) if r1 > r0 else (ROWS[r0], ROWS[r1] + TALL)
        points = [(x, y0), (x, y1)]
    elif r0 == r1:
        x0, x1 = (COLUMNS[c0] + BOX, COLUMNS[c1]) if c1 > c0 else (COLUMNS[c0], COLUMNS[c1] + BOX)
        y = ROWS[r0] + TALL / 2
        points = [(x0, y), (x1, y)]
    elif c1 < c0:  # to the left, and up from below
        x, y = COLUMNS[c1] + BOX / 2, ROWS[r0] + TALL / 2
        points = [(COLUMNS[c0], y), (x, y), (x, ROWS[r1] + TALL)]
    else:  # aslant, from the top of a box to the bottom of the next one
        points = [(COLUMNS[c0] + 0.75 * BOX, ROWS[r0]), (COLUMNS[c1] + 0.2 * BOX, ROWS[r1] + TALL)]
    at = (points[0][0] + points[1][0]) / 2, (points[0][1] + points[1][1]) / 2 - 8
    side = "end" if points[0][0] != points[1][0] and points[0][1] != points[1][1] else "middle"  # not on a slope
    return arrow(points, EDGE) + text(*at, words, size=12, anchor=side, color="soft")
