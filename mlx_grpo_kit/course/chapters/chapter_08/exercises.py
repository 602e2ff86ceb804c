"""Exercises of notebook 08: convolutions and ResNet."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_08.own_layer import examine_layer
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.tensor import nn

STEPS = np.array([[[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [4.0, 0.0, 1.0]]])
CORNER = np.array([[[[1.0, 2.0], [0.0, -1.0]]]])
TIES = np.array([[3.0, 3.0, 0.0, 1.0], [3.0, 1.0, 2.0, 2.0]])


def _integers(*shape, seed=0):
    """Small whole numbers, varied enough to reveal a wrong order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def _digits_kept(function, *arguments):
    """The result, or words if its dtype cuts digits off."""
    result = function(*arguments)
    if not str(getattr(result, "dtype", "float64")).endswith("float64"):
        return Told(f"an array of {result.dtype}, which cuts digits off (the input is float64)")
    return result


def _array(function, *arguments):
    """The same as `_digits_kept`, but the result must be a NumPy array, because later cells need one."""
    result = _digits_kept(function, *arguments)
    if result is None or isinstance(result, (np.ndarray, Told)):
        return result
    return Told(f"a {type(result).__name__} (later cells need a NumPy array: np.array(...))")


def conv_output_size(size, kernel, stride, padding):
    """The number of stops of a kernel along an image with `padding` zeros at each end."""
    return (size + 2 * padding - kernel) // stride + 1


def _whole(function, *arguments):
    """The result, which must be a whole number because later cells use it as a length."""
    result = function(*arguments)
    if isinstance(result, float) and result.is_integer():
        return Told(f"{result}, a float (a length is a whole number: `//` of whole numbers gives one)")
    return result


