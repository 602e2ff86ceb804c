"""The memory of a training step, phase by phase: stacked bars, and the memory of the machine as a line."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_grpo_kit.course.pictures.sizes import in_bytes
from mlx_grpo_kit.viz.chart import CHARACTER, Chart
from mlx_grpo_kit.viz.style import COLORS, ink_on

PART_COLORS = {
    "parameters": COLORS[0],
    "optimizer": COLORS[1],
    "reference": COLORS[5],
    "KV cache": "#3d9970",
    "gradients": COLORS[2],
    "activations": COLORS[3],
    "log-probs": "#1696a6",
    "update": "#8c6d31",
}
WIDTH, LEFT, LONGEST = 900, 110, 640
TOP, ROW = 84, 44


def draw_memory(
    phases: Mapping[str, Mapping[str, float]], most: float, room: float, *, title: str
) -> tuple[Chart, str]:
    """(chart, words): one bar per phase of a step, divided into its parts; the machine's memory as a line.

    Args:
        phases: name -> {part: bytes}; the parts are keys of `PART_COLORS`.
        most: the peak in bytes. It may differ from the longest bar, because the parts of a phase need not be largest
            at the same moment.
        room: the machine's memory in bytes.
        title: the text above the bars.
    """
    sums = {name: sum(parts.values()) for name, parts in phases.items()}
    longest = max([*sums.values(), most])
    end = 1.04 * room if longest < room < 4 * longest else longest
    chart = Chart(WIDTH, TOP + ROW * len(phases) + 62)
    chart.text(14, 22, title, size=14, bold=True)
    _legend(chart, list(dict.fromkeys(part for parts in phases.values() for part, size in parts.items() if size)))
    line = LEFT + LONGEST * room / end
    words = []
    for row, (name, parts) in enumerate(phases.items()):
        top, left = TOP + ROW * row, float(LEFT)
        chart.text(LEFT - 8, top + 19, name, anchor="end")
        for part, size in parts.items():
            width = LONGEST * size / end
            chart.bar(left, top, width, 28, PART_COLORS[part])
            label = in_bytes(size)
            if width > CHARACTER * 11.5 * len(label) + 6:
                ink = ink_on(PART_COLORS[part])
                chart.text(left + width / 2, top + 19, label, size=11.5, anchor="middle", color=ink)
            left += width
        total = in_bytes(sums[name])
        at, width = left + 8, CHARACTER * 14 * len(total)
        if room <= end and at - 5 < line < at + width:  # the machine's line would cross the words
            at = line + 8
        chart.text(at, top + 19, total, size=12.5, bold=True)
        said = ", ".join(f"{part} {in_bytes(size)}" for part, size in parts.items() if size)
        words.append(f"{name}: {said}.")
    bottom = TOP + ROW * len(phases)
    fits = "fits into" if most <= room else "does not fit into"
    if room <= end:
        chart.bar(line, TOP - 8, 2, bottom - TOP + 4, "#8a8a8a")
        anchor = "start" if room < 0.75 * end else "end"
        step = 5 if anchor == "start" else -5
        where = line + step
        chart.text(where, bottom + 6, f"this machine: {in_bytes(room)}", size=12, anchor=anchor, color="soft")
    verdict = f"at most {in_bytes(most)} at once, which {fits} this machine's {in_bytes(room)}"
    chart.text(LEFT, bottom + 38, verdict[0].upper() + verdict[1:], size=14, bold=True)
    return chart, f"{title}. {' '.join(words)} Together: {verdict}."


def _legend(chart: Chart, parts: list[str]) -> None:
    left = float(LEFT)
    for part in parts:
        chart.bar(left, 42, 12, 12, PART_COLORS[part])
        chart.text(left + 17, 53, part, size=12)
        left += 36 + CHARACTER * 12 * len(part)
