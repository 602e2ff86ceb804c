"""Exercises of notebook 08: convolutions and ResNet."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_08.own_layer import examine_layer
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import Slip, slips
from mlx_grpo_kit.tensor import nn

STEPS = np.array([[[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [4.0, 0.0, 1.0]]])
CORNER = np.array([[[[1.0, 2.0], [0.0, -1.0]]]])
TIES = np.array([[3.0, 3.0, 0.0, 1.0], [3.0, 1.0, 2.0, 2.0]])


def _integers(*shape, seed=0):
    """Small whole numbers, different enough that a wrong order shows."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def _digits_kept(function, *arguments):
    """The result, in which no number was rounded because of where it was written."""
    result = function(*arguments)
    if not str(getattr(result, "dtype", "float64")).endswith("float64"):
        return Told(f"an array of {result.dtype}, which cuts digits off (what it was given is float64)")
    return result


def _array(function, *arguments):
    """The same, and a NumPy array, as later cells need it."""
    result = _digits_kept(function, *arguments)
    if result is None or isinstance(result, (np.ndarray, Told)):
        return result
    return Told(f"a {type(result).__name__} (later cells need a NumPy array: np.array(...))")


def conv_output_size(size, kernel, stride, padding):
    """How many stops a kernel makes along an image with `padding` zeros at each end."""
    return (size + 2 * padding - kernel) // stride + 1


def _whole(function, *arguments):
    """The result, which later cells use as a length."""
    result = function(*arguments)
    if isinstance(result, float) and result.is_integer():
        return Told(f"{result}, a float (a length is a whole number: `//` of whole numbers is one)")
    return result


OUTPUT_SIZE = Exercise(
    "08.1",
    "How large is the output?",
    "Write `conv_output_size(size, kernel, stride, padding)`: at how many places a kernel `kernel` pixels long stops "
    "along an image `size` pixels long, with `padding` zeros at *each* end and steps of `stride`. Use the panel to try "
    "your formula before you check it.",
    minutes=5,
    difficulty=1,
    solution=conv_output_size,
    hints=(
        "Begin without stride and padding. A kernel of 3 on 8 pixels: the window can start at pixel 0, 1, ... "
        "up to which? Then how many starts are that?",
        "Padding makes the image longer by `2 * padding`. The last possible start is then `size + 2 * padding - "
        "kernel`. With a stride of s only every s-th start is used, and start 0 always is.",
        "`(size + 2 * padding - kernel) // stride + 1`",
    ),
    cases=(
        *(
            (8, 3, 1, 0),
            (8, 3, 1, 1),
            (8, 3, 2, 1),
            (7, 3, 2, 0),
            (32, 7, 2, 3),
            (5, 5, 3, 0),
            (8, 1, 2, 0),
            (9, 4, 1, 1),
        ),
        *drawn(4, lambda rng: tuple(map(int, (rng.integers(9, 50), *rng.integers((1, 1, 0), (8, 5, 4)))))),
    ),
    mistakes=slips(
        conv_output_size,
        Slip(
            "padding at one end",
            "- return (size + 2 * padding - kernel) // stride + 1",
            "+ return (size + padding - kernel) // stride + 1",
            message="The zeros stand at both ends, so they count twice.",
            hint=2,
        ),
        Slip(
            "one too few",
            "- return (size + 2 * padding - kernel) // stride + 1",
            "+ return (size + 2 * padding - kernel) // stride",
            message="A fence of 3 metres with a post at each metre has 4 posts: the first start, 0, counts too.",
        ),
        Slip(
            "rounded up",
            "- return (size + 2 * padding - kernel) // stride + 1",
            "+ return -(-(size + 2 * padding - kernel) // stride) + 1",
            message="A window that would hang over the end is left out: round down.",
            hint=2,
        ),
        Slip(
            "not rounded",
            "- return (size + 2 * padding - kernel) // stride + 1",
            "+ return (size + 2 * padding - kernel) / stride + 1",
            message="Half a stop is no stop: divide with `//`.",
            hint=3,
        ),
        Slip(
            "one added too early",
            "- return (size + 2 * padding - kernel) // stride + 1",
            "+ return (size + 2 * padding - kernel + 1) // stride",
            message="Divide the last start by the stride, and add 1 after that.",
            hint=2,
        ),
    ),
    run=_whole,
    explain='A 3 x 3 kernel with padding 1 keeps the size ("same"); with stride 2 besides, it halves it.',
)