OUTPUT_SIZE = Exercise(
    "08.1",
    "How large is the output?",
    "Write `conv_output_size(size, kernel, stride, padding)`, which returns the number of places at which a kernel "
    "`kernel` pixels long stops along an image `size` pixels long, with `padding` zeros at *each* end and steps of "
    "`stride`. Try your formula in the panel before you check it.",
    minutes=5,
    difficulty=1,
    solution=conv_output_size,
    hints=(
        "Begin without stride and padding. With a kernel of 3 on 8 pixels, the window can start at pixel 0, 1, ... "
        "up to which one? How many starts is that?",
        "Padding makes the image longer by `2 * padding`. The last possible start is then `size + 2 * padding - "
        "kernel`. With stride s, use every s-th starting position, beginning with 0.",
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
        r"""
@ return (size + 2 * padding - kernel) // stride + 1
padding at one end (2)
+ return (size + padding - kernel) // stride + 1
! There are zeros at both ends, so they count twice.
one too few
+ return (size + 2 * padding - kernel) // stride
! The first start, 0, counts too: a fence of 3 metres with a post every metre has 4 posts.
rounded up (2)
+ return -(-(size + 2 * padding - kernel) // stride) + 1
! Leave out a window that would extend past the end: round down.
not rounded (3)
+ return (size + 2 * padding - kernel) / stride + 1
! Half a stop is not a stop: divide with `//`.
one added too early (2)
+ return (size + 2 * padding - kernel + 1) // stride
! Divide the last start by the stride, and add 1 after that.
""",
    ),
    run=_whole,
    explain='A 3 x 3 kernel with padding 1 keeps the size ("same"); if the stride is also 2, it halves the size.',
    also_right=r"""
# the length of a range
lambda size, kernel, stride, padding: len(range(0, size + 2 * padding - kernel + 1, stride))
""",
    also_wrong=r"""
# a float
lambda *sizes: float(conv_output_size(*sizes))
! gave 6.0, a float (a length is a whole number
# odd kernels alone
lambda size, kernel, stride, padding: (size + 2 * padding - kernel // 2 * 2 - 1) // stride + 1
""",
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
    "zeros around each channel (`np.pad`). Then, for every kernel and every stop, multiply the window (*all of its "
    "channels*) by the kernel and add everything up. The result is [O, H', W']. Your code may be slow here, as long "
    "as it is clear.",
    minutes=12,
    difficulty=2,
    solution=conv2d,
    hints=(
        "Use three loops, over the kernel `o`, the row `i` and the column `j` of the output; the window starts at "
        "row `i * stride` of the padded image. Begin with `out = np.zeros((O, H', W'))`.",
        "`np.pad(image, ((0, 0), (padding, padding), (padding, padding)))` does not pad the channel axis. A window "
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
        r'''
@ padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
channels padded (2)
+ padded = np.pad(image, padding)
! `np.pad(image, padding)` also adds channels of zeros. Give the padding of each axis: none for the channels.
no padding (2)
+ padded = image
! You ignore the padding: there should be zeros around the image.

as wide as high
- across = (padded.shape[2] - size) // stride + 1
+ across = (padded.shape[1] - size) // stride + 1
! Your output is as wide as it is high. An image need not be square: compute W' from W.
one stop too few
- down = (padded.shape[1] - size) // stride + 1
- across = (padded.shape[2] - size) // stride + 1
+ down = (padded.shape[1] - size) // stride
+ across = (padded.shape[2] - size) // stride
! The last row and column of stops are missing: from start 0 to the last start there is one more stop than there are
! steps, as in 08.1.

@ out[o, i, j] = np.sum(window * kernels[o])
flipped kernel (3)
+ out[o, i, j] = np.sum(window * kernels[o, :, ::-1, ::-1])
! You flipped the kernel, as mathematicians do in a convolution. Deep learning says convolution but means
! cross-correlation: use the kernel as it is, with its upper left number on the window's upper left pixel.
kernel on its side (3)
+ out[o, i, j] = np.sum(window * kernels[o].swapaxes(1, 2))
! You swapped the rows and columns of the kernel.
one channel (2)
+ out[o, i, j] = np.sum(window[0] * kernels[o, 0])
! You use only the first channel. A kernel has a K x K part for each channel, and all the products go into one sum.
one kernel (3)
+ out[o, i, j] = np.sum(window * kernels[0])
! You used the first kernel for every output channel. Use `kernels[o]` for channel o.
mean (3)
+ out[o, i, j] = np.mean(window * kernels[o])
! That is the mean of the products. Take their sum.

no stride
  """Slide kernels [O, C, K, K] over an image [C, H, W]. Returns [O, H', W']."""
+ stride = 1
! You ignore the stride: the kernel stops only at every `stride`-th pixel.
stride only in the size
- top, left = i * stride, j * stride
+ top, left = i, j
! The output has the right size, but your windows start one pixel apart. The window for row i starts at row `i *
! stride`.

@ out = np.zeros((len(kernels), down, across))
whole numbers
+ out = np.zeros((len(kernels), down, across), dtype=int)
! An array of integers drops the decimals of everything you write into it. `np.zeros(shape)` without a dtype has
! float64.
half the digits
+ out = np.zeros((len(kernels), down, across), dtype=np.float32)
! float32 keeps only half of the digits, and the next cells compare up to the eleventh. `np.zeros(shape)` without a
! dtype has float64.
''',
    ),
    run=_digits_kept,
    also_right=r"""
# a list of sums
def a_list_of_sums(image, kernels, stride, padding):
    padded = np.pad(image, [(0, 0)] + [(padding, padding)] * 2).tolist()
    _, _, size, _ = kernels.shape
    places = [range(0, len(padded[0]) - size + 1, stride), range(0, len(padded[0][0]) - size + 1, stride)]
    return [
        [
            [
                sum(padded[c][top + i][left + j] * kernel[c][i][j] for c, i, j in np.ndindex(kernel.shape))
                for left in places[1]
            ]
            for top in places[0]
        ]
        for kernel in kernels
    ]
""",
    also_wrong=r"""
# kernels of 3 x 3
lambda image, kernels, *rest: conv2d(image, kernels[:, :, :3, :3], *rest)
""",
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
    "Write `im2col(image, size, stride, padding)`: every window of an image [C, H, W] as a column, in a matrix [C * "
    "size * size, number of stops]. Down a column, put the window's numbers in the same order as the numbers of "
    "`kernels[o].ravel()` (channel, row, column); the columns follow the stops row by row. Loops are allowed, but "
    "with `sliding_window_view` you need none.",
    minutes=12,
    difficulty=3,
    solution=im2col,
    hints=(
        "`sliding_window_view(padded, (size, size), axis=(1, 2))` has the axes [channel, stop down, stop across, "
        "row in the window, column in the window]. Which of them go down the matrix, and which across?",
        "For the stride, keep every stride-th stop: `windows[:, ::stride, ::stride]`. Before you reshape, put the "
        "axes in the order [channel, row, column, stop down, stop across].",
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
        r"""
@ return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)
only a reshape (2)
+ return windows.reshape(channels * size * size, down * across)
! The shape is right, but the numbers are in the wrong places: reshape keeps the order in memory. Move the axes with
! transpose first.
windows as rows
+ return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across).T
! Your windows are rows. They should be columns.
channels inside (2)
+ return windows.transpose(3, 4, 0, 1, 2).reshape(channels * size * size, down * across)
! With more than one channel your rows are in the wrong order. All numbers of channel 0 come first, then those of
! channel 1, as in `kernels[o].ravel()`.
windows on their side (2)
+ return windows.transpose(0, 4, 3, 1, 2).reshape(channels * size * size, down * across)
! Inside each window you swapped rows and columns.
column by column (2)
+ return windows.transpose(0, 3, 4, 2, 1).reshape(channels * size * size, down * across)
! Your stops follow column by column. They should go row by row.
whole numbers
+ return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across).astype(int)
! An array of integers drops all decimals. If you fill a matrix in a loop, begin with `np.zeros(shape)`, which has
! float64.

no stride (2)
- windows = windows[:, ::stride, ::stride]
+ windows = windows
! You have too many columns: keep only every stride-th stop, down and across.
no padding
- padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
+ padded = image
! The border of zeros is missing.
""",
    ),
    run=_array,
    explain=(
        "`np.shares_memory(windows, padded)` is True until the reshape: the view stores no number twice. Only the "
        "reshape copies."
    ),
    also_right=r"""
import torch

# by torch
def by_torch(image, size, stride, padding):
    unfolded = torch.nn.functional.unfold(torch.tensor(image)[None], size, stride=stride, padding=padding)
    return unfolded[0].numpy()
""",
    also_wrong=r"""
# a list
lambda *given: im2col(*given).tolist()
! gave a list (later cells need a NumPy array
""",
)


def col2im(columns, shape, size, stride, padding):
    """Add every column back to the pixels that it came from. Returns an image of `shape`."""
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


def _mean_of_the_windows(columns, shape, size, stride, padding):
    how_often = col2im(np.ones_like(columns), shape, size, stride, padding)
    return col2im(columns, shape, size, stride, padding) / np.maximum(how_often, 1)


