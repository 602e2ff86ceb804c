"""The map of the course: a line of chapters from top to bottom, with an arc to each chapter that one builds on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_grpo_kit.course.syllabus import Chapter
from mlx_grpo_kit.viz.chart import Chart, text
from mlx_grpo_kit.viz.style import COLORS, EDGE

WIDTH, LINE, ROW, HEADING = 440, 84, 25, 40  # pixels: LINE is where the dots are


def draw_course(parts: Mapping[str, Sequence[Chapter]]) -> Chart:
    """The chapters by the name of their part, each a dot; a line leads down from it to every chapter that needs it."""
    heights: dict[str, float] = {}
    dots, words, y = [], [], 0.0
    for (name, chapters), color in zip(parts.items(), COLORS, strict=True):
        y += HEADING
        words += [
            text(LINE + 18, y - 8, name, size=14, bold=True),
            text(WIDTH - 12, y - 8, _hours(chapters), size=13, anchor="end", bold=True),
        ]
        for chapter in chapters:
            heights[chapter.number] = middle = y + ROW / 2
            y += ROW
            dots.append(f'<circle cx="{LINE}" cy="{middle:g}" r="7" fill="{color}" stroke="#fff" stroke-width="1.5"/>')
            words += [
                text(LINE + 18, middle + 5, f"{chapter.number}  {chapter.title}", size=14),
                text(WIDTH - 12, middle + 5, f"{chapter.minutes} min", size=13, anchor="end", color="soft"),
            ]
    numbers = [*heights]
    lines = [
        _line(heights[need], heights[chapter.number], numbers.index(chapter.number) - numbers.index(need))
        for chapters in parts.values()
        for chapter in chapters
        for need in chapter.needs
    ]
    chart = Chart(WIDTH, y + 12)
    chart.draw([*lines, *dots, *words])
    return chart


def describe_course(parts: Mapping[str, Sequence[Chapter]]) -> str:
    """The same in words."""
    chapters = [chapter for part in parts.values() for chapter in part]
    sentences = [f"A map of {len(chapters)} chapters in {len(parts)} parts, {_hours(chapters)} in all."]
    for name, part in parts.items():
        numbers = f"chapters {part[0].number} to {part[-1].number}" if len(part) > 1 else f"chapter {part[0].number}"
        sentences.append(f"{name}: {numbers}, {_hours(part)}.")
    for chapter in chapters:
        needs = " and ".join(chapter.needs) or "nothing"
        sentences.append(f"{chapter.number} {chapter.title}, {chapter.minutes} minutes, builds on {needs}.")
    return " ".join(sentences)


def _line(start: float, end: float, rows: int) -> str:
    """A line from a dot down to another: straight to the next one, or an arc around those in between."""
    out = LINE - (
        0 if rows == 1 else min(20 + 8 * rows, LINE / 0.75 - 12)
    )  # a cubic curve reaches three quarters of this
    return (
        f'<path d="M{LINE} {start:g}C{out:g} {start:g} {out:g} {end:g} {LINE} {end:g}" fill="none" stroke="{EDGE}" '
        'stroke-width="2.5"/>'
    )


def _hours(chapters: Sequence[Chapter]) -> str:
    """The hours of all chapters together, to the half hour."""
    halves = round(sum(chapter.minutes for chapter in chapters) / 30)
    return f"{halves / 2:g} hours"