def conv2d(image, kernels, stride, padding):
    """Slide kernels [O, C, K, K] over an image [C, H, W]. Returns [O, H', W']."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    size = kernels.shape[2]
    down = (padded.shape[1] - size) // stride + 1
    across = (padded.shape[2] - size) // stride + 1
    out = np.zeros((len(kernels), down, across))
    for o in range(len(kernels)):
        for i in range(down):
            for j in range(across):
                top, left = i * stride, j * stride
                window = padded[:, top : top + size, left : left + size]
                out[o, i, j] = np.sum(window * kernels[o])
    return out


CONVOLUTION = Exercise(
    "08.2",
    "A convolution with loops",
    "Write `conv2d(image, kernels, stride, padding)` for an image [C, H, W] and kernels [O, C, K, K]. Put `padding` "
    "zeros around each channel (`np.pad`). Then for every kernel and every stop: multiply the window, *all channels of "
    "it*, by the kernel and add everything up. The result is [O, H', W']. Slow and clear is what we want here.",
    minutes=12,
    difficulty=2,
    solution=conv2d,
    hints=(
        "Three loops, over the kernel `o`, the row `i` and the column `j` of the output; the window starts at "
        "row `i * stride` of the padded image. Begin with `out = np.zeros((O, H', W'))`.",
        "`np.pad(image, ((0, 0), (padding, padding), (padding, padding)))` leaves the channels alone. A window "
        "of all channels is `padded[:, top:top + K, left:left + K]`.",
        "Inside the loops: `top, left = i * stride, j * stride`, then `out[o, i, j] = np.sum(padded[:, top:top "
        "+ K, left:left + K] * kernels[o])`.",
    ),
    cases=(
        (STEPS, CORNER, 1, 0),
        (STEPS, CORNER, 1, 1),
        (_integers(2, 5, 6, seed=1), _integers(3, 2, 3, 3), 2, 1),
        (_integers(2, 7, 7, seed=2), _integers(2, 2, 3, 3, seed=3), 3, 0),
        (_integers(1, 4, 7, seed=12), _integers(1, 1, 3, 3, seed=13), 1, 0),
        (np.array([[[0.5, -0.25, 0.125]]]), np.array([[[[1.5]]], [[[-1.0]]]]), 2, 0),
        (_integers(1, 6, 5, seed=14), _integers(1, 1, 4, 4, seed=15), 1, 0),
        *drawn(2, lambda rng: (rng.normal(size=(2, 6, 4)), rng.normal(size=(3, 2, 2, 2)), 2, 1)),
    ),
    mistakes=slips(
        conv2d,
        Slip(
            "channels padded",
            "- padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))",
            "+ padded = np.pad(image, padding)",
            message=(
                "`np.pad(image, padding)` puts zeros before and behind the channels too. Say for each axis what it "
                "gets: none for the channels."
            ),
            hint=2,
        ),
        Slip(
            "as wide as high",
            "- across = (padded.shape[2] - size) // stride + 1",
            "+ across = (padded.shape[1] - size) // stride + 1",
            message="The output is as wide as it is high. An image need not be square: compute W' from W.",
        ),
        Slip(
            "one stop too few",
            "- down = (padded.shape[1] - size) // stride + 1",
            "- across = (padded.shape[2] - size) // stride + 1",
            "+ down = (padded.shape[1] - size) // stride",
            "+ across = (padded.shape[2] - size) // stride",
            message=(
                "The last row and column of stops are missing: from start 0 to the last start there is one stop more "
                "than steps, as in 08.1."
            ),
        ),
        Slip(
            "flipped kernel",
            "- out[o, i, j] = np.sum(window * kernels[o])",
            "+ out[o, i, j] = np.sum(window * kernels[o, :, ::-1, ::-1])",
            message=(
                "The kernel is flipped, as in the convolution of mathematics. Deep learning says convolution and means"
                " cross-correlation: the kernel as it is, its upper left number on the window's upper left pixel."
            ),
            hint=3,
        ),
        Slip(
            "kernel on its side",
            "- out[o, i, j] = np.sum(window * kernels[o])",
            "+ out[o, i, j] = np.sum(window * kernels[o].swapaxes(1, 2))",
            message="Rows and columns of the kernel are swapped.",
            hint=3,
        ),
        Slip(
            "no stride",
            '  """Slide kernels [O, C, K, K] over an image [C, H, W]. Returns [O, H\', W\']."""',
            "+ stride = 1",
            message="The stride is ignored: the kernel stops at every `stride`-th pixel only.",
        ),
        Slip(
            "stride in the size alone",
            "- top, left = i * stride, j * stride",
            "+ top, left = i, j",
            message=(
                "The output has the right size, but the windows start one pixel apart. That of row i starts at row `i "
                "* stride`."
            ),
        ),
        Slip(
            "no padding",
            "- padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))",
            "+ padded = image",
            message="The padding is ignored: there should be zeros around the image.",
            hint=2,
        ),
        Slip(
            "one channel",
            "- out[o, i, j] = np.sum(window * kernels[o])",
            "+ out[o, i, j] = np.sum(window[0] * kernels[o, 0])",
            message=(
                "Only the first channel is used. A kernel has a K x K part for each channel, and all the products go "
                "into one sum."
            ),
            hint=2,
        ),
        Slip(
            "one kernel",
            "- out[o, i, j] = np.sum(window * kernels[o])",
            "+ out[o, i, j] = np.sum(window * kernels[0])",
            message="Every output channel got the first kernel; number o has `kernels[o]`.",
            hint=3,
        ),
        Slip(
            "mean",
            "- out[o, i, j] = np.sum(window * kernels[o])",
            "+ out[o, i, j] = np.mean(window * kernels[o])",
            message="That is the mean of the products. It should be their sum.",
            hint=3,
        ),
        Slip(
            "whole numbers",
            "- out = np.zeros((len(kernels), down, across))",
            "+ out = np.zeros((len(kernels), down, across), dtype=int)",
            message=(
                "What is written into an array of integers loses everything behind the point. `np.zeros(shape)` "
                "without a dtype has float64."
            ),
        ),
        Slip(
            "half the digits",
            "- out = np.zeros((len(kernels), down, across))",
            "+ out = np.zeros((len(kernels), down, across), dtype=np.float32)",
            message=(
                "float32 keeps half of the digits, and the next cells compare to the eleventh. `np.zeros(shape)` "
                "without a dtype has float64."
            ),
        ),
    ),
    run=_digits_kept,
)