COL2IM = Exercise(
    "08.4",
    "The backward pass: col2im",
    "Write `col2im(columns, shape, size, stride, padding)`: `columns` [C * size * size, stops] holds a gradient for "
    "every number in im2col's matrix. Return an image of `shape` (C, H, W) in which every pixel has the sum of the "
    "gradients of its copies. Discard the gradients that fall on padding.",
    minutes=12,
    difficulty=3,
    solution=col2im,
    hints=(
        "Go through the stops as in `conv2d`: start with a padded image of zeros, and at every stop add that stop's "
        "column, as a window, at the window's place. Cut off the border at the end.",
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
            r"""
overwrites (3)
- padded[:, top : top + size, left : left + size] += windows[:, :, :, i, j]
+ padded[:, top : top + size, left : left + size] = windows[:, :, :, i, j]
! In your answer a pixel that several windows see keeps only the last window's gradient. Add with `+=`, one window at a
! time.

@ return padded[:, padding : padding + height, padding : padding + width]
minus no padding (3)
+ return padded[:, padding:-padding, padding:-padding]
! With padding 0 the slice `padding:-padding` is `0:0`, which is empty. `padding:padding + H` cuts off the border for
! any padding.
border (3)
+ return padded
! You did not cut off the border: return an image of `shape`, without padding.
wrong corner (3)
+ return padded[:, :height, :width]
! The shape is right, but you cut at the wrong end. The image starts `padding` rows and columns into the padded one.
whole numbers
+ return padded[:, padding : padding + height, padding : padding + width].astype(int)
! Gradients have decimals, and an array of integers drops them. Begin with `np.zeros(shape)`, which has float64.

no stride (3)
- top, left = i * stride, j * stride
+ top, left = i, j
! You placed the windows one pixel apart. Stop (i, j) begins at row `i * stride`, column `j * stride`.
all at once (3)
- down = (height + 2 * padding - size) // stride + 1
- across = (width + 2 * padding - size) // stride + 1
- windows = columns.reshape(channels, size, size, down, across)
- for i in range(down):
-     for j in range(across):
-         top, left = i * stride, j * stride
-         padded[:, top : top + size, left : left + size] += windows[:, :, :, i, j]
+ places = im2col(np.arange(padded.size).reshape(padded.shape), size, stride, 0)
+ padded.reshape(-1)[places] += columns
! `array[places] += columns` is the trap described above: of several copies only the last one is written. Go window by
! window, or use np.add.at.
""",
        ),
        Mistake(
            "mean",
            _mean_of_the_windows,
            "That is the mean over the windows. Each copy of a pixel contributes to the loss, so its gradients add up.",
            1,
        ),
    ),
    run=_array,
    also_right=r"""
# with add at
def with_add_at(columns, shape, size, stride, padding):
    channels, height, width = shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    places = im2col(np.arange(padded.size).reshape(padded.shape), size, stride, 0)
    np.add.at(padded.reshape(-1), places, columns)
    return padded[:, padding : padding + height, padding : padding + width]
""",
    also_wrong=r"""
import torch

# a tensor
lambda *given: torch.tensor(col2im(*given))
! gave a Tensor (later cells need a NumPy array
# a narrow col2im
def a_narrow_col2im(columns, shape, size, stride, padding):  # up to the end of the last window
    channels, *image = shape
    down, across = ((n + 2 * padding - size) // stride for n in image)
    narrow = channels, down * stride + size - 2 * padding, across * stride + size - 2 * padding
    return col2im(columns, narrow, size, stride, padding)
""",
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


def _last_of_equals(image, grad, size):
    return max_pool_backward(image[::-1, ::-1], grad[::-1, ::-1], size)[::-1, ::-1]


def _nearly_equal(rng):
    """An image whose numbers are tied or differ by 1e-3 or 1e-9."""
    image = rng.integers(0, 2, (4, 6)) + rng.choice([0, 1e-3, 1e-9], (4, 6))
    return image, rng.normal(size=(2, 3)), 2


