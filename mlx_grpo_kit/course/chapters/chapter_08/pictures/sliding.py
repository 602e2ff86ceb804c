"""A kernel that slides over an image: one stop with its products, and the matrix of all stops (im2col)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.course.pictures.sheet import Sheet, grays
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, NEGATIVE, ORANGE, POSITIVE, ZERO, shades

if TYPE_CHECKING:
    import numpy as np

BORDER, CHOSEN = "#ececec", "#fbb45c"  # padding, and the chosen pixel
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d)?")


def stops(shape: tuple[int, int], size: int, stride: int = 1, padding: int = 0) -> tuple[int, int]:
    """The number of stops of a size x size kernel down and across an image of `shape` (height, width).

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
        ValueError: a word is not a number, or there are more or fewer than size * size numbers.
    """
    import numpy as np

    words = re.sub(r"[][(),;]", " ", text).split()
    strange = next((word for word in words if not NUMBER.fullmatch(word)), None)
    if strange is not None:
        raise ValueError(
            f"{strange!r} is not a number; a {size} x {size} kernel has {size * size} numbers: 0 0 0  0 1 0"
        )
    if len(words) != size * size:
        raise ValueError(f"{len(words)} numbers; a {size} x {size} kernel has {size * size}, row after row")
    return np.array([float(word) for word in words]).reshape(size, size)


def draw_convolution(
    image: Any, kernel: Any, *, stride: int = 1, padding: int = 0, position: int = 0
) -> tuple[Chart, str]:
    """(chart, words): the kernel at one stop: image and window, kernel, their products, and the output with their sum.

    Args:
        image: [H, W], values from 0 (white) to 1; `padding` zeros are drawn around it
        kernel: [K, K]
        position: the number of the stop, counted from 0 along the rows of the output; at most the last one
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

    chart = Chart(1000, 390)
    # Three squares of pixels: the input, three small ones for the window's arithmetic, the output.
    ink = grays(max(1.0, float(image.max())))
    border = np.pad(np.zeros(image.shape, dtype=bool), padding, constant_values=True)
    left = chart.add(
        Sheet(
            *(15, 55, 285, np.where(border, np.nan, padded)),
            lambda number: BORDER if number != number else ink(number),
            title=f"image {image.shape[0]} x {image.shape[1]}" + (f", padding {padding}" if padding else ""),
        )
    )
    left.write([["\N{MIDDLE DOT}" if outside else "" for outside in line] for line in border], size=14)
    left.frame(row * stride, column * stride, size, size, BLUE)

    strongest = max(float(np.abs(kernel).max()), 1e-9)
    signs = shades(-strongest, strongest, (NEGATIVE, ZERO, POSITIVE))
    small = 11 if size <= 3 else 7
    for place, numbers, name, color in (
        (322, window, "window", ink),
        (444, kernel, "kernel", signs),
        (566, products, "products", signs),
    ):
        sheet = chart.add(Sheet(place, 119, 106, numbers, color, title=name))
        sheet.write([[_short(float(number)) for number in line] for line in numbers], size=small)
        if name == "window":
            sheet.frame(0, 0, size, size, BLUE)
    chart.text(436, 179, "\N{MULTIPLICATION SIGN}", size=17, anchor="middle")
    chart.text(558, 179, "=", size=17, anchor="middle")
    chart.text(497, 284, f"their sum is {_short(total)}", size=18, color=ORANGE, bold=True, anchor="middle")
    chart.text(497, 312, f"stop {position + 1} of {down * across}, stride {stride}", color="soft", anchor="middle")

    far = max(float(np.abs(output).max()), 1e-9)
    right = chart.add(
        Sheet(
            *(700, 55, 285, output, shades(-far, far, (NEGATIVE, ZERO, POSITIVE))),
            title=f"output {down} x {across}",
            below=f"orange {_short(-far)}, white 0, blue {_short(far)}",
        )
    )
    right.frame(row, column, 1, 1, ORANGE)
    words = (
        f"A {size} x {size} kernel at stop {position + 1} of {down * across} on an image of {image.shape[0]} x "
        f"{image.shape[1]} with stride {stride} and padding {padding}. The products of window and kernel add up "
        f"to {_short(total)}, which is the pixel in row {row}, column {column} of the output of {down} x "
        f"{across}. The output ranges from {_short(float(output.min()))} to {_short(float(output.max()))}."
    )
    return chart, words


def draw_im2col(
    shape: tuple[int, int], size: int, *, stride: int = 1, padding: int = 0, position: int = 0, pixel: int | None = None
) -> tuple[Chart, str]:
    """(chart, words): an image whose pixels are numbered, and the matrix with a column for each stop of the kernel.

    Args:
        shape: height and width of the image
        size: the kernel is size x size
        position: the stop whose window and column are framed; at most the last one
        pixel: a pixel whose copies in the matrix are all filled with a colour
    """
    import numpy as np

    down, across = stops(shape, size, stride, padding)
    position = min(position, down * across - 1)
    row, column = divmod(position, across)
    numbers = np.pad(np.arange(shape[0] * shape[1]).reshape(shape), padding, constant_values=-1)
    seen = np.lib.stride_tricks.sliding_window_view(numbers, (size, size))[::stride, ::stride]
    matrix = seen.transpose(2, 3, 0, 1).reshape(size * size, -1)

    copies = int((matrix == pixel).sum()) if pixel is not None else 0
    kernels = f"kernels [O, {size * size}] @ columns [{size * size}, {down * across}] = [O, {down * across}]"
    chart = Chart(1000, 370)

    def tone(number: float) -> str:
        return BORDER if number == -1 else CHOSEN if number == pixel else ZERO

    left = chart.add(
        Sheet(
            *(15, 55, 275, numbers, tone),
            title=f"image {shape[0]} x {shape[1]}, pixels numbered",
            below="" if pixel is None else f"pixel {pixel} is in {copies} columns",
            below_color=ORANGE,
        )
    )
    right = chart.add(
        Sheet(
            *(320, 55, 670, matrix, tone),
            title=f"columns [{size * size}, {down * across}]: one for each stop",
            below=f"{kernels}, which is [O, {down}, {across}]",
            below_color="ink",
            most=min(42, 275 / len(matrix)),
        )
    )
    for sheet, values in ((left, numbers), (right, matrix)):
        words = [["\N{MIDDLE DOT}" if number == -1 else str(number) for number in line] for line in values]
        sheet.write(words, size=min(14, 0.4 * sheet.cell))
    left.frame(row * stride, column * stride, size, size, BLUE)
    right.frame(0, position, size * size, 1, BLUE)

    words = (
        f"An image of {shape[0]} x {shape[1]} numbered pixels and its matrix of {size * size} rows and "
        f"{down * across} columns (stride {stride}, padding {padding}). Column {position} holds the window at row "
        f"{row}, column {column} of the output: pixels {_listed(matrix[:, position])}."
    )
    if pixel is not None:
        words += f" Pixel {pixel} is in {copies} of the columns."
    return chart, words


def _short(number: float) -> str:
    """At most three digits, with a real minus sign."""
    text = f"{number:.0f}" if number == round(number) else f"{number:.2f}" if abs(number) < 10 else f"{number:.1f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else "0"


def _listed(numbers: np.ndarray) -> str:
    return ", ".join("padding" if number == -1 else str(number) for number in numbers)
