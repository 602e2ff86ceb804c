"""A fit that went wrong without an error: the differences between predictions and targets have one axis too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, INK, SOFT, plain_axes, three_digits, two_sided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = (("--", COLORS[1]), ("-", COLORS[0]), ("-.", COLORS[3]))


def draw_mismatch(
    x: Sequence[float], targets: Sequence[float], runs: Mapping[str, tuple[Sequence[float], Any, Any]]
) -> tuple[Figure, str]:
    """(figure, words): losses of the runs, the line that each run found, and the first run's differences as an image.

    Args:
        x, targets: [N]
        runs: name -> (its losses, its predictions [N, 1], predictions - targets as the run computed them); the first is
            the one that went wrong, with differences [N, N]
    """
    import numpy as np

    figure = new_figure(10, 3.6)
    curve, plane, image = figure.subplots(1, 3, width_ratios=(3, 3, 3.2))
    figure.subplots_adjust(left=0.04, right=0.945, bottom=0.15, top=0.87, wspace=0.27)
    order = np.argsort(x)
    words = []
    plane.plot(x, targets, "o", color="#777777", markersize=4, markeredgewidth=0, alpha=0.8, label="targets")
    for (name, (losses, predictions, _)), (style, color) in zip(runs.items(), STYLES, strict=False):
        curve.plot(losses, style, color=color, linewidth=2.2, label=name)
        plane.plot(np.asarray(x)[order], np.ravel(predictions)[order], style, color=color, linewidth=2.2, label=name)
        first, last = order[[0, -1]]
        slope = (np.ravel(predictions)[last] - np.ravel(predictions)[first]) / (x[last] - x[first])
        words.append(
            f"{name}: the loss goes from {three_digits(losses[0])} to {three_digits(losses[-1])}, and the "
            f"line has a slope of {slope + 0.0:.2f}."
        )
    curve.set(xlabel="step", ylim=(0, None))
    curve.set_title("the loss", loc="left", size=11, color=INK)
    plane.set(xlabel="x")
    plane.set_title("the line it found", loc="left", size=11, color=INK)

    differences = np.asarray(next(iter(runs.values()))[2])[order][:, order]
    far = np.abs(differences).max()
    shown = image.imshow(differences, cmap=two_sided(), vmin=-far, vmax=far)
    count = len(differences)
    image.plot([-0.5, count - 0.5], [-0.5, count - 0.5], color=INK, linewidth=1.6)
    image.set(xlabel="target j", ylabel="prediction i")
    image.set_title(f"{differences.shape} differences", loc="left", size=11, color=INK)
    bar = figure.colorbar(shown, ax=image, fraction=0.046, pad=0.03)
    bar.outline.set_visible(False)
    for axis in (image, bar.ax):
        axis.tick_params(labelsize=8, colors=SOFT)
    for axis in (curve, plane):
        plain_axes(axis)
        axis.legend(fontsize=8.5, frameon=False, labelcolor=INK)
    return figure, (
        f"{' '.join(words)} An image of the {differences.shape[0]} by {differences.shape[1]} differences "
        "of the first run: all rows look alike, and only the diagonal was wanted."
    )