MAX_POOL = Exercise(
    "08.5",
    "Backward through a maximum",
    "Write `max_pool_backward(image, grad, size)`. The forward pass cut the image [H, W] into adjacent windows of "
    "size x size and kept only the largest number of each. `grad` [H / size, W / size] is the gradient of these "
    "numbers; return the gradient of the image. Among equal numbers the first one in reading order wins.",
    minutes=8,
    difficulty=2,
    solution=max_pool_backward,
    hints=(
        "Start with zeros of the image's shape. In each window one pixel gets the window's whole gradient.",
        "`np.argmax(window)` is the place of the first largest number in the window, read row by row; "
        "`np.unravel_index(place, window.shape)` turns it into a row and a column.",
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
            "last of equals",
            _last_of_equals,
            "Among equal pixels you gave the gradient to the last one. The first one wins.",
            2,
        ),
        *slips(
            max_pool_backward,
            r"""
the maximum (3)
- result[i * size + row, j * size + column] = grad[i, j]
+ result[i * size + row, j * size + column] = window[row, column]
! The winner gets the gradient `grad[i, j]`, not its own value.

@ row, column = np.unravel_index(np.argmax(window), window.shape)
row and column (2)
+ column, row = np.unravel_index(np.argmax(window), window.shape)
! You swapped the row and column of the winner.
begins at 0 (2)
+ row, column = np.unravel_index(np.argmax(np.maximum(window, 0)), window.shape)
! In a window of negative numbers the largest is negative too. If you search for it, start from a pixel of the window or
! from -inf, not from 0.

whole numbers
- result = np.zeros(image.shape)
+ result = np.zeros(image.shape, dtype=int)
! A gradient has decimals, and an array of integers drops them. Use `np.zeros(image.shape)`.

@ for i in range(grad.shape[0]):
@     for j in range(grad.shape[1]):
@         window = image[i * size : (i + 1) * size, j * size : (j + 1) * size]
@         row, column = np.unravel_index(np.argmax(window), window.shape)
@         result[i * size + row, j * size + column] = grad[i, j]
every maximum (2)
+ blocks = _blocks(image, size)
+ _blocks(result, size)[...] = (blocks == blocks.max((2, 3), keepdims=True)) * grad[:, :, None, None]
! You gave the whole gradient to each of several equal pixels, so more comes out than went in. Only the first of them
! wins.
ties share (2)
+ winners = _blocks(image, size) == _blocks(image, size).max((2, 3), keepdims=True)
+ _blocks(result, size)[...] = winners / winners.sum((2, 3), keepdims=True) * grad[:, :, None, None]
! You shared the gradient among equal pixels. T.max and torch.amax do that, but a pooling window picks one winner, the
! first.

@ result = np.zeros(image.shape)
@ for i in range(grad.shape[0]):
@     for j in range(grad.shape[1]):
@         window = image[i * size : (i + 1) * size, j * size : (j + 1) * size]
@         row, column = np.unravel_index(np.argmax(window), window.shape)
@         result[i * size + row, j * size + column] = grad[i, j]
@ return result
every pixel
+ return np.kron(grad, np.ones((size, size)))
! You gave the gradient to every pixel of the window. A small change of a pixel that lost has no effect, so its gradient
! is 0.
mean
+ return np.kron(grad, np.ones((size, size))) / size**2
! That is the gradient of average pooling.
""",
        ),
    ),
    run=_array,
    also_wrong=r"""
# a list
lambda *given: max_pool_backward(*given).tolist()
! gave a list (later cells
# into the image
def into_the_image(image, grad, size):
    image[...] = max_pool_backward(image, grad, size)
    return image
! the right result, but also new numbers in what it was given
""",
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
    """The three results by name, so that a message can say which of them is wrong."""
    results = function(*arguments)
    if not isinstance(results, (tuple, list)) or len(results) != 3:
        return results
    cut = next((r for r in map(lambda result: _digits_kept(lambda: result), results) if isinstance(r, Told)), None)
    if cut is not None:
        return cut
    return dict(zip(("y", "running_mean", "running_var"), results))


def _channels(rng):
    """Three channels of one or two images that are not square, and matching statistics."""
    x = rng.normal(size=(rng.integers(1, 3), 3, 2, 4))
    return x, rng.normal(size=3), rng.uniform(0.5, 2, 3), bool(rng.integers(2)), 0.25, 1e-3


