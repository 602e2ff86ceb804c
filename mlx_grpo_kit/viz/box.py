"""A box with a coloured edge for a short message on the page."""

from __future__ import annotations

from mlx_grpo_kit.viz.style import BLUE, ORANGE

LOOKS = {
    "passed": ("#1a7f37", "46, 160, 67"),
    "wrong": (ORANGE, "248, 156, 32"),  # the edge, and the tint of the background
    "stub": ("#59636e", "140, 149, 159"),
    "hint": (BLUE, "87, 144, 252"),
}


def colored_box(content: str, look: str, layout: str = "") -> str:
    """Put markup into a box. `look` is one of LOOKS; `layout` is more CSS, such as "line-height:1.5;"."""
    edge, tint = LOOKS[look]
    return (
        f'<div role="status" style="border-left:5px solid {edge};background:rgba({tint},.12);padding:8px 14px;'
        f'border-radius:4px;{layout}color:var(--jp-ui-font-color1,#24292f)">{content}</div>'
    )
