"""The boxes of a step of GRPO as a small map: the newest exercise lights its boxes, and each box names its exercise."""

from __future__ import annotations

from mlx_grpo_kit.course.answers import order_of
from mlx_grpo_kit.course.chapters.chapter_18.pictures.data_flow import BACK, BOXES, HEIGHT, WIDTH, paths
from mlx_grpo_kit.viz.chart import Chart, arrow, outline, text
from mlx_grpo_kit.viz.style import BLUE, EDGE, INK, ORANGE

ACROSS, DOWN, TOP = 0.65, 0.41, 56  # the scale of the map, and what it leaves out at the top of the large picture
LIT = "#ffd08a"  # the newest boxes
# The exercise that a box comes from.
HOMES = {
    "policy.params": "12",
    "completions.texts": "13.11",
    "rewards": "14.2",
    "advantages": "16.1",
    "ratio": "16.3",
    "objective": "16.4",
    "loss": "16.8",
    "gradient": "17.10",
    "prompts": "18.1",
    "completion_ids": "18.2",
    "completion_mask": "18.2",
    "groups": "18.3",
    "old_logps": "18.4",
    "logps": "18.4",
    "parts.optimizer": "18.5",
}
LOOP = "18.8"  # the arrow from the optimizer back to the policy


def draw_step_map(exercise: str) -> tuple[Chart, str]:
    """(chart, words): what of a step exists after an exercise of chapter 18, such as "18.2".

    Raises ValueError for an exercise that has no box.
    """
    new = [name for name, home in HOMES.items() if home == exercise]
    if not new and exercise != LOOP:
        raise ValueError(f"Exercise {exercise} has no box; expected one of {', '.join([*HOMES.values(), LOOP])}.")
    missing = [name for name, home in HOMES.items() if order_of(home) > order_of(exercise)]
    lit = " and ".join(new) or "the loop"
    title = f"{exercise} lights {lit}"
    rest = f"still to come: {', '.join(missing)}" if missing else "every box has its code"
    chart = Chart(WIDTH * ACROSS, _place(0, HEIGHT)[1])
    chart.text(10 * ACROSS, 16, title, size=13, bold=True)
    marks = []
    for points in paths(second=exercise == LOOP):
        strong = exercise == LOOP and points == BACK
        marks.append(arrow([_place(*point) for point in points], ORANGE if strong else EDGE, 3 if strong else 1))
    for name, ((left, wide), top, high) in BOXES.items():
        x, y = _place(left, top)
        wide, high = wide * ACROSS, high * DOWN
        is_new, there = name in new, name not in missing
        if is_new:
            marks.append(f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="5" fill="{LIT}"/>')
        marks.append(
            outline(x, y, wide, high, ORANGE if is_new else BLUE if there else EDGE, 2, "" if there else "3 3")
        )
        ink, middle = INK if is_new else "ink" if there else "soft", y + high / 2 + 4.5
        marks.append(text(x + 7, middle, name, size=12, bold=there, color=ink))
        marks.append(text(x + wide - 7, middle, HOMES[name], size=12, anchor="end", color=INK if is_new else "soft"))
    chart.draw(marks)
    return chart, f"A map of a step of GRPO. {title}; {rest}."


def _place(x: float, y: float) -> tuple[float, float]:
    """A point of the large picture on the map."""
    return x * ACROSS, (y - TOP) * DOWN + 26
