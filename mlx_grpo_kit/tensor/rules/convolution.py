"""Convolution and pooling over images [N, C, H, W], as matrix products and slices.

Each element of the kernel meets a shifted, strided slice of the image. For a 3x3 kernel, a Python loop of 3 * 3 steps
therefore handles all images, channels and pixels. Convolution stacks these slices as the rows of a matrix (im2col), and
one matrix product does the rest.

In memory, the channels are the outermost axis ([C, N, H, W], viewed as [N, C, H, W]), because the product returns this
layout and the next convolution needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mlx_grpo_kit.tensor.function import Function
from mlx_grpo_kit.tensor.rules.elementwise import masked
from mlx_grpo_kit.tensor.rules.products import refuse_booleans
from mlx_grpo_kit.tensor.tensor import Tensor

__all__ = ["conv2d", "max_pool2d"]


class Conv2d(Function):
    as_is = False

    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding):
        if x.ndim != 4 or weight.ndim != 4:
            raise ValueError(f"expected x [N, C, H, W] and weight [O, C, KH, KW]; got {x.shape} and {weight.shape}.")
        if x.shape[1] != weight.shape[1]:
            raise ValueError(
                f"Given groups=1, weight of size {weight.shape}, expected input {x.shape} to have "
                f"{weight.shape[1]} channels, but got {x.shape[1]} channels instead."
            )
        refuse_booleans(x, weight)
        if 0 in (*x.shape[1:], *weight.shape[:2]):
            raise ValueError(f"expected at least one channel and one pixel; got {x.shape} and {weight.shape}.")
        windows = Windows(x.shape, weight.shape[2:], stride, padding)
        columns = np.empty((x.shape[1], *windows.kernel, x.shape[0], *windows.out), x.dtype)
        padded = windows.pad(x).swapaxes(0, 1)
        for i, j, seen in windows:
            columns[:, i, j] = padded[seen]
        columns = columns.reshape(weight[0].size, x.shape[0] * windows.out[0] * windows.out[1])
        out = (weight.reshape(len(weight), -1) @ columns).reshape(len(weight), x.shape[0], *windows.out)
        if bias is not None:
            out += bias[:, None, None, None]
        ctx.weight, ctx.columns, ctx.windows = weight, columns, windows
        return out.swapaxes(0, 1)

    @staticmethod
    def backward(ctx, grad):
        weight, columns, windows = ctx.weight, ctx.columns, ctx.windows
        grad = grad.swapaxes(0, 1)
        grad_rows = grad.reshape(len(weight), columns.shape[1])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_columns = (weight.reshape(len(weight), -1).T @ grad_rows).reshape(
                windows.padded_shape[0], *windows.kernel, *grad.shape[1:]
            )
            padded = np.zeros(windows.padded_shape, grad.dtype)
            for i, j, seen in windows:
                padded[seen] += grad_columns[:, i, j]
            grad_x = windows.unpad(padded.swapaxes(0, 1))
        if ctx.needs_input_grad[1]:
            grad_weight = (grad_rows @ columns.T).reshape(weight.shape)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum(axis=(1, 2, 3))
        return grad_x, grad_weight, grad_bias


class MaxPool2d(Function):
    as_is = False

    @staticmethod
    def forward(ctx, x, kernel_size, stride, padding):
        kernel = _pair(kernel_size)
        if x.ndim != 4:
            raise ValueError(f"expected x [N, C, H, W]; got {x.shape}.")
        if any(2 * border > long for border, long in zip(_pair(padding), kernel, strict=True)):
            raise ValueError(
                f"pad should be at most half of effective kernel size, but got padding={padding} and "
                f"kernel_size={kernel_size}."
            )
        windows = Windows(x.shape, kernel, kernel if stride is None else stride, padding)
        smallest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        padded = windows.pad(x, smallest).swapaxes(0, 1)
        best, winner = None, None
        for number, (_, _, seen) in enumerate(windows):
            candidate = padded[seen]
            if best is None:
                best, winner = candidate.copy(), np.zeros(candidate.shape, np.uint16)
            else:
                better = (candidate > best) | np.isnan(candidate)  # the first of equal values wins; a nan always wins
                np.copyto(best, candidate, where=better)
                winner[better] = number
        ctx.windows, ctx.winner = windows, winner
        return best.swapaxes(0, 1)

    @staticmethod
    def backward(ctx, grad):
        padded = np.zeros(ctx.windows.padded_shape, grad.dtype)
        grad = grad.swapaxes(0, 1)
        for number, (_, _, seen) in enumerate(ctx.windows):
            padded[seen] += masked(grad, ctx.winner == number)
        return ctx.windows.unpad(padded.swapaxes(0, 1))


class Windows:
    """The positions of a kernel that slides over padded images.

    Iterating yields (row, column, slice) for each element of the kernel. The slice selects the pixels of the padded
    images that this element meets over all positions of the kernel.

    Attributes:
        out: the number of positions of the kernel, down and across.
        padded_shape: the shape of the padded images, channels first: [C, N, H + 2 * padding, W + 2 * padding].

    Raises:
        ValueError: a size is not a whole number or too small, or the kernel is larger than the padded image.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        kernel: tuple[int, int],
        stride: int | tuple[int, int],
        padding: int | tuple[int, int],
    ):
        self.kernel, self.stride, self.padding = kernel, _pair(stride), _pair(padding)
        for name, pair, least in (("kernel size", kernel, 1), ("stride", self.stride, 1), ("padding", self.padding, 0)):
            if len(pair) != 2 or not all(isinstance(each, int | np.integer) and each >= least for each in pair):
                raise ValueError(f"{name} is {pair}; expected whole numbers of at least {least}: one, or a pair.")
        batch, channels, *image = shape
        padded = [size + 2 * border for size, border in zip(image, self.padding, strict=True)]
        if any(long > size for long, size in zip(kernel, padded, strict=True)):
            raise ValueError(
                f"Calculated padded input size per channel: ({padded[0]} x {padded[1]}). Kernel size: "
                f"({kernel[0]} x {kernel[1]}). Kernel size can't be greater than actual input size."
            )
        self.out = tuple(
            (size - long) // step + 1 for size, long, step in zip(padded, kernel, self.stride, strict=True)
        )
        self.padded_shape = (channels, batch, *padded)

    def __iter__(self) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
        (down, across), (rows, columns) = self.stride, self.out
        for i, j in itertools.product(*map(range, self.kernel)):
            yield (
                i,
                j,
                (slice(None), slice(None), slice(i, i + down * rows, down), slice(j, j + across * columns, across)),
            )

    def pad(self, x: np.ndarray, value: float = 0.0) -> np.ndarray:
        if self.padding == (0, 0):
            return x
        padded = np.full(self.padded_shape, value, x.dtype).swapaxes(0, 1)
        self.unpad(padded)[...] = x
        return padded

    def unpad(self, padded: np.ndarray) -> np.ndarray:
        """Return a view of the images without their border."""
        (down, across), (height, width) = self.padding, padded.shape[2:]
        return padded[:, :, down : height - down, across : width - across]


def conv2d(x, weight, bias=None, stride=1, padding=0) -> Tensor:
    """Slide kernels over images and take dot products (a cross-correlation, as in torch).

    x [N, C, H, W], weight [O, C, KH, KW], bias [O] -> [N, O, H', W'], where H' is
    (H + 2 * padding - KH) // stride + 1. `stride` and `padding` are numbers or pairs. Raises ValueError if the shapes
    do not fit.
    """
    return Conv2d.apply(x, weight, bias, stride=stride, padding=padding)


def max_pool2d(x, kernel_size, stride=None, padding=0) -> Tensor:
    """Take the maximum of each window of x [N, C, H, W]. `stride` defaults to the kernel size.

    The first of several equal maxima gets the gradient. Raises ValueError if the sizes do not fit.
    """
    return MaxPool2d.apply(x, kernel_size=kernel_size, stride=stride, padding=padding)


def _pair(number):
    return tuple(number) if isinstance(number, tuple | list) else (number, number)
