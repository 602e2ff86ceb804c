"""Pictures of small images and of what a classifier makes of them: pixels, guesses, mistakes, a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import BLUE, COLORS, EDGE, FAINT, INK, ORANGE, SOFT

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TILE = 0.55  # inches, of an image among many
LARGEST_WITH_NUMBERS = 12  # pixels a side, up to which each pixel's number is legible


def draw_pixels(image: np.ndarray, title: str = "") -> tuple[Figure, str]:
    """(figure, words): an image with its numbers in its pixels, and below it the same numbers as one row.

    image: [H, W] or [1, H, W], from 0 (paper) to 1 (ink).
    """
    image = _flat_images([image])[0]
    height, width = image.shape
    figure = new_figure(7.2, 4.6)
    above, below = figure.subplots(2, 1, height_ratios=(12, 1))
    figure.subplots_adjust(left=0.03, right=0.97, top=0.92, bottom=0.11, hspace=0.22)
    for axis, pixels in ((above, image), (below, image.reshape(1, -1))):
        axis.imshow(pixels, cmap="Greys", vmin=0, vmax=1, aspect="equal" if axis is above else "auto")
        _frame(axis)
    if max(height, width) <= LARGEST_WITH_NUMBERS:
        for row in range(height):
            for column in range(width):
                above.text(
                    column,
                    row,
                    f"{image[row, column]:.2f}".removeprefix("0"),
                    ha="center",
                    va="center",
                    size=8,
                    color="white" if image[row, column] > 0.55 else INK,
                )
    above.set_title(title, loc="left", size=11, color=INK)
    for edge in range(width, height * width, width):
        below.axvline(edge - 0.5, color=COLORS[0], linewidth=0.8)
    below.set_xlabel(
        f"what the network gets: {height * width} numbers in one row (blue lines: where a row of the image ends)",
        size=9,
        color=INK,
    )
    words = (
        f"An image of {height} by {width} pixels with the number of each, from 0 for paper to 1 for ink; "
        f"{int((image > 0.5).sum())} are above one half. Below it the same {height * width} numbers in one row."
    )
    return figure, f"{title}. {words}" if title else words


def draw_digits(
    images: np.ndarray,
    labels: Sequence[int],
    guesses: Sequence[int] | None = None,
    *,
    columns: int = 14,
    title: str = "",
) -> tuple[Figure, str]:
    """(figure, words): small images side by side, each with its label, and with what the network says if it is wrong.

    images: [N, H, W] or [N, 1, H, W], from 0 (paper) to 1 (ink); labels and guesses: N integers.
    """
    images = _flat_images(images)
    height, width = images.shape[1:]
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    per_image, header = TILE + 0.28 if guesses is None else TILE + 0.36, 0.36 if title else 0.05
    across = max(TILE + 0.12, 0.74 if guesses is not None else 0)
    figure = new_figure(max(across * columns + 0.2, 4.5), per_image * rows + header)
    axis = figure.add_axes((0, 0, 1, 1 - header / figure.get_figheight()))
    axis.set(xlim=(-0.1, figure.get_figwidth() - 0.1), ylim=(per_image * rows, 0))
    axis.axis("off")
    for number, image in enumerate(images):
        left, top = across * (number % columns) + (across - TILE) / 2, per_image * (number // columns)
        axis.imshow(image, cmap="Greys", vmin=0, vmax=1, extent=(left, left + TILE, top + TILE, top), aspect="auto")
        wrong = guesses is not None and guesses[number] != labels[number]
        axis.add_patch(_box(left, top, TILE, ORANGE if wrong else FAINT, 2 if wrong else 0.8))
        words = f"{labels[number]}, says {guesses[number]}" if wrong else f"{labels[number]}"
        axis.text(
            left + TILE / 2,
            top + TILE + 0.04,
            words,
            ha="center",
            va="top",
            size=8.5,
            color=ORANGE if wrong else SOFT,
        )
    figure.text(0.12 / figure.get_figwidth(), 1 - 0.1 / figure.get_figheight(), title, size=11, color=INK, va="top")
    words = f"{len(images)} images of {height} by {width} pixels, labelled {', '.join(map(str, labels))}."
    if guesses is not None:
        wrong = [f"{label} taken for {guess}" for label, guess in zip(labels, guesses, strict=True) if label != guess]
        words += f" {len(wrong)} wrong{': ' if wrong else ''}{', '.join(wrong)}."
    return figure, f"{title}. {words}" if title else words


def draw_reading(
    image: np.ndarray,
    probabilities: np.ndarray,
    label: int | None = None,
    slope: np.ndarray | None = None,
    *,
    title: str = "",
) -> tuple[Figure, str]:
    """(figure, words): an image, the probability that the network gives each class, and what each pixel does to it.

    Args:
        image: [H, W] or [1, H, W], from 0 (paper) to 1 (ink)
        probabilities: [C], which sum to 1
        label: the right class, if it is known
        slope: d(loss) / d(pixel), the shape of image: where it is positive, more ink makes the answer worse
    """
    import numpy as np

    image, probabilities = _flat_images([image])[0], np.asarray(probabilities)
    says = int(probabilities.argmax())
    figure = new_figure(9.6 if slope is not None else 5.9, 3.3 if slope is not None else 3.0)
    axes = figure.subplots(1, 2 if slope is None else 3, width_ratios=(1, 1.15, 1)[: 2 if slope is None else 3])
    figure.subplots_adjust(left=0.02, right=0.98, top=0.88, bottom=0.1, wspace=0.14)
    axes[0].imshow(image, cmap="Greys", vmin=0, vmax=1)
    _frame(axes[0])
    verdict = "" if label is None else ", which is right" if says == label else f"; it is {_a(label)}"
    axes[0].set_title(title or "the image", loc="left", size=11, color=INK)

    colors = [BLUE if each == label else COLORS[5] for each in range(len(probabilities))]
    if says != label and label is not None:
        colors[says] = COLORS[1]
    bars = axes[1]
    bars.barh(range(len(probabilities)), probabilities, color=colors, height=0.72)
    for each, share in enumerate(probabilities):
        mark = " right answer" if each == label else ""
        bars.text(
            share + 0.015, each, f"{share:.0%}{mark}" if share >= 0.005 or mark else "", va="center", size=8, color=INK
        )
    bars.set(xlim=(0, 1.38), xticks=[], ylim=(len(probabilities) - 0.4, -0.6), yticks=range(len(probabilities)))
    bars.spines[["top", "right", "bottom"]].set_visible(False)
    bars.tick_params(labelsize=9, colors=INK, length=0)
    bars.set_title(f"it says {says}{verdict}", loc="left", size=11, weight="bold", color=INK)
    words = f"{title + '. ' if title else ''}The network says {says} with {probabilities[says]:.0%}{verdict}."
    if label is not None and says != label:
        words += f" It gives the right answer {probabilities[label]:.0%}."
    if slope is not None:
        slope = _flat_images([slope])[0]
        _draw_slope(axes[2], slope)
        row, column = np.unravel_index(np.abs(slope).argmax(), slope.shape)
        words += (
            f" The loss is most sensitive to the pixel in row {row}, column {column}, where more ink would "
            f"{'hurt' if slope[row, column] > 0 else 'help'}."
        )
    return figure, words


def _draw_slope(axis: Axes, slope: np.ndarray) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    most = max(float(np.abs(slope).max()), 1e-12)
    tones = LinearSegmentedColormap.from_list("hurt and help", [ORANGE, "#ffffff", BLUE])
    axis.imshow(slope, cmap=tones, vmin=-most, vmax=most)
    _frame(axis)
    if max(slope.shape) <= LARGEST_WITH_NUMBERS:
        for row, column in np.argwhere(np.abs(slope) > most / 2):
            axis.text(
                column,
                row,
                "+" if slope[row, column] > 0 else "\N{MINUS SIGN}",
                ha="center",
                va="center",
                size=11,
                weight="bold",
                color="white",
            )
    axis.set_title(f"slope of the loss, up to {most:.2g}", loc="left", size=11, color=INK)
    axis.set_xlabel("ink raises the loss: blue, +    lowers it: orange, \N{MINUS SIGN}", size=8, color=INK)


def draw_confusion(
    labels: Sequence[int], guesses: Sequence[int], *, classes: int = 10, title: str = ""
) -> tuple[Figure, str]:
    """(figure, words): how often each class was taken for each. labels and guesses: N integers below `classes`."""
    import numpy as np

    counts = np.zeros((classes, classes), int)
    np.add.at(counts, (np.asarray(labels), np.asarray(guesses)), 1)
    figure = new_figure(4.5, 4.4)
    axis = figure.subplots()
    figure.subplots_adjust(left=0.13, right=0.98, top=0.91, bottom=0.13)
    most = int((counts * (1 - np.eye(classes, dtype=int))).max())
    for row in range(classes):
        for column in range(classes):
            count, on_diagonal = int(counts[row, column]), row == column
            if not count:
                continue
            strength = 0.35 if on_diagonal else 0.35 + 0.65 * count / max(most, 3)
            axis.add_patch(
                _box(column - 0.5, row - 0.5, 1, "none", 0, COLORS[0] if on_diagonal else COLORS[1], strength)
            )
            axis.text(
                column,
                row,
                f"{count}",
                ha="center",
                va="center",
                size=9,
                color=INK,
                weight="normal" if on_diagonal else "bold",
            )
    axis.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), xticks=range(classes), yticks=range(classes))
    axis.set_xlabel("the network says", size=10, color=INK)
    axis.set_ylabel("it is", size=10, color=INK)
    axis.set_xticks(np.arange(classes) - 0.5, minor=True)
    axis.set_yticks(np.arange(classes) - 0.5, minor=True)
    axis.grid(which="minor", color=FAINT, linewidth=0.6)
    axis.tick_params(which="both", length=0, labelsize=9, labelcolor=INK)
    axis.set_title(title, loc="left", size=11, color=INK)
    wrong = [(int(counts[i, j]), i, j) for i in range(classes) for j in range(classes) if i != j and counts[i, j]]
    listed = ", ".join(
        f"{i} for {j} ({count} times)" if count > 1 else f"{i} for {j}"
        for count, i, j in sorted(wrong, key=lambda each: -each[0])[:8]
    )
    words = f"Of {counts.sum()} images {np.trace(counts)} are on the diagonal, read rightly. " + (
        f"Taken wrongly: {listed}." if wrong else "None is wrong."
    )
    return figure, f"{title}. {words}" if title else words


def _a(label: int) -> str:
    return f"an {label}" if label == 8 else f"a {label}"


def _flat_images(images: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """[N, H, W] out of [N, H, W] or [N, 1, H, W]."""
    import numpy as np

    images = np.asarray(images, dtype=float)
    if images.ndim == 4 and images.shape[1] == 1:
        images = images[:, 0]
    if images.ndim != 3:
        raise ValueError(f"images have shape {images.shape}; expected [N, H, W] or [N, 1, H, W], or [H, W] for one.")
    return images


def _frame(axis: Axes) -> None:
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_color(EDGE)


def _box(left: float, top: float, size: float, edge: str, line: float, fill: str = "none", alpha: float = 1.0):
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), size, size, facecolor=fill, edgecolor=edge, linewidth=line, alpha=alpha)