BATCH_NORM = Exercise(
    "08.6",
    "Batch norm in two modes",
    "Write `batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5)` for x [N, C, H, W]. For every "
    "channel, subtract a mean and divide by the root of (a variance + eps). In training use the batch's own mean and "
    "*biased* variance, and move the running statistics: (1 - momentum) times the old value plus momentum times the "
    "batch's statistic, this time with the *unbiased* variance. In evaluation use the running statistics and do not "
    "move them. Return (y, running_mean, running_var), without changing the arrays you were given.",
    minutes=12,
    difficulty=3,
    solution=batch_norm,
    hints=(
        "Each channel has one mean, over the batch and the image: `x.mean(axis=(0, 2, 3))`, of shape [C]. `x.var` "
        "takes the same axes and gives the biased variance.",
        "To subtract the mean from x [N, C, H, W], give it the shape [C, 1, 1]: `mean[:, None, None]`. The unbiased "
        "variance is `var * n / (n - 1)`, where n is the count of numbers in a channel, `x.size / x.shape[1]`.",
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
        r'''
images counted, not numbers (2)
- def batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
-     """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""
-     if training:
-         mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
-         n = x.size / x.shape[1]
+ @np.errstate(divide="ignore")
+ def batch_norm(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
+     """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""
+     if training:
+         mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
+         n = len(x)
! n is the count of numbers in a channel of the whole batch, N * H * W, not the count of images.

@ if training:
one image is not a batch (3)
+ if training and len(x) > 1:
! A single image has a mean and a variance too, those of its pixels. Training uses and records them for any number of
! images.
ignores training (3)
+ if True:
! `training` is ignored: the second case is an evaluation. There, normalize with the running statistics and do not
! change them: `if training: ... else: ...`.
always in evaluation (3)
+ if False:
! `training` is ignored: with training=True, normalize with the batch's own mean and variance, and move the running
! statistics: `if training: ... else: ...`.

unbiased used (2)
  running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
+ var = var * n / (n - 1)
! You normalized the batch with the unbiased variance. To normalize, divide by n, as `x.var` does; n - 1 is only for the
! running variance.
biased variance recorded (2)
- running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
+ running_var = (1 - momentum) * running_var + momentum * var
! y is right. The running variance should move towards the unbiased variance, because it will be used for images outside
! this batch.
one for all channels
- mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
- n = x.size / x.shape[1]
+ mean, var = np.full(x.shape[1], x.mean()), np.full(x.shape[1], x.var())
+ n = x.size
! You use one mean for everything. Each channel has its own: leave out axis 1.
each image by itself
- mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
- n = x.size / x.shape[1]
+ mean, var = x.mean(axis=(2, 3)), x.var(axis=(2, 3))
+ n = x[0, 0].size
- y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)
+ y = (x - mean[..., None, None]) / np.sqrt(var[..., None, None] + eps)
! You normalized each image by itself, which is instance norm. Batch norm takes the mean over axis 0 too.
batch in evaluation (3)
- mean, var = running_mean, running_var
+ mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
! In evaluation you used the batch's own statistics. Then the answer for an image would depend on the other images in
! its batch.
moves in evaluation (3)
  mean, var = running_mean, running_var
+ running_mean = (1 - momentum) * mean + momentum * x.mean(axis=(0, 2, 3))
+ running_var = (1 - momentum) * var + momentum * x.var(axis=(0, 2, 3), ddof=1)
! Evaluation learns nothing: do not change the running statistics.

@ running_mean = (1 - momentum) * running_mean + momentum * mean
@ running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
momentum for the old value (3)
+ running_mean = momentum * running_mean + (1 - momentum) * mean
+ running_var = momentum * running_var + (1 - momentum) * var * n / (n - 1)
! Here momentum is the weight of the *batch*, as in torch: running = 0.9 * running + 0.1 * batch. (Elsewhere it is often
! the weight of the old value.)
never moves (3)
+ moved_mean = (1 - momentum) * running_mean + momentum * mean
+ moved_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
! Your running statistics do not move. In training they have to.
changes your arrays (3)
+ running_mean[:] = (1 - momentum) * running_mean + momentum * mean
+ running_var[:] = (1 - momentum) * running_var + momentum * var * n / (n - 1)
! The arrays that you were given belong to the caller. `running_mean = ...` makes a new array; `+=` and `[:] =` write
! into the caller's.

moved in training (3)
  else:
      mean, var = running_mean, running_var
+ mean, var = running_mean, running_var
! In training you normalized the batch with the running statistics. They are for evaluation; in training use the batch's
! own mean and variance.

@ y = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + eps)
no root (3)
+ y = (x - mean[:, None, None]) / (var[:, None, None] + eps)
! The root is missing: divide by the standard deviation, not by the variance.
eps outside (3)
+ y = (x - mean[:, None, None]) / (np.sqrt(var[:, None, None]) + eps)
! eps belongs under the root: add it to the variance.

only y (3)
- return y, running_mean, running_var
+ return y
! Return three things: y and the two running arrays, even if they did not change.
ignores its settings (3)
  """Normalize each channel of x [N, C, H, W]. Returns (y, running_mean, running_var)."""
+ momentum, eps = 0.1, 1e-5
! Your answer is right only for the default settings: use the arguments `momentum` and `eps`, not fixed numbers.
''',
    ),
    run=_by_name,
    also_right=r"""
# channel by channel
def channel_by_channel(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    y, running_mean, running_var = np.empty_like(x), running_mean.copy(), running_var.copy()
    for c in range(x.shape[1]):
        mean, var = running_mean[c], running_var[c]
        if training:
            mean, var = x[:, c].mean(), x[:, c].var()
            running_mean[c] += momentum * (mean - running_mean[c])
            running_var[c] += momentum * (x[:, c].var(ddof=1) - running_var[c])
        y[:, c] = (x[:, c] - mean) / (var + eps) ** 0.5
    return [y, running_mean, running_var]
""",
    also_wrong=r"""
# in float32
def in_float32(x, *rest):
    y, *running = batch_norm(x, *rest)
    return y.astype(np.float32), *running
! an array of float32
""",
)

