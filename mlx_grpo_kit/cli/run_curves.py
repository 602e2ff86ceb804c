"""The picture of a run: the reward of each step, and each measured accuracy."""

from __future__ import annotations

import math
from importlib.util import find_spec

from mlx_grpo_kit.files import write_file
from mlx_grpo_kit.runs.folder import RunFolder


def draw_curves(folder: RunFolder, title: str) -> None:
    """Write reward.png from metrics.jsonl, if Matplotlib is installed."""
    if find_spec("matplotlib") is not None:
        write_file(folder.picture, curves(folder.points("reward"), folder.measured(), title))


def curves(rewards: list[tuple[int, float]], accuracies: list[tuple[int, float]], title: str) -> bytes:
    """Plot the reward of every step, and each measured accuracy on held-out problems, as a PNG."""
    from mlx_grpo_kit.viz.figure_chart import FigureChart
    from mlx_grpo_kit.viz.live.curves import curve_panel, draw_panels
    from mlx_grpo_kit.viz.picture import to_png

    columns = {"reward of each step": dict(rewards), "held-out accuracy": dict(accuracies)}
    steps = sorted({step for column in columns.values() for step in column})
    history = {name: [column.get(step, math.nan) for step in steps] for name, column in columns.items()}
    reward, accuracy = (curve_panel(name, [name], steps, history, 0.7 * ("reward" in name)) for name in history)
    accuracy.limits, reward.empty, accuracy.empty = (0, 1.02), "no values yet", "not measured yet"
    return to_png(draw_panels([reward, accuracy], max(steps, default=0), title=title, kind=FigureChart).figure)
