"""A kernel that slides over an image: one stop with its products, and the matrix of all stops (im2col)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import BLUE, INK, ORANGE, SOFT, two_sided

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID, BORDER = "#c9c9c9", "#ececec"
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d)?")


def stops(shape: tuple[int, int], size: int, stride: int = 1, padding: int = 0) -> tuple[int, int]:
    """How many stops a kernel of size x size makes down and across an image of `shape` (height, width).

    Raises:
        ValueError: the kernel is larger than the padded image.
    """
    padded = [length + 2 * padding for length in shape]
    if min(padded) < size:
        raise ValueError(
            f"a kernel of {size} x {size} does not fit into an image of {shape[0]} x {shape[1]} with "
            f"padding {padding}; expected a smaller kernel or more padding"
        )
    return tuple((length - size) // stride + 1 for length in padded)


def read_kernel(text: str, size: int = 3) -> np.ndarray:
    """The numbers in `text` as a kernel [size, size], row after row; commas, brackets and line breaks are spaces.

    Raises:
        ValueError: a word is no number, or there are more or fewer than size * size of them.
    """
    import numpy as np

    words = re.sub(r"[][(),;]", " ", text).split()
    strange = next((word for word in words if not NUMBER.fullmatch(word)), None)
    if strange is not None:
        raise ValueError(f"{strange!r} is no number; a {size} x {size} kernel is {size * size} of them: 0 0 0  0 1 0")
    if len(words) != size * size:
        raise ValueError(f"{len(words)} numbers; a {size} x {size} kernel has {size * size}, row after row")
    return np.array([float(word) for word in words]).reshape(size, size)


def draw_convolution(
    image: Any, kernel: Any, *, stride: int = 1, padding: int = 0, position: int = 0
) -> tuple[Figure, str]:
    """(figure, words): the kernel at one stop. Image and window, kernel, their products, and the output with their sum.

    Args:
        image: [H, W], values from 0 (white) to 1; `padding` zeros are drawn around it
        kernel: [K, K]
        position: which stop, counted along the rows of the output from 0; the last one if there are not that many
    """
    import numpy as np

    image, kernel = np.asarray(image, dtype=float), np.asarray(kernel, dtype=float)
    size = len(kernel)
    down, across = stops(image.shape, size, stride, padding)
    position = min(position, down * across - 1)
    row, column = divmod(position, across)
    padded = np.pad(image, padding)
    seen = np.lib.stride_tricks.sliding_window_view(padded, (size, size))[::stride, ::stride]
    output = np.einsum("ijkl,kl->ij", seen, kernel)
    window = seen[row, column]
    products = window * kernel
    total = float(output[row, column])

    figure = new_figure(10, 3.9)
    # Three squares of pixels in inches: the input, three small ones for the window's arithmetic, the output.
    left = _axes(figure, 0.15, 0.5, 2.85)
    _paint(left, padded, "gray_r", 0, max(1.0, image.max()))
    _mark_padding(left, padded.shape, padding)
    _frame(left, row * stride, column * stride, size, size, BLUE, 2.6)
    left.set_title(
        f"image {image.shape[0]} x {image.shape[1]}" + (f", padding {padding}" if padding else ""),
        loc="left",
        size=11,
        color=INK,
    )

    strongest = max(float(np.abs(kernel).max()), 1e-9)
    parts = (
        (3.22, window, "window", "gray_r", 0, max(1.0, image.max())),
        (4.44, kernel, "kernel", two_sided(), -strongest, strongest),
        (5.66, products, "products", two_sided(), -strongest, strongest),
    )
    for place, numbers, name, colors, low, high in parts:
        axis = _axes(figure, place, 1.65, 1.06)
        _paint(axis, numbers, colors, low, high)
        _write(axis, numbers, size=8.5 if size <= 3 else 6, dark=0.44 * high if colors == "gray_r" else np.inf)
        axis.set_title(name, size=10, color=INK)
        if name == "window":
            _frame(axis, 0, 0, size, size, BLUE, 2.6)
    figure.text(0.436, 2.18 / 3.9, "\N{MULTIPLICATION SIGN}", size=15, color=INK, ha="center", va="center")
    figure.text(0.558, 2.18 / 3.9, "=", size=15, color=INK, ha="center", va="center")
    figure.text(0.497, 0.285, f"their sum is {_short(total)}", size=13, color=ORANGE, weight="bold", ha="center")
    figure.text(
        0.497, 0.21, f"stop {position + 1} of {down * across}, stride {stride}", size=10, color=SOFT, ha="center"
    )

    right = _axes(figure, 7.0, 0.5, 2.85)
    far = max(float(np.abs(output).max()), 1e-9)
    _paint(right, output, two_sided(), -far, far)
    _frame(right, row, column, 1, 1, ORANGE, 2.6)
    right.set_title(f"output {down} x {across}", loc="left", size=11, color=INK)
    right.set_xlabel(f"orange {_short(-far)}, white 0, blue {_short(far)}", size=9, color=SOFT, labelpad=5)
    words = (
        f"A {size} x {size} kernel at stop {position + 1} of {down * across} on an image of {image.shape[0]} x "
        f"{image.shape[1]} with stride {stride} and padding {padding}. The products of window and kernel add up "
        f"to {_short(total)}, which is the pixel in row {row}, column {column} of the output of {down} x "
        f"{across}. The output reaches from {_short(float(output.min()))} to {_short(float(output.max()))}."
    )
    return figure, words


def draw_im2col(
    shape: tuple[int, int], size: int, *, stride: int = 1, padding: int = 0, position: int = 0, pixel: int | None = None
) -> tuple[Figure, str]:
    """(figure, words): an image whose pixels are numbered, and the matrix with a column for each stop of the kernel.

    Args:
        shape: height and width of the image
        size: of the kernel, size x size
        position: the stop whose window and column are framed; the last one if there are not that many
        pixel: a pixel whose every copy in the matrix is filled with a colour
    """
    import numpy as np

    down, across = stops(shape, size, stride, padding)
    position = min(position, down * across - 1)
    row, column = divmod(position, across)
    numbers = np.pad(np.arange(shape[0] * shape[1]).reshape(shape), padding, constant_values=-1)
    seen = np.lib.stride_tricks.sliding_window_view(numbers, (size, size))[::stride, ::stride]
    matrix = seen.transpose(2, 3, 0, 1).reshape(size * size, -1)

    figure = new_figure(10, 3.7)
    left = _axes(figure, 0.15, 0.4, 2.75)
    wide = 6.7
    cell = min(wide / matrix.shape[1], 2.75 / matrix.shape[0], 0.42)
    across_inches, down_inches = cell * matrix.shape[1], cell * matrix.shape[0]
    right = figure.add_axes((3.2 / 10, (0.4 + 2.75 - down_inches) / 3.7, across_inches / 10, down_inches / 3.7))
    for axis, values in ((left, numbers), (right, matrix)):
        shade = np.where(values == -1, 0.5, np.where(values == pixel, 1.0, 0.0))
        _paint(axis, shade, _tones(), 0, 1)
    inches = min(2.75 / max(numbers.shape), 0.45)
    _write(left, numbers, size=min(10, inches * 26), blank=-1)
    _write(right, matrix, size=min(10, cell * 28), blank=-1)
    _frame(left, row * stride, column * stride, size, size, BLUE, 2.6)
    _frame(right, 0, position, size * size, 1, BLUE, 2.6)
    left.set_title(f"image {shape[0]} x {shape[1]}, pixels numbered", loc="left", size=11, color=INK)
    right.set_title(f"columns [{size * size}, {down * across}]: one for each stop", loc="left", size=11, color=INK)
    kernel = f"kernels [O, {size * size}] @ columns [{size * size}, {down * across}] = [O, {down * across}]"
    right.set_xlabel(f"{kernel}, which is [O, {down}, {across}]", size=10, color=INK, labelpad=7, loc="left")

    copies = int((matrix == pixel).sum()) if pixel is not None else 0
    words = (
        f"An image of {shape[0]} x {shape[1]} numbered pixels and its matrix of {size * size} rows and "
        f"{down * across} columns (stride {stride}, padding {padding}). Column {position} holds the window at row "
        f"{row}, column {column} of the output: pixels {_listed(matrix[:, position])}."
    )
    if pixel is not None:
        words += f" Pixel {pixel} stands in {copies} of the columns."
        left.set_xlabel(f"pixel {pixel} stands in {copies} columns", size=10, color=ORANGE, weight="bold", labelpad=7)
    return figure, words


def _axes(figure: Figure, left: float, bottom: float, side: float) -> Axes:
    """A square of `side` inches."""
    width, height = figure.get_size_inches()
    return figure.add_axes((left / width, bottom / height, side / width, side / height))


def _paint(axis: Axes, numbers: np.ndarray, colors: Any, low: float, high: float) -> None:
    axis.imshow(numbers, cmap=colors, vmin=low, vmax=high, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for line in range(numbers.shape[0] + 1):
        axis.axhline(line - 0.5, color=GRID, linewidth=0.6)
    for line in range(numbers.shape[1] + 1):
        axis.axvline(line - 0.5, color=GRID, linewidth=0.6)
    axis.spines[:].set_visible(False)
    axis.set(xlim=(-0.6, numbers.shape[1] - 0.4), ylim=(numbers.shape[0] - 0.4, -0.6))


def _write(
    axis: Axes, numbers: np.ndarray, *, size: float, dark: float = float("inf"), blank: float | None = None
) -> None:
    """The numbers in their cells; white on cells above `dark`, and a dot for padding, `blank`."""
    import numpy as np

    for (row, column), number in np.ndenumerate(numbers):
        text = "\N{MIDDLE DOT}" if number == blank else _short(float(number))
        axis.text(column, row, text, size=size, ha="center", va="center", color="white" if number > dark else INK)


def _frame(axis: Axes, row: int, column: int, height: int, width: int, color: str, line: float) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5),
            width,
            height,
            fill=False,
            edgecolor=color,
            linewidth=line,
            zorder=5,
            clip_on=False,
        )
    )


def _mark_padding(axis: Axes, shape: tuple[int, int], padding: int) -> None:
    """Tint the border of zeros, so that it is not taken for a part of the image."""
    from matplotlib.patches import Rectangle

    height, width = shape
    for row, column, down, across in (
        (0, 0, padding, width),
        (height - padding, 0, padding, width),
        (padding, 0, height - 2 * padding, padding),
        (padding, width - padding, height - 2 * padding, padding),
    ):
        axis.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5),
                across,
                down,
                facecolor=BORDER,
                edgecolor=GRID,
                linewidth=0.6,
                hatch="..",
                zorder=1.5,
            )
        )


def _tones() -> Any:
    """Plain, padding and the chosen pixel, at 0, 0.5 and 1."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("tones", ["#ffffff", BORDER, "#fbb45c"])


def _short(number: float) -> str:
    """At most three digits, with a real minus sign."""
    text = f"{number:.0f}" if number == round(number) else f"{number:.2f}" if abs(number) < 10 else f"{number:.1f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else "0"


def _listed(numbers: np.ndarray) -> str:
    return ", ".join("padding" if number == -1 else str(number) for number in numbers)