SHORTCUT_SLOPE = Exercise(
    "08.7",
    "The slope of a shortcut",
    "There are three blocks in a row. At some point their inner functions f have the slopes 0.5, 0 and -0.2 (a dead "
    "relu caused the 0). What is the slope of the last block's output with respect to the first block's input if "
    "each block is y = f(x), and if each is y = x + f(x)? Answer with a tuple: (plain, residual).",
    minutes=3,
    difficulty=1,
    solution=(0.0, 1.2),
    hints=(
        "Use the chain rule of chapter 01: multiply the slopes along a chain. What is the slope of x + f(x) if the "
        "slope of f is 0.5?",
        "Plain: 0.5 * 0 * -0.2. Residual: (1 + 0.5) * (1 + 0) * (1 - 0.2).",
    ),
    mistakes=(
        Mistake(
            "the dead block kills it",
            (0.0, 0.0),
            "A block y = x + f(x) whose f has slope 0 has slope 1, because x itself still passes through.",
            1,
        ),
        Mistake("added", (0.3, 1.3), "Multiply slopes along a chain; do not add them.", 1),
        Mistake(
            "one shortcut",
            (0.0, 1.0),
            "There is a shortcut around each of the three blocks, not one around all of them.",
            2,
        ),
        Mistake("swapped", (1.2, 0.0), "The plain one comes first in the tuple.", 2),
        Mistake("sign", (0.0, 1.8), "The last slope is -0.2: 1 - 0.2.", 2),
    ),
    explain=(
        "Multiply the residual product out: 1 + the slopes + the products of all pairs + the product of all three. A "
        "residual network is a sum over all paths through it, including the short ones."
    ),
    also_right=r"""
# a list
[0, 1.2]
""",
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
    "Write `residual_block(x, conv1, bn1, conv2, bn2)`: f applies conv1, bn1, relu, conv2 and bn2 in this order; "
    "add x to its result, and take the relu of the sum. x is a Tensor, you can call the other four like functions, "
    "and relu is `T.relu`.",
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
        r"""
@ return T.relu(x + f)
no shortcut (2)
+ return T.relu(f)
! You did not add x: that is a plain block.
relu before the sum (2)
+ return x + T.relu(f)
! The relu has to come after the sum. In your order f can only increase x, never decrease it.
no relu at the end (2)
+ return x + f
! The relu of the sum is missing.
f twice
+ return T.relu(f + f)
! That is f plus f. You used the name x for the result of f and lost the input: give f its own name.
one relu too many (2)
+ return T.relu(x + T.relu(f))
! You have a relu after bn2, before the sum. With it, f can only increase x, never decrease it. There are just two
! relus: one inside f and one around the sum.
without a graph
+ return T.Tensor(T.relu(x + f).data)
! The numbers are right, but no gradient gets back to x: compute with the Tensors themselves, not with their .data.

@ f = T.relu(bn1(conv1(x)))
no relu inside
+ f = bn1(conv1(x))
! The relu inside f is missing. Without it, conv1 and conv2 together are just one linear map.
adds the inner one
+ x = f = T.relu(bn1(conv1(x)))
! The shortcut starts at x, before conv1. If you reuse the name (`x = conv1(x)`), you lose it.
""",
    ),
    run=_block_and_gradient,
    also_right=r"""
# adds in place
def adds_in_place(x, conv1, bn1, conv2, bn2):
    f = nn.Sequential(conv1, bn1, T.relu, conv2, bn2)(x)
    f += x
    return f.relu()
""",
)


def block_parameters(in_channels, out_channels, stride):
    """The number of parameters of BasicBlock(in_channels, out_channels, stride)."""
    count = out_channels * in_channels * 3 * 3 + 2 * out_channels
    count += out_channels * out_channels * 3 * 3 + 2 * out_channels
    if stride != 1 or in_channels != out_channels:
        count += out_channels * in_channels + 2 * out_channels
    return count


BLOCK_PARAMETERS = Exercise(
    "08.9",
    "Count a block",
    "Write `block_parameters(in_channels, out_channels, stride)`: the number of parameters of a ResNet block. The "
    "block has two 3 x 3 convolutions without bias, the first from in_channels to out_channels, the second from "
    "out_channels to out_channels, and a batch norm after each, with a weight and a bias per channel. If the shape "
    "changes, because stride is not 1 or the channels differ, x goes through a 1 x 1 convolution without bias and "
    "another batch norm before it is added.",
    minutes=6,
    difficulty=2,
    solution=block_parameters,
    hints=(
        "A convolution from a to b channels has a kernel [a, 3, 3] for each of b outputs: b * a * 9 numbers.",
        "A batch norm of b channels has 2 * b parameters. Its running statistics are not trained.",
        "If the shape changes, the shortcut has b * a numbers in its convolution and 2 * b in its batch norm: `if "
        "stride != 1 or in_channels != out_channels:`.",
    ),
    cases=((64, 64, 1), (64, 128, 2), (16, 16, 2), (3, 8, 1), (8, 3, 1), (7, 5, 3), (1, 1, 1), (8, 8, 3)),
    mistakes=slips(
        block_parameters,
        r"""
convolution biases
- count = out_channels * in_channels * 3 * 3 + 2 * out_channels
- count += out_channels * out_channels * 3 * 3 + 2 * out_channels
+ count = out_channels * in_channels * 3 * 3 + 3 * out_channels
+ count += out_channels * out_channels * 3 * 3 + 3 * out_channels
- count += out_channels * in_channels + 2 * out_channels
+ count += out_channels * in_channels + 3 * out_channels
! These convolutions have no bias: the batch norm after each one would subtract it again.
no batch norms (2)
- count = out_channels * in_channels * 3 * 3 + 2 * out_channels
- count += out_channels * out_channels * 3 * 3 + 2 * out_channels
+ count = out_channels * in_channels * 3 * 3
+ count += out_channels * out_channels * 3 * 3
- count += out_channels * in_channels + 2 * out_channels
+ count += out_channels * in_channels
! The batch norms are missing. Each has 2 parameters per channel.

@ if stride != 1 or in_channels != out_channels:
no downsample (3)
+ if False:
! If the shape changes, the shortcut has parameters too.
only by stride (3)
+ if stride != 1:
! Even with stride 1 the shape changes if the channels differ: you cannot add 3 channels to 8.
only stride 2 (3)
+ if stride == 2 or in_channels != out_channels:
! A stride of 3 changes the shape as well, as every stride except 1 does.
only if both (3)
+ if stride != 1 and in_channels != out_channels:
! One of the two is enough: a stride other than 1, *or* different channels.
always a downsample (3)
+ if True:
! The shortcut has parameters only if the shape changes.

one number per channel (2)
- count = out_channels * in_channels * 3 * 3 + 2 * out_channels
- count += out_channels * out_channels * 3 * 3 + 2 * out_channels
+ count = out_channels * in_channels * 3 * 3 + 1 * out_channels
+ count += out_channels * out_channels * 3 * 3 + 1 * out_channels
- count += out_channels * in_channels + 2 * out_channels
+ count += out_channels * in_channels + 1 * out_channels
! A batch norm has two parameters per channel, a weight and a bias.
shortcut without norm (3)
- count += out_channels * in_channels + 2 * out_channels
+ count += out_channels * in_channels
! There is a batch norm after the shortcut's convolution too.
running statistics (2)
- count = out_channels * in_channels * 3 * 3 + 2 * out_channels
- count += out_channels * out_channels * 3 * 3 + 2 * out_channels
+ count = out_channels * in_channels * 3 * 3 + 4 * out_channels
+ count += out_channels * out_channels * 3 * 3 + 4 * out_channels
- count += out_channels * in_channels + 2 * out_channels
+ count += out_channels * in_channels + 4 * out_channels
! Running means and variances are measured, not trained, so they are not parameters.
both from the input
- count += out_channels * out_channels * 3 * 3 + 2 * out_channels
+ count += out_channels * in_channels * 3 * 3 + 2 * out_channels
! The input of the second convolution is the output of the first, so it goes from out_channels to out_channels.
""",
    ),
    also_wrong=r"""
# no shortcut to fewer channels
lambda n, m, stride: block_parameters(n, m, stride) - (stride == 1 and n > m) * (n * m + 2 * m)
""",
)


