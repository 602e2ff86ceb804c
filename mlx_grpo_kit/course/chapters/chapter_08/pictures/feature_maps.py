"""Small images in a grid: kernels, digits, and the feature maps of a layer during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, INK, ORANGE, SOFT, plain_axes, two_sided

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_images(
    images: Any,
    titles: Sequence[str] = (),
    *,
    words: str,
    title: str = "",
    columns: int = 8,
    inches: float = 1.15,
    signed: bool = False,
    numbers: bool = False,
) -> tuple[Figure, str]:
    """(figure, words): images in a grid, with a title above each.

    Args:
        images: arrays [H, W], of the same or different sizes; or an array [N, H, W]
        signed: use one scale for all, orange below 0 and blue above; otherwise each is white (0) to black (its largest)
        numbers: write the values into the pixels, on lighter colours
        words: a description of the picture, for readers who cannot see it

    Raises:
        ValueError: there is no image, or fewer titles than images.
    """
    import numpy as np

    images = [np.asarray(image, dtype=float) for image in images]
    if not images or (titles and len(titles) < len(images)):
        raise ValueError(
            f"draw_images got {len(images)} images and {len(titles)} titles; expected at least one image, "
            "and a title for each or none"
        )
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    above = 0.25 + 0.17 * max((text.count("\n") for text in titles), default=0) if titles else 0.08
    header = 0.36 if title else 0.05
    width, height = columns * (inches + 0.12) + 0.12, rows * (inches + above) + header + 0.1
    figure = new_figure(max(width, 3.0), height)
    figure.text(0.12 / max(width, 3.0), 1 - 0.08 / height, title, size=11.5, color=INK, va="top")
    far = max(max(float(np.abs(image).max()) for image in images), 1e-9)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        left, bottom = 0.12 + column * (inches + 0.12), height - header - (row + 1) * (inches + above)
        axis = figure.add_axes((left / max(width, 3.0), bottom / height, inches / max(width, 3.0), inches / height))
        low, high = (-far, far) if signed else (0.0, max(float(image.max()), 1e-9))
        axis.imshow(
            image,
            cmap=two_sided() if signed else _light_blue() if numbers else "gray_r",
            vmin=low,
            vmax=high,
            interpolation="nearest",
        )
        _bare(axis)
        if titles:
            axis.set_title(titles[index], size=9.5, color=INK, pad=3)
        if numbers:
            size = min(13, 30 * inches / max(image.shape))
            for (y, x), value in np.ndenumerate(image):
                axis.text(x, y, f"{value:g}", size=size, ha="center", va="center", color=INK)
    return figure, words


def draw_feature_maps(
    image: Any,
    maps: Any,
    *,
    losses: Sequence[float] = (),
    accuracies: Sequence[tuple[int, float]] = (),
    title: str = "",
    steps: int = 0,
) -> tuple[Figure, str]:
    """(figure, words): an image, the output of each channel of a layer for it, and the loss and accuracy so far.

    Args:
        image: [H, W]
        maps: [C, H, W], not negative; at most 16 of them are drawn, from 0 (white) to the map's largest (black); a map
            that is weak compared with the others stays pale
        losses: one per step
        accuracies: (step, share between 0 and 1), on the held-out images
        steps: the length of the run, for the axes
    """
    import numpy as np

    maps = np.asarray(maps, dtype=float)[:16]
    figure = new_figure(10, 3.9)
    figure.text(0.015, 0.97, title, size=12, color=INK, va="top")
    strongest = max(float(maps.max()), 1e-9)
    digit = figure.add_axes((0.15 / 10, 1.02 / 3.9, 1.35 / 10, 1.35 / 3.9))
    digit.imshow(image, cmap="gray_r", vmin=0, interpolation="nearest")
    digit.set_title("a digit it never saw", size=9, color=INK)
    grid = figure.add_axes((1.85 / 10, 0.26 / 3.9, 3.1 / 10, 3.1 / 3.9))
    grid.imshow(
        _mosaic(maps / np.maximum(maps.max(axis=(1, 2), keepdims=True), 0.3 * strongest)),
        cmap=_shades_of_gray(),
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    _bare(digit)
    _bare(grid)
    grid.spines[:].set_visible(False)
    last = max(len(losses), steps, 2)
    loss = figure.add_axes((5.75 / 10, 2.3 / 3.9, 4.05 / 10, 1.02 / 3.9))
    share = figure.add_axes((5.75 / 10, 0.5 / 3.9, 4.05 / 10, 1.2 / 3.9))
    loss.plot(range(1, len(losses) + 1), losses, color=COLORS[0], linewidth=1.2)
    loss.set(xlim=(0, last), ylim=(0, max([2.5, *losses])))
    _caption(loss, "loss of the batch", f"{losses[-1]:.2f}" if losses else "")
    share.plot(
        [step for step, _ in accuracies],
        [100 * value for _, value in accuracies],
        "-o",
        color=ORANGE,
        linewidth=1.6,
        markersize=3,
    )
    share.axhline(97, color="#777777", linewidth=0.9, linestyle=":")
    lowest = min([0.7, *(value for _, value in accuracies)])
    share.set(xlim=(0, last), ylim=(10 * math.floor(10 * lowest), 101), xlabel="step")
    share.text(last * 0.99, 96, "97%", size=8.5, color=SOFT, ha="right", va="top")
    _caption(share, "held-out images read correctly (%)", f"{accuracies[-1][1]:.1%}" if accuracies else "")
    silent = int((maps.reshape(len(maps), -1).max(axis=1) < 0.02 * strongest).sum())
    words = [
        f"{title}." if title else "",
        f"A digit and {len(maps)} feature maps of it, {silent} of them nearly empty.",
    ]
    if losses:
        words.append(f"The loss went from {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps.")
    if accuracies:
        words.append(f"{accuracies[-1][1]:.1%} of the held-out images are read correctly.")
    return figure, " ".join(word for word in words if word)


def _mosaic(maps: np.ndarray, columns: int = 4, gap: int = 1) -> np.ndarray:
    """Maps [C, H, W] side by side in one image, which draws sixteen times as fast; nan in the gaps."""
    import numpy as np

    count, height, width = maps.shape
    rows = math.ceil(count / columns)
    whole = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for index, each in enumerate(maps):
        top, left = index // columns * (height + gap), index % columns * (width + gap)
        whole[top : top + height, left : left + width] = each
    return whole


def _shades_of_gray() -> Any:
    from matplotlib import colormaps

    return colormaps["gray_r"].with_extremes(bad="#e8effc")


def _light_blue() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("light blue", ["#ffffff", "#8fb5fd"])


def _bare(axis: Axes) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_color("#c9c9c9")


def _caption(axis: Axes, left: str, right: str) -> None:
    axis.set_title(left, loc="left", size=10, color=INK)
    axis.set_title(right, loc="right", size=11, weight="bold", color=INK)
    plain_axes(axis)
    axis.set_axisbelow(True)