def im2col(image, size, stride, padding):
    """Every window of an image [C, H, W] as a column: [C * size * size, number of stops]."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(padded, (size, size), axis=(1, 2))  # [C, stops, stops, size, size]
    windows = windows[:, ::stride, ::stride]
    channels, down, across = windows.shape[:3]
    return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)


IM2COL = Exercise(
    "08.3",
    "im2col",
    "Write `im2col(image, size, stride, padding)`: every window of an image [C, H, W] as a column, in a matrix "
    "[C * size * size, number of stops]. Down a column come the window's numbers in the order in which "
    "`kernels[o].ravel()` has its own (channel, row, column); the columns follow the stops row by row. Loops are "
    "allowed; `sliding_window_view` needs none.",
    minutes=12,
    difficulty=3,
    solution=im2col,
    hints=(
        "`sliding_window_view(padded, (size, size), axis=(1, 2))` has the axes [channel, stop down, stop "
        "across, row in the window, column in the window]. Which of them belong down, which across?",
        "Stride: keep every stride-th stop, `windows[:, ::stride, ::stride]`. Before you reshape, bring the "
        "axes into the order [channel, row, column, stop down, stop across].",
        "`windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)`, with `channels, "
        "down, across = windows.shape[:3]`",
    ),
    cases=(
        (STEPS, 2, 1, 0),
        (_integers(2, 4, 5, seed=4), 3, 1, 1),
        (_integers(2, 7, 6, seed=5), 3, 2, 1),
        (_integers(3, 5, 5, seed=6), 2, 3, 0),
        (np.array([[[0.5, -0.25, 0.125]]]), 1, 2, 0),
        *drawn(2, lambda rng: (rng.normal(size=(2, 6, 4)), 3, 1, 2)),
    ),
    mistakes=slips(
        im2col,
        Slip(
            "reshape alone",
            "- return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)",
            "+ return windows.reshape(channels * size * size, down * across)",
            message=(
                "The shape is right and the numbers are in the wrong places: reshape keeps the order in memory. Move "
                "the axes with transpose first."
            ),
            hint=2,
        ),
        Slip(
            "windows as rows",
            "- return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)",
            "+ return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across).T",
            message="The windows are rows here, and should be columns.",
        ),
        Slip(
            "channels inside",
            "- return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)",
            "+ return windows.transpose(3, 4, 0, 1, 2).reshape(channels * size * size, down * across)",
            message=(
                "With more than one channel the rows are mixed up: first all numbers of channel 0, then those of "
                "channel 1, as in `kernels[o].ravel()`."
            ),
            hint=2,
        ),
        Slip(
            "windows on their side",
            "- return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)",
            "+ return windows.transpose(0, 4, 3, 1, 2).reshape(channels * size * size, down * across)",
            message="Inside each window rows and columns are swapped.",
            hint=2,
        ),
        Slip(
            "column by column",
            "- return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)",
            "+ return windows.transpose(0, 3, 4, 2, 1).reshape(channels * size * size, down * across)",
            message="The stops follow column by column here. They should go row by row.",
            hint=2,
        ),
        Slip(
            "no stride",
            "- windows = windows[:, ::stride, ::stride]",
            "+ windows = windows",
            message="There are too many columns: keep every stride-th stop, down and across.",
            hint=2,
        ),
        Slip(
            "no padding",
            "- padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))",
            "+ padded = image",
            message="The border of zeros is missing.",
        ),
        Slip(
            "whole numbers",
            "- return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)",
            "+ return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across).astype(int)",
            message=(
                "An array of integers loses everything behind the point. If you fill a matrix in a loop, begin with "
                "`np.zeros(shape)`, which has float64."
            ),
        ),
    ),
    run=_array,
    explain="`np.shares_memory(windows, padded)` is true up to the reshape: the view repeats no number. Only the "
    "reshape copies.",
)


def col2im(columns, shape, size, stride, padding):
    """Add every column back to the pixels it came from. Returns an image of `shape`."""
    channels, height, width = shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    down = (height + 2 * padding - size) // stride + 1
    across = (width + 2 * padding - size) // stride + 1
    windows = columns.reshape(channels, size, size, down, across)
    for i in range(down):
        for j in range(across):
            top, left = i * stride, j * stride
            padded[:, top : top + size, left : left + size] += windows[:, :, :, i, j]
    return padded[:, padding : padding + height, padding : padding + width]


def _plus_equals_at_once(columns, shape, size, stride, padding):
    channels, height, width = shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    places = im2col(np.arange(padded.size).reshape(padded.shape), size, stride, 0)
    padded.reshape(-1)[places] += columns
    return padded[:, padding : padding + height, padding : padding + width]


def _mean_of_the_windows(columns, shape, size, stride, padding):
    how_often = col2im(np.ones_like(columns), shape, size, stride, padding)
    return col2im(columns, shape, size, stride, padding) / np.maximum(how_often, 1)


COL2IM = Exercise(
    "08.4",
    "The way back: col2im",
    "Write `col2im(columns, shape, size, stride, padding)`: `columns` [C * size * size, stops] holds a gradient for "
    "every number in im2col's matrix. Give every pixel of an image of `shape` (C, H, W) the sum of the gradients of "
    "its copies. Copies of padding are dropped.",
    minutes=12,
    difficulty=3,
    solution=col2im,
    hints=(
        "The same walk as in `conv2d`, backwards: start with a padded image of zeros, go to every stop, and add "
        "that stop's column, as a window, where the window was. Cut the border off at the end.",
        "`windows = columns.reshape(C, size, size, down, across)`: the window of stop (i, j) is `windows[:, :, "
        ":, i, j]`. `down` and `across` come from the formula of 08.1.",
        "`padded[:, top:top + size, left:left + size] += windows[:, :, :, i, j]` with `top, left = i * stride, "
        "j * stride`; then `return padded[:, padding:padding + H, padding:padding + W]`.",
    ),
    cases=(
        (np.arange(1.0, 13.0).reshape(4, 3), (1, 2, 4), 2, 1, 0),
        (_integers(8, 6), (2, 3, 4), 2, 1, 0),
        (_integers(9, 12, seed=1), (1, 3, 4), 3, 1, 1),
        (_integers(18, 6, seed=2), (2, 3, 5), 3, 2, 1),
        (np.array([[0.5, -0.25]]), (1, 1, 3), 1, 2, 0),
        (_integers(9, 4, seed=7), (1, 6, 5), 3, 2, 0),
        *drawn(2, lambda rng: (rng.normal(size=(18, 6)), (2, 3, 5), 3, 2, 1)),
    ),
    mistakes=(
        *slips(
            col2im,
            Slip(
                "overwrites",
                "- padded[:, top : top + size, left : left + size] += windows[:, :, :, i, j]",
                "+ padded[:, top : top + size, left : left + size] = windows[:, :, :, i, j]",
                message=(
                    "A pixel that several windows see keeps only the last one's gradient. Add: `+=`, one window at a "
                    "time."
                ),
                hint=3,
            ),
            Slip(
                "minus no padding",
                "- return padded[:, padding : padding + height, padding : padding + width]",
                "+ return padded[:, padding:-padding, padding:-padding]",
                message=(
                    "With padding 0 the slice `padding:-padding` is `0:0`, which is empty. `padding:padding + H` cuts "
                    "the border off for any padding."
                ),
                hint=3,
            ),
            Slip(
                "border",
                "- return padded[:, padding : padding + height, padding : padding + width]",
                "+ return padded",
                message="The border of zeros is still on: return `shape`, without padding.",
                hint=3,
            ),
            Slip(
                "wrong corner",
                "- return padded[:, padding : padding + height, padding : padding + width]",
                "+ return padded[:, :height, :width]",
                message=(
                    "The shape is right, but it was cut at the wrong end. The image starts `padding` rows and columns "
                    "into the padded one."
                ),
                hint=3,
            ),
            Slip(
                "no stride",
                "- top, left = i * stride, j * stride",
                "+ top, left = i, j",
                message=(
                    "The windows are put down one pixel apart; stop (i, j) begins at row `i * stride`, column `j * "
                    "stride`."
                ),
                hint=3,
            ),
            Slip(
                "whole numbers",
                "- return padded[:, padding : padding + height, padding : padding + width]",
                "+ return padded[:, padding : padding + height, padding : padding + width].astype(int)",
                message=(
                    "Gradients have digits behind the point, and an array of integers loses them. Begin with "
                    "`np.zeros(shape)`, which has float64."
                ),
            ),
        ),
        Mistake(
            "all at once",
            _plus_equals_at_once,
            "`array[places] += columns` is the trap of the text: of several copies only the last one is written. Go "
            "window by window, or use np.add.at.",
            3,
        ),
        Mistake(
            "mean",
            _mean_of_the_windows,
            "That is the mean over the windows. Each copy of a pixel adds its own share to the loss, so the gradients "
            "add up.",
            1,
        ),
    ),
    run=_array,
)


def max_pool_backward(image, grad, size):
    """The gradient of the image [H, W], given that of its max pooling."""
    result = np.zeros(image.shape)
    for i in range(grad.shape[0]):
        for j in range(grad.shape[1]):
            window = image[i * size : (i + 1) * size, j * size : (j + 1) * size]
            row, column = np.unravel_index(np.argmax(window), window.shape)
            result[i * size + row, j * size + column] = grad[i, j]
    return result


def _blocks(image, size):
    """A view [H', W', size, size]."""
    return image.reshape(image.shape[0] // size, size, image.shape[1] // size, size).swapaxes(1, 2)


def _every_maximum(image, grad, size):
    result = np.zeros(image.shape)
    blocks = _blocks(image, size)
    _blocks(result, size)[...] = (blocks == blocks.max((2, 3), keepdims=True)) * grad[:, :, None, None]
    return result


def _shared_by_ties(image, grad, size):
    result = np.zeros(image.shape)
    winners = _blocks(image, size) == _blocks(image, size).max((2, 3), keepdims=True)
    _blocks(result, size)[...] = winners / winners.sum((2, 3), keepdims=True) * grad[:, :, None, None]
    return result


def _last_of_equals(image, grad, size):
    return max_pool_backward(image[::-1, ::-1], grad[::-1, ::-1], size)[::-1, ::-1]


def _nearly_equal(rng):
    """Numbers that are tied, or differ by 1e-3 or 1e-9."""
    image = rng.integers(0, 2, (4, 6)) + rng.choice([0, 1e-3, 1e-9], (4, 6))
    return image, rng.normal(size=(2, 3)), 2


MAX_POOL = Exercise(
    "08.5",
    "Backward through a maximum",
    "Write `max_pool_backward(image, grad, size)`. Forward, the image [H, W] was cut into windows of size x size side "
    "by side, and of each only the largest number went on. `grad` [H / size, W / size] is the gradient of these; "
    "return that of the image. Among equals the first one, in reading order, has won.",
    minutes=8,
    difficulty=2,
    solution=max_pool_backward,
    hints=(
        "Start with zeros of the image's shape. In each window one pixel gets the window's whole gradient.",
        "`np.argmax(window)` is the place of the first largest number in the window read row by row; "
        "`np.unravel_index(place, window.shape)` makes a row and a column of it.",
        "`result[i * size + row, j * size + column] = grad[i, j]`",
    ),
    cases=(
        (TIES, np.array([[10.0, 20.0]]), 2),
        (np.zeros((4, 4)), np.array([[1.0, 2.0], [3.0, 4.0]]), 2),
        (_integers(6, 9, seed=8), _integers(2, 3, seed=9), 3),
        (np.arange(4.0).reshape(2, 2) - 5, np.array([[0.5]]), 2),
        *drawn(3, _nearly_equal),
    ),
    mistakes=(
        Mistake(
            "every maximum",
            _every_maximum,
            "Equal pixels each got the whole gradient: more comes out than went in. Only the first of them won.",
            2,
        ),
        Mistake(
            "ties share",
            _shared_by_ties,
            "The gradient was shared by equals. That is what T.max and torch.amax do; a pooling window picks one "
            "winner, the first.",
            2,
        ),
        Mistake("last of equals", _last_of_equals, "Among equals the last one got it; the first one should.", 2),
        Mistake(
            "everybody",
            lambda image, grad, size: np.kron(grad, np.ones((size, size))),
            "Every pixel of the window got the gradient. Those that lost could change a little and nobody would "
            "notice: their gradient is 0.",
            1,
        ),
        Mistake(
            "mean",
            lambda image, grad, size: np.kron(grad, np.ones((size, size))) / size**2,
            "That is the gradient of average pooling.",
            1,
        ),
        *slips(
            max_pool_backward,
            Slip(
                "the maximum",
                "- result[i * size + row, j * size + column] = grad[i, j]",
                "+ result[i * size + row, j * size + column] = window[row, column]",
                message="The winner gets the gradient `grad[i, j]`, not its own value.",
                hint=3,
            ),
            Slip(
                "row and column",
                "- row, column = np.unravel_index(np.argmax(window), window.shape)",
                "+ column, row = np.unravel_index(np.argmax(window), window.shape)",
                message="Row and column of the winner are swapped.",
                hint=2,
            ),
            Slip(
                "begins at 0",
                "- row, column = np.unravel_index(np.argmax(window), window.shape)",
                "+ row, column = np.unravel_index(np.argmax(np.maximum(window, 0)), window.shape)",
                message=(
                    "In a window of negative numbers the largest is negative too. Whoever looks for it has to begin "
                    "with a pixel of the window, or with -inf, and not with 0."
                ),
                hint=2,
            ),
            Slip(
                "whole numbers",
                "- result = np.zeros(image.shape)",
                "+ result = np.zeros(image.shape, dtype=int)",
                message=(
                    "A gradient has digits behind the point, and an array of integers loses them: "
                    "`np.zeros(image.shape)`."
                ),
            ),
        ),
    ),
    run=_array,
)


def batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""
    if training:
        mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        n = x.size / x.shape[1]
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
    else:
        mean, var = running_mean, running_var
    y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)
    return y, running_mean, running_var


def _by_name(function, *arguments):
    """The three results with names, so that a message says which of them is wrong."""
    results = function(*arguments)
    if not isinstance(results, (tuple, list)) or len(results) != 3:
        return results
    cut = next((r for r in map(lambda result: _digits_kept(lambda: result), results) if isinstance(r, Told)), None)
    if cut is not None:
        return cut
    return dict(zip(("y", "running_mean", "running_var"), results))


def _channels(rng):
    """Three channels of one or two images that are not square, and statistics to go with them."""
    x = rng.normal(size=(rng.integers(1, 3), 3, 2, 4))
    return x, rng.normal(size=3), rng.uniform(0.5, 2, 3), bool(rng.integers(2)), 0.25, 1e-3


BATCH_NORM = Exercise(
    "08.6",
    "Batch norm in two modes",
    "Write `batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5)` for x [N, C, H, W]. For every "
    "channel: subtract a mean and divide by the root of (a variance + eps). In training these are the batch's own, "
    "with the *biased* variance; and the running statistics move: (1 - momentum) of the old plus momentum of the "
    "batch's, with the *unbiased* variance. In evaluation the running statistics are used, and stay. Return "
    "(y, running_mean, running_var), without changing the arrays you were given.",
    minutes=12,
    difficulty=3,
    solution=batch_norm,
    hints=(
        "One mean for each channel: over the batch and the image, `x.mean(axis=(0, 2, 3))`, of shape [C]. "
        "`x.var` takes the same axes and is the biased variance.",
        "To subtract it from x [N, C, H, W] it needs the shape [C, 1, 1]: `mean[:, None, None]`. The unbiased "
        "variance is `var * n / (n - 1)`, where n is how many numbers a channel has, `x.size / x.shape[1]`.",
        "`if training:` compute mean, var and the two new running arrays; `else:` mean, var = running_mean, "
        "running_var. Then in both cases `y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)`.",
    ),
    cases=(
        (np.array([[[[1.0, 2.0]]], [[[3.0, 6.0]]]]), np.array([1.0]), np.array([2.0]), True),
        (np.array([[[[1.0, 2.0]]], [[[3.0, 6.0]]]]), np.array([1.0]), np.array([4.0]), False),
        (_integers(2, 3, 2, 2, seed=10), np.array([0.5, 0.0, -1.0]), np.array([1.0, 2.0, 0.5]), True, 0.3),
        (_integers(2, 3, 2, 2, seed=11), np.zeros(3), np.ones(3), True, 0.1, 0.5),
        (np.array([[[[1.0, 4.0], [2.0, 5.0]]]]), np.array([1.0]), np.array([2.0]), True),
        *drawn(4, _channels),
    ),
    mistakes=slips(
        batch_norm,
        Slip(
            "images for numbers",
            "- def batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):",
            '-     """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""',
            "-     if training:",
            "-         mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))",
            "-         n = x.size / x.shape[1]",
            '+ @np.errstate(divide="ignore")',
            "+ def batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):",
            '+     """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""',
            "+     if training:",
            "+         mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))",
            "+         n = len(x)",
            message=(
                "n is how many numbers a channel has in the whole batch, N * H * W, and not how many images there are."
            ),
            hint=2,
        ),
        Slip(
            "one image is no batch",
            "- if training:",
            "+ if training and len(x) > 1:",
            message=(
                "One image has a mean and a variance too, those of its pixels. In training they are used and "
                "remembered, however many images there are."
            ),
            hint=3,
        ),
        Slip(
            "unbiased used",
            "  running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            "+ var = var * n / (n - 1)",
            message=(
                "The batch was normalized with the unbiased variance. To normalize, divide by n (what `x.var` does); n"
                " - 1 is for the running variance alone."
            ),
            hint=2,
        ),
        Slip(
            "biased kept",
            "- running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            "+ running_var = (1 - momentum) * running_var + momentum * var",
            message=(
                "y is right. The running variance should move towards the unbiased variance: it will have to speak for"
                " images outside this batch."
            ),
            hint=2,
        ),
        Slip(
            "one for all channels",
            "- mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))",
            "- n = x.size / x.shape[1]",
            "+ mean, var = np.full(x.shape[1], x.mean()), np.full(x.shape[1], x.var())",
            "+ n = x.size",
            message="There is one mean for everything. Each channel has its own: leave axis 1 out.",
        ),
        Slip(
            "each image by itself",
            "- mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))",
            "- n = x.size / x.shape[1]",
            "+ mean, var = x.mean(axis=(2, 3)), x.var(axis=(2, 3))",
            "+ n = x[0, 0].size",
            "- y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)",
            "+ y = (x - mean[..., None, None]) / np.sqrt(var[..., None, None] + eps)",
            message=(
                "Each image was normalized by itself (that is instance norm). Batch norm takes the mean over axis 0 "
                "too."
            ),
        ),
        Slip(
            "ignores training",
            "- if training:",
            "+ if True:",
            message=(
                "`training` is ignored: the second case is an evaluation. There the running statistics normalize, and "
                "stay as they are: `if training: ... else: ...`."
            ),
            hint=3,
        ),
        Slip(
            "always in evaluation",
            "- if training:",
            "+ if False:",
            message=(
                "`training` is ignored: with training=True the batch's own mean and variance normalize, and the "
                "running statistics move: `if training: ... else: ...`."
            ),
            hint=3,
        ),
        Slip(
            "batch in evaluation",
            "- mean, var = running_mean, running_var",
            "+ mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))",
            message=(
                "In evaluation the batch's own statistics were used. Then the answer for an image would depend on the "
                "company it comes in."
            ),
            hint=3,
        ),
        Slip(
            "moves in evaluation",
            "  mean, var = running_mean, running_var",
            "+ running_mean = (1 - momentum) * mean + momentum * x.mean(axis=(0, 2, 3))",
            "+ running_var = (1 - momentum) * var + momentum * x.var(axis=(0, 2, 3), ddof=1)",
            message="In evaluation nothing is learned: the running statistics stay as they are.",
            hint=3,
        ),
        Slip(
            "momentum of the old",
            "- running_mean = (1 - momentum) * running_mean + momentum * mean",
            "- running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            "+ running_mean = momentum * running_mean + (1 - momentum) * mean",
            "+ running_var = momentum * running_var + (1 - momentum) * var * n / (n - 1)",
            message=(
                "Here momentum is the weight of the *batch*, as in torch: running = 0.9 * running + 0.1 * batch. (In "
                "other places it is the weight of the old.)"
            ),
            hint=3,
        ),
        Slip(
            "never moves",
            "- running_mean = (1 - momentum) * running_mean + momentum * mean",
            "- running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            "+ moved_mean = (1 - momentum) * running_mean + momentum * mean",
            "+ moved_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            message="The running statistics have not moved. In training they do.",
            hint=3,
        ),
        Slip(
            "moved in training",
            "  else:",
            "      mean, var = running_mean, running_var",
            "+ mean, var = running_mean, running_var",
            message=(
                "In training the batch was normalized with the running statistics. They are for evaluation; in "
                "training take the batch's own mean and variance."
            ),
            hint=3,
        ),
        Slip(
            "no root",
            "- y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)",
            "+ y = (x - mean[:, None, None]) / (var[:, None, None] + eps)",
            message="The root is missing: divide by the standard deviation, not by the variance.",
            hint=3,
        ),
        Slip(
            "changes your arrays",
            "- running_mean = (1 - momentum) * running_mean + momentum * mean",
            "- running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            "+ running_mean[:] = (1 - momentum) * running_mean + momentum * mean",
            "+ running_var[:] = (1 - momentum) * running_var + momentum * var * n / (n - 1)",
            message=(
                "The arrays that you were given belong to the caller. `running_mean = ...` makes a new one; `+=` and "
                "`[:] =` write into theirs."
            ),
            hint=3,
        ),
        Slip(
            "only y",
            "- return y, running_mean, running_var",
            "+ return y",
            message="Return three things: y and the two running arrays, also where they stay as they are.",
            hint=3,
        ),
        Slip(
            "eps outside",
            "- y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)",
            "+ y = (x - mean[:, None, None]) / (np.sqrt(var[:, None, None]) + eps)",
            message="eps belongs under the root, beside the variance.",
            hint=3,
        ),
        Slip(
            "deaf to its settings",
            '  """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""',
            "+ momentum, eps = 0.1, 1e-5",
            message=(
                "It is right for the usual settings only: use the arguments `momentum` and `eps`, not their numbers."
            ),
            hint=3,
        ),
    ),
    run=_by_name,
)

