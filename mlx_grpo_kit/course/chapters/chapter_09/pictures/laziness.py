"""Waiting operations, step by step, and the time of each step."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, three_digits

WIDTH, HEIGHT, TOP, BOTTOM = 860.0, 290.0, 40.0, 46.0


def draw_waiting(
    waiting: Sequence[int], writing: Sequence[float], computing: Sequence[float], every: int
) -> tuple[Chart, str]:
    """(chart, words): the operations that wait after each step, and the milliseconds of each step.

    Args:
        waiting: operations that wait after each step, before an evaluation
        writing: milliseconds to write each step down
        computing: milliseconds of MLX's computation after each step; 0 without an evaluation
        every: steps from one evaluation to the next
    """
    steps = len(waiting)
    chart = Chart(WIDTH, HEIGHT)
    high = HEIGHT - TOP - BOTTOM
    left = chart.plane(
        54, TOP, 350, high, x=(0, steps + 1), y=(0, 1.08 * max(waiting)), xlabel="step",
        title="operations that wait", right=f"{max(waiting):,} at most",
    )  # fmt: skip
    xs, ys = [0.0], [0.0]
    for step, count in enumerate(waiting, 1):
        xs += [step, step] if computing[step - 1] else [step]
        ys += [count, 0.0] if computing[step - 1] else [count]
    left.line(xs, ys, COLORS[0])
    done = [step for step in range(1, steps + 1) if computing[step - 1]]
    left.dots(done, [0.0] * len(done), COLORS[1], size=5, cut=False)

    slowest = max(write + compute for write, compute in zip(writing, computing, strict=True))
    right = chart.plane(
        480, TOP, 350, high, x=(0, steps + 1), y=(0, 1.45 * slowest), xlabel="step",
        title="milliseconds", right=f"{three_digits(sum(writing) + sum(computing))} in all",
    )  # fmt: skip
    for step, (write, compute) in enumerate(zip(writing, computing, strict=True), 1):
        if compute:
            label = "computing" if step == done[0] else ""
            right.line([step, step], [write, write + compute], COLORS[1], width=5, label=label)
        right.line([step, step], [0, write], COLORS[0], width=5, label="" if step > 1 else "writing it down")
    right.legend("upper left")
    return chart, (
        f"{steps} steps, evaluated after every {every if every > 1 else 'one'}. Up to {max(waiting):,} operations "
        f"wait. Writing the steps down takes {three_digits(sum(writing))} milliseconds in all, computing "
        f"{three_digits(sum(computing))}; the longest step takes {three_digits(slowest)}."
    )
