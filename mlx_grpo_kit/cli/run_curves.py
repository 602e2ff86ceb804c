"""The picture of a run: the reward of each step, and each measured accuracy."""

from __future__ import annotations

from importlib.util import find_spec

from mlx_grpo_kit.files import write_file
from mlx_grpo_kit.runs.folder import RunFolder


def draw_curves(folder: RunFolder, title: str) -> None:
    """Write reward.png from metrics.jsonl, if Matplotlib is installed."""
    if find_spec("matplotlib") is not None:
        write_file(folder.picture, curves(folder.points("reward"), folder.measured(), title))


def curves(rewards: list[tuple[int, float]], accuracies: list[tuple[int, float]], title: str) -> bytes:
    """Plot the reward of every step, and each measured accuracy on held-out problems, as a PNG."""
    from matplotlib.patheffects import withStroke

    from mlx_grpo_kit.viz.live.curves import smooth
    from mlx_grpo_kit.viz.picture import new_figure, to_png
    from mlx_grpo_kit.viz.style import COLORS, FAINT, INK, three_digits

    figure = new_figure(8.4, 3.2)
    figure.suptitle(title, x=0.012, ha="left", size=12, weight="bold", color=INK)
    margins = {"left": 0.06, "right": 0.98, "bottom": 0.15, "top": 0.8, "wspace": 0.16}
    left, right = figure.subplots(1, 2, gridspec_kw=margins)
    if rewards:
        steps, values = zip(*rewards, strict=True)
        averages = smooth(values, 0.7)
        left.plot(steps, values, "o", color=COLORS[0], markersize=2, markeredgewidth=0)
        edge = withStroke(linewidth=4, foreground="white")
        left.plot(steps, averages, color=COLORS[0], linewidth=2, path_effects=[edge])
        left.set_title(three_digits(averages[-1]), loc="right", size=11, weight="bold", color=INK)
    if accuracies:
        right.plot(*zip(*accuracies, strict=True), "s-", color=COLORS[1], linewidth=2, markersize=6, clip_on=False)
        right.set_title(three_digits(accuracies[-1][1]), loc="right", size=11, weight="bold", color=INK)
    left.set_title("reward of each step", loc="left", size=10, color=INK)
    right.set_title("accuracy on held-out problems", loc="left", size=10, color=INK)
    right.set_ylim(0, 1.02)
    for axis in (left, right):
        axis.set_xlim(0, max([step for step, _ in (*rewards, *accuracies)], default=0) * 1.02 + 1)
        axis.set_xlabel("step", size=9, color=INK)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, labelcolor=INK)
        axis.grid(axis="y", color=FAINT, linewidth=0.6)
    return to_png(figure)