SHORTCUT_SLOPE = Exercise(
    "08.7",
    "The slope of a shortcut",
    "Three blocks in a row. At some point their insides f have the slopes 0.5, 0 and -0.2 (a dead relu made the 0). "
    "What is the slope of the last block's output for the first one's input, if each block is y = f(x), and if each is "
    "y = x + f(x)? A tuple: (plain, residual).",
    minutes=3,
    difficulty=1,
    solution=(0.0, 1.2),
    hints=(
        "The chain rule of chapter 01: slopes along a chain are multiplied. What is the slope of x + f(x), if "
        "that of f is 0.5?",
        "Plain: 0.5 * 0 * -0.2. Residual: (1 + 0.5) * (1 + 0) * (1 - 0.2).",
    ),
    mistakes=(
        Mistake(
            "the dead block kills it",
            (0.0, 0.0),
            "A block y = x + f(x) whose f has slope 0 has slope 1: x itself still goes through.",
            1,
        ),
        Mistake("added", (0.3, 1.3), "Slopes along a chain are multiplied, not added.", 1),
        Mistake(
            "one shortcut",
            (0.0, 1.0),
            "There is a shortcut around each of the three blocks, not one around all of them.",
            2,
        ),
        Mistake("swapped", (1.2, 0.0), "The plain one comes first in the tuple.", 2),
        Mistake("sign", (0.0, 1.8), "The last slope is -0.2: 1 - 0.2.", 2),
    ),
    explain="Multiply it out: 1 + the slopes + their products in pairs + all three. A residual network is a sum "
    "over all ways through it, the short ones included.",
)


