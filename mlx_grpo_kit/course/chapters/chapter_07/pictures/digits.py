"""Pictures of small images and of a classifier's answers: pixels, guesses, mistakes, a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.course.pictures.sheet import Sheet, grays
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import BLUE, COLORS, EDGE, FAINT, INK, ORANGE, SOFT, ZERO, shades

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TILE = 0.55  # inches; the size of an image among many
LARGEST_WITH_NUMBERS = 12  # pixels per side, up to which the number of each pixel is legible


def draw_pixels(image: np.ndarray, title: str = "") -> tuple[Figure, str]:
    """(figure, words): an image with the number of each pixel, and below it the same numbers in one row.

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
        f"input of the network: {height * width} numbers in one row (blue lines: ends of the image's rows)",
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
    """(figure, words): small images side by side, each with its label, and with the network's answer if it is wrong.

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
) -> tuple[Chart, str]:
    """(chart, words): an image, the network's probability of each class, and the effect of each pixel on the loss.

    Args:
        image: [H, W] or [1, H, W], from 0 (paper) to 1 (ink)
        probabilities: [C], which sum to 1
        label: the right class, if known
        slope: d(loss) / d(pixel), in the shape of image: where it is positive, more ink makes the answer worse
    """
    import numpy as np

    image, probabilities = _flat_images([image])[0], np.asarray(probabilities)
    says = int(probabilities.argmax())
    chart = Chart(960 if slope is not None else 590, 330 if slope is not None else 300)
    chart.add(Sheet(18, 38, 252, image, grays(1), title=title or "the image"))
    verdict = "" if label is None else ", which is right" if says == label else f"; it is {_a(label)}"
    _draw_shares(chart, probabilities, label, f"it says {says}{verdict}")
    words = f"{title + '. ' if title else ''}The network says {says} with {probabilities[says]:.0%}{verdict}."
    if label is not None and says != label:
        words += f" It gives the right answer {probabilities[label]:.0%}."
    if slope is not None:
        slope = _flat_images([slope])[0]
        _draw_slope(chart, slope)
        row, column = np.unravel_index(np.abs(slope).argmax(), slope.shape)
        words += (
            f" The loss is most sensitive to the pixel in row {row}, column {column}, where more ink would "
            f"{'hurt' if slope[row, column] > 0 else 'help'}."
        )
    return chart, words


def _draw_shares(chart: Chart, shares: np.ndarray, label: int | None, title: str) -> None:
    """A bar for each class, blue for the right one, and orange for the network's answer if it is a different one."""
    left, top, longest = 318, 38, 190
    step = 252 / len(shares)
    chart.text(left, top - 9, title, size=14, bold=True)
    for each, share in enumerate(shares):
        middle = top + (each + 0.5) * step
        says = each == shares.argmax()
        color = BLUE if each == label else COLORS[1] if says and label is not None else COLORS[5]
        mark = " right answer" if each == label else ""
        chart.text(left - 8, middle + 5, str(each), anchor="end")
        chart.bar(left, middle - 0.36 * step, longest * float(share), 0.72 * step, color)
        if share >= 0.005 or mark:
            chart.text(left + longest * float(share) + 5, middle + 4, f"{share:.0%}{mark}", size=11.5)


def _draw_slope(chart: Chart, slope: np.ndarray) -> None:
    """Blue where ink raises the loss, orange where it lowers it; a sign marks strong effects."""
    most = max(float(abs(slope).max()), 1e-12)
    below = "more ink raises it: blue, +; lowers it: orange, \N{MINUS SIGN}"
    title = f"slope of the loss, up to {most:.2g}"
    colors = shades(-most, most, (ORANGE, ZERO, BLUE))
    sheet = chart.add(Sheet(640, 38, 252, slope, colors, title=title, below=below))
    if max(slope.shape) <= LARGEST_WITH_NUMBERS:
        signs = [
            ["" if abs(each) <= most / 2 else "+" if each > 0 else "\N{MINUS SIGN}" for each in row] for row in slope
        ]
        sheet.write(signs, size=15)


def draw_confusion(
    labels: Sequence[int], guesses: Sequence[int], *, classes: int = 10, title: str = ""
) -> tuple[Figure, str]:
    """(figure, words): the confusion matrix. labels and guesses: N integers below `classes`."""
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
    words = f"{np.trace(counts)} of {counts.sum()} images are on the diagonal: the network read them correctly. " + (
        f"Mistaken: {listed}." if wrong else "None is wrong."
    )
    return figure, f"{title}. {words}" if title else words


def _a(label: int) -> str:
    return f"an {label}" if label == 8 else f"a {label}"


def _flat_images(images: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Images [N, H, W] from [N, H, W] or [N, 1, H, W]."""
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
