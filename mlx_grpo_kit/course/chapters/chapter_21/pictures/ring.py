"""A ring of processes that sum their arrays part by part: how complete each part is at each process."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import ORANGE, POSITIVE, shades

DEEP = "#1b4fa8"
SIDE = 264


def draw_ring(counts: Any, received: Any, step: int, steps: int) -> tuple[Chart, str]:
    """(chart, words): the parts of each process after some steps.

    Args:
        counts: [processes, parts], the number of processes whose numbers are in a part.
        received: the part that each process has just received, or None before the first step.
        step: the number of steps so far.
        steps: the number of all steps.
    """
    counts = np.asarray(counts)
    size = len(counts)
    cell = SIDE / size
    left, top = 190, 70
    chart = Chart(660, top + SIDE + 74)
    sheet = chart.add(Sheet(left, top, SIDE, counts, shades(0, size, ("#ffffff", POSITIVE, DEEP))))
    sheet.write([[f"{count}" for count in row] for row in counts], min(cell * 0.36, 22))
    for number in range(size):
        chart.text(left + cell * (number + 0.5), top - 10, f"part {number}" if size < 6 else str(number), size=12,
                   anchor="middle", color="soft")  # fmt: skip
        chart.text(left - 12, top + cell * (number + 0.5) + 5, f"process {number}", size=13, anchor="end")
        if received is not None:
            sheet.frame(number, int(received[number]), 1, 1, ORANGE)
    half = steps // 2
    phase = (
        "before the first message" if step == 0
        else f"first round, message {step} of {half}: the received part is added" if step <= half
        else f"second round, message {step - half} of {half}: the received part replaces its own"
    )  # fmt: skip
    chart.text(14, 24, phase, size=14, bold=True)
    complete = int((counts == size).sum())
    chart.text(left, top + SIDE + 26, "number in a cell: processes summed so far; framed: just received", size=12.5,
               color="soft")  # fmt: skip
    chart.text(
        left, top + SIDE + 50, f"each has sent {step} messages of 1/{size} array: {step / size:.2f} arrays", size=13
    )
    return chart, (
        f"A ring of {size}: {phase}. {complete} of {size * size} parts are complete; each process has sent "
        f"{step / size:.2f} times its array."
    )