def residual_block(x, conv1, bn1, conv2, bn2):
    """relu(x + f(x)), where f is conv1, bn1, relu, conv2, bn2 in this order."""
    f = T.relu(bn1(conv1(x)))
    f = bn2(conv2(f))
    return T.relu(x + f)


def double(x):
    """2 * x"""
    return 2 * x


def minus_one(x):
    """x - 1"""
    return x - 1


def negate(x):
    """-x"""
    return -x


def plus_three(x):
    """x + 3"""
    return x + 3


def _block_and_gradient(function, numbers, *layers):
    x = T.Tensor(numbers, requires_grad=True)
    result = function(x, *layers)
    if not isinstance(result, T.Tensor):
        return result
    if result.requires_grad:
        T.sum(result).backward()
    return {"result": result.data, "gradient of x": np.zeros(x.shape) if x.grad is None else x.grad}


RESIDUAL_BLOCK = Exercise(
    "08.8",
    "A residual block",
    "Write `residual_block(x, conv1, bn1, conv2, bn2)`: f is conv1, bn1, relu, conv2, bn2 one after the other; add x "
    "to it, and take the relu of the sum. x is a Tensor, the other four are called like functions, and relu is "
    "`T.relu`.",
    minutes=5,
    difficulty=1,
    solution=residual_block,
    hints=(
        "Write f first: `bn2(conv2(T.relu(bn1(conv1(x)))))`.",
        "There are two relus, one inside f and one around the sum: `T.relu(x + f)`.",
    ),
    cases=(
        ([1.0, -4.0, 2.0], double, minus_one, negate, plus_three),
        ([0.25, -1.0, 4.0], negate, plus_three, double, minus_one),
        ([-2.0, 1.0, -0.5], double, plus_three, minus_one, negate),
        *drawn(2, lambda rng: (rng.normal(size=(2, 3)).tolist(), minus_one, double, plus_three, negate)),
    ),
    mistakes=slips(
        residual_block,
        Slip(
            "no shortcut",
            "- return T.relu(x + f)",
            "+ return T.relu(f)",
            message="x itself is not added: that is a plain block.",
            hint=2,
        ),
        Slip(
            "relu before the sum",
            "- return T.relu(x + f)",
            "+ return x + T.relu(f)",
            message="The relu has to come after the sum. In this order f could only ever add to x, never take away.",
            hint=2,
        ),
        Slip(
            "no relu at the end",
            "- return T.relu(x + f)",
            "+ return x + f",
            message="The relu of the sum is missing.",
            hint=2,
        ),
        Slip(
            "no relu inside",
            "- f = T.relu(bn1(conv1(x)))",
            "+ f = bn1(conv1(x))",
            message="The relu inside f is missing. Without it conv2 after conv1 is only one linear map in two parts.",
        ),
        Slip(
            "adds the inner one",
            "- f = T.relu(bn1(conv1(x)))",
            "+ x = f = T.relu(bn1(conv1(x)))",
            message="The shortcut starts at x, before conv1. A name that is used twice (`x = conv1(x)`) loses it.",
        ),
        Slip(
            "f twice",
            "- return T.relu(x + f)",
            "+ return T.relu(f + f)",
            message=(
                "That is f plus f. The name x was used for the result of f, and what came in was lost: give f a name "
                "of its own."
            ),
        ),
        Slip(
            "a relu too many",
            "- return T.relu(x + f)",
            "+ return T.relu(x + T.relu(f))",
            message=(
                "There is a relu behind bn2, before the sum. There f could only ever add to x, never take away: one "
                "relu inside f and one around the sum are all."
            ),
            hint=2,
        ),
        Slip(
            "without a past",
            "- return T.relu(x + f)",
            "+ return T.Tensor(T.relu(x + f).data)",
            message=(
                "The numbers are right, but no gradient comes back to x: compute with the Tensors themselves, not with"
                " their .data."
            ),
        ),
    ),
    run=_block_and_gradient,
)