def own_layer(count):
    """A layer of my own, its twin in torch, and `count` examples as input."""
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
    "Close this part with something of your own. Invent an operation with at least one learned number: a relu whose "
    "left side leaks by a learned amount, a relu with a learned threshold (x minus the threshold, or 0 below it), a "
    "bump that responds to only one value, a window that takes the root of a mean of squares, or whatever you like. "
    "Write `own_layer(count)`, which returns a tuple of three things:\n\n"
    "- a layer: an `nn.Module` with at least one parameter. Its core is a `T.Function` that you wrote, with its "
    "`forward` and its `backward`.\n"
    "- its twin: a `torch.nn.Module` that computes the same. Its parameters have the same names and shapes; torch "
    "computes the gradients by itself.\n"
    "- examples: an array of floating-point numbers whose first axis has the length `count`.\n\n"
    "You may define your classes inside the function or above it. `check` moves all numbers a little, checks every "
    "derivative with `gradcheck`, and trains your layer and its twin in `lockstep`, with two examples and with one.",
    minutes=30,
    difficulty=3,
    solution=own_layer,
    hints=(
        "Begin on paper: write down y and its slopes with respect to x and to each parameter. Then write `class "
        "Bump(T.Function)` with two static methods: `forward(ctx, x, center)` keeps in `ctx` whatever backward "
        "needs, and `backward(ctx, grad)` returns one gradient for each of the two inputs. The engine undoes "
        "broadcasting.",
        "The layer keeps `self.center = T.Tensor([0.0, 1.0], requires_grad=True)`, and its forward returns "
        "`Bump.apply(x, self.center)`. The twin calls `super().__init__()` first, then `self.center = "
        "torch.nn.Parameter(torch.tensor([0.0, 1.0]))`, and uses torch's own operations.",
        "Test the core by itself: `print(gradcheck(Bump.apply, T.Tensor(x), T.Tensor(center)))` names the wrong "
        "element.",
    ),
    cases=((2,), (1,)),
    mistakes=slips(
        own_layer,
        r"""
one gradient
- return -slope, slope
+ return -slope
! `backward` returns as many gradients as `apply` has inputs: one for x, and one for each parameter.
a factor (3)
- slope = grad * 2 * ctx.distance * ctx.y
+ slope = grad * ctx.distance * ctx.y
! Differentiate the formula of your forward on paper once more.
the kit's operations
- return Bump.apply(x, self.center)
+ return T.exp(-((x - self.center) ** 2))
! That is a fine layer, but the kit already knows all its gradients. Here you have to write the backward pass yourself.
another twin (2)
- return torch.exp(-((x - self.center) ** 2))
+ return torch.exp(-2 * ((x - self.center) ** 2))
! Your gradient is right for your forward, but the twin computes something else.
kept in the class
- ctx.distance = x - center
- ctx.y = np.exp(-(ctx.distance**2))
- return ctx.y
+ Bump.distance = x - center
+ Bump.y = np.exp(-(Bump.distance**2))
+ return Bump.y
- slope = grad * 2 * ctx.distance * ctx.y
+ slope = grad * 2 * Bump.distance * Bump.y
! Every call of forward has its own ctx, but all calls share the class.
a hard threshold
- ctx.y = np.exp(-(ctx.distance**2))
+ ctx.y = np.where(ctx.distance > 0, x, 0.0)
- slope = grad * 2 * ctx.distance * ctx.y
- return -slope, slope
+ slope = -grad * (ctx.distance > 0)
+ return -slope, 0 * slope
! If a small change of the parameter changes nothing, there is no slope to follow: a switch cannot learn. Return x minus
! the threshold, and 0 below it: then the slope is -1 above the threshold.
""",
    ),
    run=examine_layer,
    explain="Every layer of every library is made like this, and few have been checked so thoroughly.",
    also_right=r'''
import torch
class Leak(T.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.x, ctx.slope = x, slope
        return np.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad):
        return grad * np.where(ctx.x > 0, 1, ctx.slope), grad * np.where(ctx.x > 0, 0, ctx.x)
def layer_of(function, **parameters):
    """A module whose forward is `function(x, *parameters)`."""

    class Layer(nn.Module):
        def __init__(self):
            for name, value in parameters.items():
                setattr(self, name, T.Tensor(value, requires_grad=True))

        def forward(self, x):
            return function(x, *(getattr(self, name) for name in parameters))

    return Layer()
def noise(*shape):
    return np.random.default_rng(3).normal(size=shape)
def twin_of(function, **parameters):
    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in parameters.items():
                setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

        def forward(self, x):
            return function(x, *(getattr(self, name) for name in parameters))

    return Twin()

# leaky of one
lambda count: (layer_of(Leak.apply, slope=[0.25]), twin_of(torch.nn.functional.prelu, slope=[0.25]), noise(count, 4))
# scaled by one number
- self.center = T.Tensor([-0.5, 0.0, 0.5], requires_grad=True)
+ self.center = T.Tensor(0.5, requires_grad=True)
- self.center = torch.nn.Parameter(torch.tensor([-0.5, 0.0, 0.5]))
+ self.center = torch.nn.Parameter(torch.tensor(0.5))
# scaled channels
class ChannelScale(T.Function):
    """Undo broadcasting by hand, without storing numbers outside of ctx."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.arrays = x, scale
        return x * scale[:, None, None]

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.arrays
        return grad * scale[:, None, None], np.sum(grad * x, axis=(0, 2, 3))
def scaled_channels(count):
    parameters = {"scale": [1.0, 1.0]}
    twin = twin_of(lambda x, scale: x * scale[:, None, None], **parameters)
    return layer_of(ChannelScale.apply, **parameters), twin, noise(count, 2, 3, 4).astype(np.float32)
# root mean square
class Root(T.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = np.sqrt(x)
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        return grad / (2 * ctx.y)
def root_mean_square(count):
    """Windows as in pooling, an own operation among the kit's, and examples that have to be positive."""

    def pooled(root, mean):
        return lambda x, weight: root(mean(x * x) * weight * weight)

    ours = pooled(Root.apply, lambda x: T.mean(x.reshape(len(x), 2, 3), axis=2))
    theirs = pooled(torch.sqrt, lambda x: x.reshape(len(x), 2, 3).mean(dim=2))
    return [layer_of(ours, weight=[1.0, 2.0]), twin_of(theirs, weight=[1.0, 2.0]), np.abs(noise(count, 6)) + 0.1]
# with layers inside
def with_layers_inside(count):
    """Linear layers around the operation, so that inner modules have parameters."""
    nn.manual_seed(0)  # so that no number is near the kink at 0

    class Layer(nn.Module):
        def __init__(self):
            self.first, self.slope = nn.Linear(3, 5), T.Tensor([0.1], requires_grad=True)

        def forward(self, x):
            return Leak.apply(self.first(x), self.slope)

    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.slope = torch.nn.Linear(3, 5), torch.nn.Parameter(torch.tensor([0.1]))

        def forward(self, x):
            return torch.nn.functional.prelu(self.first(x), self.slope)

    return Layer(), Twin(), noise(count, 3)
''',
    also_wrong=r"""
import torch

# no x
lambda count: own_layer(count)[:2]
! instead of three things: layer, twin and x
# no layer
lambda count: (T.Function, *own_layer(count)[1:])
! a layer that is a type, not an nn.Module
# no twin
lambda count: (own_layer(count)[0], T.Function, own_layer(count)[2])
! a twin that is a type, not a torch.nn.Module
# seven examples
lambda count: (*own_layer(count)[:2], own_layer(7)[2])
! the first of length 2, one per example
# a tensor as x
lambda count: (*own_layer(count)[:2], torch.zeros(count, 3))
! it has to be a NumPy array
# a large x
lambda count: (*own_layer(count)[:2], np.ones((count, 5000)))
! an x of 10,000 numbers
# no parameters
lambda count: (nn.Sequential(T.relu), torch.nn.ReLU(), own_layer(count)[2])
! a layer without parameters
# a wrong gradient of x
- return -slope, slope
+ return slope, slope
! a wrong gradient: for x[
# no gradient of the parameter
- return -slope, slope
+ return -slope, None
! a wrong gradient: for center[
# in place
- return ctx.y
+ x[...] = ctx.y
+ return x
! forward writes into an array that other operations use too
# noisy
- return ctx.y
+ return ctx.y + np.random.normal(size=x.shape)
! a layer that cannot be examined: fn is not deterministic
# in float32
- return ctx.y
+ return ctx.y.astype(np.float32)
! an output of float32 for an x of float64
# other names
- self.center = torch.nn.Parameter(torch.tensor([-0.5, 0.0, 0.5]))
+ self.middle = torch.nn.Parameter(torch.tensor([-0.5, 0.0, 0.5]))
- return torch.exp(-((x - self.center) ** 2))
+ return torch.exp(-((x - self.middle) ** 2))
! missing ['center'], unexpected ['middle']
# an idle parameter
  self.center = T.Tensor([-0.5, 0.0, 0.5], requires_grad=True)
+ self.idle = T.Tensor([1.0], requires_grad=True)
- return Bump.apply(x, self.center)
+ return Bump.apply(x, self.center) + 0.0 * self.idle
  self.center = torch.nn.Parameter(torch.tensor([-0.5, 0.0, 0.5]))
+ self.idle = torch.nn.Parameter(torch.tensor([1.0]))
- return torch.exp(-((x - self.center) ** 2))
+ return torch.exp(-((x - self.center) ** 2)) + 0.0 * self.idle
! a parameter, `idle`, whose gradient is 0 everywhere
""",
)
