"""Networks side by side: gradients of the layers and losses, shares of right answers, running statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import BLUE, COLORS, INK, SOFT, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS = ((BLUE, "-", "o"), (COLORS[1], "--", "s"), (COLORS[3], "-.", "^"), (SOFT, ":", "D"))


def draw_depth(
    gradients: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[float]], *, window: int = 8
) -> tuple[Figure, str]:
    """(figure, words): for each network, by name, the length of every layer's gradient, and its loss.

    Args:
        gradients: from the first layer to the last, on a logarithmic axis
        losses: one per step, drawn as the mean of `window` steps
    """
    figure = new_figure(10, 3.4)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.985, bottom=0.145, top=0.885, wspace=0.17)
    words = []
    for (name, lengths), (color, style, marker) in zip(gradients.items(), LOOKS, strict=False):
        left.semilogy(range(1, len(lengths) + 1), lengths, style, color=color, marker=marker, markersize=4, label=name)
        curve = [sum(losses[name][end - window : end]) / window for end in range(window, len(losses[name]) + 1)]
        right.plot(range(window, len(losses[name]) + 1), curve, style, color=color, linewidth=2.2, label=name)
        words.append(
            f"{name}: gradient of the first layer {lengths[0]:.0e}, of the last {lengths[-1]:.0e}; loss from "
            f"{curve[0]:.2f} to {curve[-1]:.2f}."
        )
    left.set_xlabel("layer, from the first to the last", size=9.5, color=INK)
    right.set_xlabel("step", size=9.5, color=INK)
    right.set_ylim(bottom=0)
    for axis, title in (
        (left, "length of each layer's gradient, before the first step"),
        (right, f"loss, mean of {window} steps"),
    ):
        _tidy(axis, title)
        axis.legend(frameon=False, fontsize=9, labelcolor=INK)
    return figure, " ".join(words)


def draw_running(
    track: Sequence[tuple[float, float, float, float]], *, true_mean: float, true_var: float
) -> tuple[Figure, str]:
    """(figure, words): the means and variances of batches, the running values, and the true values.

    Args:
        track: for each batch its mean, its variance, the running mean and the running variance after it
    """
    figure = new_figure(10, 3)
    batch_means, batch_vars, means, variances = zip(*track, strict=True)
    for axis, name, batches, running, true in zip(
        figure.subplots(1, 2),
        ("mean", "variance"),
        (batch_means, batch_vars),
        (means, variances),
        (true_mean, true_var),
        strict=True,
    ):
        axis.plot(batches, "o", color=COLORS[5], markersize=3.5, label="a batch")
        axis.plot(running, color=LOOKS[0][0], linewidth=2.2, label="running")
        axis.axhline(true, color=LOOKS[1][0], linestyle="--", label=f"true: {true:g}")
        axis.set_xlabel("batch", size=9.5, color=INK)
        axis.set_ylim(0, 1.25 * max(batches))
        _tidy(axis, name)
        axis.legend(fontsize=9, ncols=3, loc="upper left", frameon=False, columnspacing=1, labelcolor=INK)
    figure.set_layout_engine("tight")
    return figure, (
        f"Mean and variance of {len(track)} batches scatter widely; the running mean ends at {means[-1]:.2f} (true "
        f"{true_mean:g}), the running variance at {variances[-1]:.2f} (true {true_var:g})."
    )


def draw_shares(shares: Mapping[str, float], *, best: str, title: str = "") -> tuple[Figure, str]:
    """(figure, words): a bar for each share between 0 and 1, by name, from top to bottom; `best` has its own colour."""
    height = 0.34 * len(shares) + 0.75
    figure = new_figure(9, height)
    left = max(0.19, 0.02 + 0.0088 * max(map(len, shares)))
    axis = figure.add_axes((left, 0.48 / height, 0.97 - left, 1 - 0.78 / height))
    for row, (name, share) in enumerate(shares.items()):
        axis.barh(row, 100 * share, height=0.68, color=LOOKS[0][0] if name == best else COLORS[1])
        axis.text(100 * share + 1, row, f"{share:.0%}", va="center", size=10, color=INK)
    axis.set_yticks(range(len(shares)), list(shares))
    axis.invert_yaxis()
    axis.set(xlim=(0, 106))
    axis.set_xlabel("%", size=9, color=INK, labelpad=1)
    _tidy(axis, title)
    axis.tick_params(axis="y", labelsize=10, labelcolor=INK, length=0)
    axis.grid(visible=False, axis="y")
    return figure, f"{title}: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def _tidy(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", size=10.5, color=INK)
    plain_axes(axis, 8.5)
    axis.set_axisbelow(True)