def block_parameters(in_channels, out_channels, stride):
    """How many parameters BasicBlock(in_channels, out_channels, stride) has."""
    count = out_channels * in_channels * 3 * 3 + 2 * out_channels
    count += out_channels * out_channels * 3 * 3 + 2 * out_channels
    if stride != 1 or in_channels != out_channels:
        count += out_channels * in_channels + 2 * out_channels
    return count


BLOCK_PARAMETERS = Exercise(
    "08.9",
    "Count a block",
    "Write `block_parameters(in_channels, out_channels, stride)`: how many parameters a block of ResNet has. It has "
    "two 3 x 3 convolutions without bias, the first from in_channels to out_channels, the second from out_channels to "
    "out_channels, and a batch norm after each, with a weight and a bias a channel. Where the shape changes, because "
    "stride is not 1 or the channels differ, x goes through a 1 x 1 convolution without bias and another batch norm "
    "before it is added.",
    minutes=6,
    difficulty=2,
    solution=block_parameters,
    hints=(
        "A convolution from a to b channels has a kernel [a, 3, 3] for each of b outputs: b * a * 9 numbers.",
        "A batch norm of b channels has 2 * b parameters. Its running statistics are not trained.",
        "The shortcut, where there is one, has b * a numbers in its convolution and 2 * b in its batch norm: "
        "`if stride != 1 or in_channels != out_channels:`.",
    ),
    cases=((64, 64, 1), (64, 128, 2), (16, 16, 2), (3, 8, 1), (8, 3, 1), (7, 5, 3), (1, 1, 1), (8, 8, 3)),
    mistakes=slips(
        block_parameters,
        Slip(
            "convolution biases",
            "- count = out_channels * in_channels * 3 * 3 + 2 * out_channels",
            "- count += out_channels * out_channels * 3 * 3 + 2 * out_channels",
            "+ count = out_channels * in_channels * 3 * 3 + 3 * out_channels",
            "+ count += out_channels * out_channels * 3 * 3 + 3 * out_channels",
            "- count += out_channels * in_channels + 2 * out_channels",
            "+ count += out_channels * in_channels + 3 * out_channels",
            message="These convolutions have no bias: the batch norm behind each would subtract it again.",
        ),
        Slip(
            "no batch norms",
            "- count = out_channels * in_channels * 3 * 3 + 2 * out_channels",
            "- count += out_channels * out_channels * 3 * 3 + 2 * out_channels",
            "+ count = out_channels * in_channels * 3 * 3",
            "+ count += out_channels * out_channels * 3 * 3",
            "- count += out_channels * in_channels + 2 * out_channels",
            "+ count += out_channels * in_channels",
            message="The batch norms are missing, 2 parameters a channel each.",
            hint=2,
        ),
        Slip(
            "no downsample",
            "- if stride != 1 or in_channels != out_channels:",
            "+ if False:",
            message="Where the shape changes, the shortcut has parameters of its own.",
            hint=3,
        ),
        Slip(
            "by stride alone",
            "- if stride != 1 or in_channels != out_channels:",
            "+ if stride != 1:",
            message="With stride 1 the shape changes too where the channels differ: 3 channels cannot be added to 8.",
            hint=3,
        ),
        Slip(
            "stride 2 alone",
            "- if stride != 1 or in_channels != out_channels:",
            "+ if stride == 2 or in_channels != out_channels:",
            message="A stride of 3 changes the shape as well: every stride but 1 does.",
            hint=3,
        ),
        Slip(
            "only if both",
            "- if stride != 1 or in_channels != out_channels:",
            "+ if stride != 1 and in_channels != out_channels:",
            message="One of the two is enough: a stride that is not 1, *or* channels that differ.",
            hint=3,
        ),
        Slip(
            "one number a channel",
            "- count = out_channels * in_channels * 3 * 3 + 2 * out_channels",
            "- count += out_channels * out_channels * 3 * 3 + 2 * out_channels",
            "+ count = out_channels * in_channels * 3 * 3 + 1 * out_channels",
            "+ count += out_channels * out_channels * 3 * 3 + 1 * out_channels",
            "- count += out_channels * in_channels + 2 * out_channels",
            "+ count += out_channels * in_channels + 1 * out_channels",
            message="A batch norm has two parameters a channel, a weight and a bias.",
            hint=2,
        ),
        Slip(
            "shortcut without norm",
            "- count += out_channels * in_channels + 2 * out_channels",
            "+ count += out_channels * in_channels",
            message="The shortcut's convolution has a batch norm behind it too.",
            hint=3,
        ),
        Slip(
            "always a downsample",
            "- if stride != 1 or in_channels != out_channels:",
            "+ if True:",
            message="The shortcut only has parameters where the shape changes.",
            hint=3,
        ),
        Slip(
            "running statistics",
            "- count = out_channels * in_channels * 3 * 3 + 2 * out_channels",
            "- count += out_channels * out_channels * 3 * 3 + 2 * out_channels",
            "+ count = out_channels * in_channels * 3 * 3 + 4 * out_channels",
            "+ count += out_channels * out_channels * 3 * 3 + 4 * out_channels",
            "- count += out_channels * in_channels + 2 * out_channels",
            "+ count += out_channels * in_channels + 4 * out_channels",
            message="Running means and variances are measured, not trained: they are no parameters.",
            hint=2,
        ),
        Slip(
            "both from the input",
            "- count += out_channels * out_channels * 3 * 3 + 2 * out_channels",
            "+ count += out_channels * in_channels * 3 * 3 + 2 * out_channels",
            message="The second convolution gets what the first one made: it goes from out_channels to out_channels.",
        ),
    ),
)


def own_layer(count):
    """A layer of my own, its twin in torch, and `count` examples of what goes in."""
    import torch

    class Bump(T.Function):
        """exp(-(x - center)**2)"""

        @staticmethod
        def forward(ctx, x, center):
            ctx.distance = x - center
            ctx.y = np.exp(-(ctx.distance**2))
            return ctx.y

        @staticmethod
        def backward(ctx, grad):
            slope = grad * 2 * ctx.distance * ctx.y
            return -slope, slope

    class Layer(nn.Module):
        def __init__(self):
            self.center = T.Tensor([-0.5, 0.0, 0.5], requires_grad=True)

        def forward(self, x):
            return Bump.apply(x, self.center)

    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.center = torch.nn.Parameter(torch.tensor([-0.5, 0.0, 0.5]))

        def forward(self, x):
            return torch.exp(-((x - self.center) ** 2))

    return Layer(), Twin(), np.random.default_rng(0).normal(size=(count, 3))


OWN_LAYER = Exercise(
    "08.10",
    "A layer of your own",
    "Close this part with something that is yours. Invent an operation with at least one number that can be learned: "
    "a relu whose left side leaks by a learned amount, a threshold that is subtracted, with 0 for what lies below "
    "it, a bump that answers to one value only, a window that takes a root of a mean of squares, whatever you like. "
    "Write `own_layer(count)`, which returns a tuple of three:\n\n"
    "- a layer: an `nn.Module` with a parameter or more. At its heart is a `T.Function` that you wrote, with its "
    "`forward` and its `backward`.\n"
    "- its twin: a `torch.nn.Module` that computes the same. Its parameters have the same names and shapes; torch "
    "finds the gradients by itself.\n"
    "- examples: an array of floating point numbers whose first axis counts `count` of them.\n\n"
    "Your classes may stand inside of it or above. `check` moves all numbers a little, lets `gradcheck` look at every "
    "derivative, and trains your layer and its twin in `lockstep`, for two examples and for one.",
    minutes=30,
    difficulty=3,
    solution=own_layer,
    hints=(
        "Begin on paper: y, and its slope for x and for each parameter. Then `class Bump(T.Function)` with two static "
        "methods: `forward(ctx, x, center)` keeps in `ctx` what will be needed, `backward(ctx, grad)` returns one "
        "gradient for each of the two. What NumPy broadcast, the engine sums back.",
        "The layer keeps `self.center = T.Tensor([0.0, 1.0], requires_grad=True)`, and its forward returns "
        "`Bump.apply(x, self.center)`. The twin says `super().__init__()` first, then `self.center = "
        "torch.nn.Parameter(torch.tensor([0.0, 1.0]))`, and uses torch's own operations.",
        "Try the heart alone: `print(gradcheck(Bump.apply, T.Tensor(x), T.Tensor(center)))` names the element that is "
        "wrong.",
    ),
    cases=((2,), (1,)),
    mistakes=slips(
        own_layer,
        Slip(
            "one gradient",
            "- return -slope, slope",
            "+ return -slope",
            message=(
                "`backward` returns as many gradients as `apply` was given inputs: one for x, and one for each "
                "parameter."
            ),
        ),
        Slip(
            "a factor",
            "- slope = grad * 2 * ctx.distance * ctx.y",
            "+ slope = grad * ctx.distance * ctx.y",
            message="Take the formula of your forward and differentiate it once more, on paper.",
            hint=3,
        ),
        Slip(
            "the kit's operations",
            "- return Bump.apply(x, self.center)",
            "+ return T.exp(-((x - self.center) ** 2))",
            message=(
                "That is a fine layer, but the kit knows all its gradients. Here the backward is what you are asked "
                "for."
            ),
        ),
        Slip(
            "another twin",
            "- return torch.exp(-((x - self.center) ** 2))",
            "+ return torch.exp(-2 * ((x - self.center) ** 2))",
            message="Your gradient fits your forward, but the twin computes something else.",
            hint=2,
        ),
        Slip(
            "kept in the class",
            "- ctx.distance = x - center",
            "- ctx.y = np.exp(-(ctx.distance**2))",
            "- return ctx.y",
            "+ Bump.distance = x - center",
            "+ Bump.y = np.exp(-(Bump.distance**2))",
            "+ return Bump.y",
            "- slope = grad * 2 * ctx.distance * ctx.y",
            "+ slope = grad * 2 * Bump.distance * Bump.y",
            message="Every call of forward has a ctx of its own; a class has one place for all calls.",
        ),
        Slip(
            "a hard threshold",
            "- ctx.y = np.exp(-(ctx.distance**2))",
            "+ ctx.y = np.where(ctx.distance > 0, x, 0.0)",
            "- slope = grad * 2 * ctx.distance * ctx.y",
            "- return -slope, slope",
            "+ slope = -grad * (ctx.distance > 0)",
            "+ return -slope, 0 * slope",
            message=(
                "Where a small change of the parameter changes nothing there is no slope to follow: a switch cannot be"
                " learned. Subtract the threshold, and 0 for what lies below it: then its slope is -1 above."
            ),
        ),
    ),
    run=examine_layer,
    explain="Every layer of every library is made like this, and few were examined so well.",
)
