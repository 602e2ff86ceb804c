"""Exercises of notebook 08: convolutions and ResNet."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import copy
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake


def _integers(*shape, seed=0):
    """Small whole numbers, different enough that a wrong order shows."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def _array(function, *arguments):
    """The result, which later cells compute with: a NumPy array. So do they with the arrays that were given."""
    before = copy.deepcopy(arguments)
    result = function(*arguments)
    if not all(map(np.array_equal, arguments, before)):
        return Told("new numbers in an array that it was given (work on a copy: image.copy())")
    if result is None or isinstance(result, np.ndarray):
        return result
    return Told(f"a {type(result).__name__} (later cells need a NumPy array: np.array(...))")


# -- 08.1 -------------------------------------------------------------------------------------------------------------


def conv_output_size(size, kernel, stride, padding):
    """How many stops a kernel makes along an image with `padding` zeros at each end."""
    return (size + 2 * padding - kernel) // stride + 1


def _whole(function, *arguments):
    """The result, which later cells use as a length."""
    result = function(*arguments)
    if isinstance(result, float) and result.is_integer():
        return Told(f"{result}, a float (a length is a whole number: `//` of whole numbers is one)")
    return result


def _one_end(size, kernel, stride, padding):
    return (size + padding - kernel) // stride + 1


def _fence_posts(size, kernel, stride, padding):
    return (size + 2 * padding - kernel) // stride


def _rounded_up(size, kernel, stride, padding):
    return math.ceil((size + 2 * padding - kernel) / stride) + 1


def _not_rounded(size, kernel, stride, padding):
    return (size + 2 * padding - kernel) / stride + 1


def _one_at_the_end_divided(size, kernel, stride, padding):
    return (size + 2 * padding - kernel + 1) // stride


# -- 08.2 -------------------------------------------------------------------------------------------------------------


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


def _flipped(image, kernels, stride, padding):
    return conv2d(image, kernels[:, :, ::-1, ::-1], stride, padding)


def _turned(image, kernels, stride, padding):
    return conv2d(image, kernels.swapaxes(2, 3), stride, padding)


def _no_stride(image, kernels, stride, padding):
    return conv2d(image, kernels, 1, padding)


def _stride_only_in_the_size(image, kernels, stride, padding):
    right = conv2d(image, kernels, stride, padding)
    return conv2d(image, kernels, 1, padding)[:, : right.shape[1], : right.shape[2]]


def _no_padding(image, kernels, stride, padding):
    return conv2d(image, kernels, stride, 0)


def _first_channel(image, kernels, stride, padding):
    return conv2d(image[:1], kernels[:, :1], stride, padding)


def _first_kernel(image, kernels, stride, padding):
    return np.repeat(conv2d(image, kernels[:1], stride, padding), len(kernels), axis=0)


def _pads_the_channels(image, kernels, stride, padding):
    padded = np.pad(image, padding)
    size = kernels.shape[2]
    down, across = ((length - size) // stride + 1 for length in padded.shape[1:])
    out = np.zeros((len(kernels), down, across))
    for o, i, j in np.ndindex(out.shape):
        top, left = i * stride, j * stride
        out[o, i, j] = np.sum(padded[:, top : top + size, left : left + size] * kernels[o])
    return out


def _as_wide_as_high(image, kernels, stride, padding):
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    size = kernels.shape[2]
    down = (padded.shape[1] - size) // stride + 1
    out = np.zeros((len(kernels), down, down))
    for o, i, j in np.ndindex(out.shape):
        top, left = i * stride, j * stride
        out[o, i, j] = np.sum(padded[:, top : top + size, left : left + size] * kernels[o])
    return out


def _one_stop_too_few(image, kernels, stride, padding):
    return conv2d(image, kernels, stride, padding)[:, :-1, :-1]


def _mean_of_the_window(image, kernels, stride, padding):
    return conv2d(image, kernels, stride, padding) / kernels[0].size


# -- 08.3 -------------------------------------------------------------------------------------------------------------


def im2col(image, size, stride, padding):
    """Every window of an image [C, H, W] as a column: [C * size * size, number of stops]."""
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(padded, (size, size), axis=(1, 2))  # [C, stops, stops, size, size]
    windows = windows[:, ::stride, ::stride]
    channels, down, across = windows.shape[:3]
    return windows.transpose(0, 3, 4, 1, 2).reshape(channels * size * size, down * across)


def _reshaped_only(image, size, stride, padding):
    right = im2col(image, size, stride, padding)
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    return sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride].reshape(right.shape)


def _windows_as_rows(image, size, stride, padding):
    return im2col(image, size, stride, padding).T


def _channels_inside(image, size, stride, padding):
    columns = im2col(image, size, stride, padding)
    return columns.reshape(len(image), size * size, -1).swapaxes(0, 1).reshape(columns.shape)


def _window_turned(image, size, stride, padding):
    columns = im2col(image, size, stride, padding)
    return columns.reshape(len(image), size, size, -1).swapaxes(1, 2).reshape(columns.shape)


def _columns_without_stride(image, size, stride, padding):
    return im2col(image, size, 1, padding)


def _columns_without_padding(image, size, stride, padding):
    return im2col(image, size, stride, 0)


# -- 08.4 -------------------------------------------------------------------------------------------------------------


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


def _how_often(shape, size, stride, padding):
    channels, height, width = shape
    down = (height + 2 * padding - size) // stride + 1
    across = (width + 2 * padding - size) // stride + 1
    return col2im(np.ones((channels * size * size, down * across)), shape, size, stride, padding)


def _the_last_one_wins(columns, shape, size, stride, padding):
    channels, height, width = shape
    numbers = np.pad(np.arange(height * width).reshape(height, width), padding, constant_values=-1)
    places = im2col(numbers[None], size, stride, 0).astype(int)
    result = np.zeros((channels, height * width + 1))
    for channel, part in enumerate(columns.reshape(channels, size * size, -1)):
        for stop in range(part.shape[1]):
            result[channel, places[:, stop]] = part[:, stop]
    return result[:, :-1].reshape(shape)


def _plus_equals_at_once(columns, shape, size, stride, padding):
    channels, height, width = shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    places = im2col(np.arange(padded.size).reshape(padded.shape), size, stride, 0)
    padded.reshape(-1)[places] += columns
    return padded[:, padding : padding + height, padding : padding + width]


def _minus_no_padding(columns, shape, size, stride, padding):
    return _border_left_on(columns, shape, size, stride, padding)[:, padding:-padding, padding:-padding]


def _mean_of_the_windows(columns, shape, size, stride, padding):
    return col2im(columns, shape, size, stride, padding) / np.maximum(_how_often(shape, size, stride, padding), 1)


def _border_left_on(columns, shape, size, stride, padding):
    channels, height, width = shape
    return col2im(columns, (channels, height + 2 * padding, width + 2 * padding), size, stride, 0)


def _wrong_corner(columns, shape, size, stride, padding):
    return _border_left_on(columns, shape, size, stride, padding)[:, : shape[1], : shape[2]]


def _stops_close_together(columns, shape, size, stride, padding):
    channels, height, width = shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    down = (height + 2 * padding - size) // stride + 1
    across = (width + 2 * padding - size) // stride + 1
    windows = columns.reshape(channels, size, size, down, across)
    for i in range(down):
        for j in range(across):
            padded[:, i : i + size, j : j + size] += windows[:, :, :, i, j]
    return padded[:, padding : padding + height, padding : padding + width]


# -- 08.5 -------------------------------------------------------------------------------------------------------------


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


def _to_everybody(image, grad, size):
    return np.kron(grad, np.ones((size, size)))


def _as_a_mean(image, grad, size):
    return np.kron(grad, np.ones((size, size))) / size**2


def _the_maximum_itself(image, grad, size):
    return max_pool_backward(image, _blocks(image, size).max((2, 3)), size)


# -- 08.6 -------------------------------------------------------------------------------------------------------------


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


def _norm(
    x,
    running_mean,
    running_var,
    training,
    momentum,
    eps,
    *,
    axes=(0, 2, 3),
    kept_unbiased=True,
    used_unbiased=False,
    in_eval="running",
    moves_in_eval=False,
    eps_outside=False,
    in_training="batch",
    root=True,
):
    """batch_norm with a screw loose."""
    mean, var = x.mean(axis=axes), x.var(axis=axes)
    n = x.size / np.size(mean)
    unbiased = var * n / (n - 1)
    new_mean = (1 - momentum) * running_mean + momentum * mean
    new_var = (1 - momentum) * running_var + momentum * (unbiased if kept_unbiased else var)
    used = running_mean, running_var
    if training and in_training == "moved":
        used = new_mean, new_var
    elif training or in_eval == "batch":
        used = mean, unbiased if used_unbiased else var
    mean, var = (each[..., None, None] if np.ndim(each) else each for each in map(np.asarray, used))
    y = (x - mean) / (np.sqrt(var) + eps if eps_outside else np.sqrt(var + eps) if root else var + eps)
    return (y, new_mean, new_var) if training or moves_in_eval else (y, running_mean, running_var)


def _unbiased_used(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, used_unbiased=True)


def _biased_kept(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, kept_unbiased=False)


def _one_for_all_channels(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, axes=None)


def _each_image_by_itself(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, axes=(2, 3))


def _batch_in_eval(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, in_eval="batch")


def _moves_in_eval(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, moves_in_eval=True)


def _momentum_of_the_old(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, 1 - momentum, eps)


def _never_moves(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps)[0], running_mean, running_var


def _moved_in_training(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, in_training="moved")


def _no_root_of_the_variance(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, root=False)


def _changes_your_arrays(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    y, running_mean[:], running_var[:] = batch_norm(x, running_mean, running_var, training, momentum, eps)
    return y, running_mean, running_var


def _only_y(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return batch_norm(x, running_mean, running_var, training, momentum, eps)[0]


def _eps_outside(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    return _norm(x, running_mean, running_var, training, momentum, eps, eps_outside=True)


def _by_name(function, x, *arguments):
    """The three results with names, so that a message says which of them is wrong."""
    given = x, *arguments[:2]
    before = copy.deepcopy(given)
    results = function(x, *arguments)
    if not isinstance(results, (tuple, list)) or len(results) != 3:
        return results
    changed = [
        name
        for name, array, copied in zip(("x", "running_mean", "running_var"), given, before)
        if not np.array_equal(array, copied)
    ]
    if changed:
        return Told(f"new numbers in the {' and the '.join(changed)} that it was given")
    return dict(zip(("y", "running_mean", "running_var"), results))


# -- 08.8 -------------------------------------------------------------------------------------------------------------


def residual_block(x, conv1, bn1, conv2, bn2):
    """relu(x + f(x)), where f is conv1, bn1, relu, conv2, bn2 in this order."""
    f = T.relu(bn1(conv1(x)))
    f = bn2(conv2(f))
    return T.relu(x + f)


def _no_shortcut(x, conv1, bn1, conv2, bn2):
    return T.relu(bn2(conv2(T.relu(bn1(conv1(x))))))


def _relu_before_adding(x, conv1, bn1, conv2, bn2):
    return x + _no_shortcut(x, conv1, bn1, conv2, bn2)


def _no_relu_at_the_end(x, conv1, bn1, conv2, bn2):
    return x + bn2(conv2(T.relu(bn1(conv1(x)))))


def _no_relu_inside(x, conv1, bn1, conv2, bn2):
    return T.relu(x + bn2(conv2(bn1(conv1(x)))))


def _adds_the_inner_one(x, conv1, bn1, conv2, bn2):
    f = T.relu(bn1(conv1(x)))
    return T.relu(f + bn2(conv2(f)))


def _f_twice(x, conv1, bn1, conv2, bn2):
    x = bn2(conv2(T.relu(bn1(conv1(x)))))
    return T.relu(x + x)


def _a_relu_too_many(x, conv1, bn1, conv2, bn2):
    return T.relu(x + _no_shortcut(x, conv1, bn1, conv2, bn2))


def _block_on_numbers(x, conv1, bn1, conv2, bn2):
    return T.Tensor(residual_block(x, conv1, bn1, conv2, bn2).data)


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


# -- 08.9 -------------------------------------------------------------------------------------------------------------


def block_parameters(in_channels, out_channels, stride):
    """How many parameters BasicBlock(in_channels, out_channels, stride) has."""
    count = out_channels * in_channels * 3 * 3 + 2 * out_channels
    count += out_channels * out_channels * 3 * 3 + 2 * out_channels
    if stride != 1 or in_channels != out_channels:
        count += out_channels * in_channels + 2 * out_channels
    return count


def _conv_biases(in_channels, out_channels, stride):
    convolutions = 3 if stride != 1 or in_channels != out_channels else 2
    return block_parameters(in_channels, out_channels, stride) + convolutions * out_channels


def _without_norms(in_channels, out_channels, stride):
    convolutions = 3 if stride != 1 or in_channels != out_channels else 2
    return block_parameters(in_channels, out_channels, stride) - convolutions * 2 * out_channels


def _without_downsample(in_channels, out_channels, stride):
    return (
        block_parameters(in_channels, in_channels, 1)
        if in_channels == out_channels
        else (block_parameters(in_channels, out_channels, stride) - out_channels * in_channels - 2 * out_channels)
    )


def _downsample_by_stride_alone(in_channels, out_channels, stride):
    return (
        block_parameters(in_channels, out_channels, stride)
        if stride != 1
        else (_without_downsample(in_channels, out_channels, stride))
    )


def _downsample_if_both(in_channels, out_channels, stride):
    both = stride != 1 and in_channels != out_channels
    return (block_parameters if both else _without_downsample)(in_channels, out_channels, stride)


def _one_norm_number(in_channels, out_channels, stride):
    convolutions = 3 if stride != 1 or in_channels != out_channels else 2
    return block_parameters(in_channels, out_channels, stride) - convolutions * out_channels


def _no_norm_on_the_shortcut(in_channels, out_channels, stride):
    changes = stride != 1 or in_channels != out_channels
    return block_parameters(in_channels, out_channels, stride) - 2 * out_channels * changes


def _always_downsample(in_channels, out_channels, stride):
    return block_parameters(in_channels, out_channels, 2)


def _running_statistics_too(in_channels, out_channels, stride):
    convolutions = 3 if stride != 1 or in_channels != out_channels else 2
    return block_parameters(in_channels, out_channels, stride) + convolutions * 2 * out_channels


def _both_from_the_input(in_channels, out_channels, stride):
    return block_parameters(in_channels, out_channels, stride) + 9 * out_channels * (in_channels - out_channels)


STEPS = np.array([[[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [4.0, 0.0, 1.0]]])
CORNER = np.array([[[[1.0, 2.0], [0.0, -1.0]]]])
TIES = np.array([[3.0, 3.0, 0.0, 1.0], [3.0, 1.0, 2.0, 2.0]])

EXERCISES = (
    Exercise(
        "08.1",
        "How large is the output?",
        "Write `conv_output_size(size, kernel, stride, padding)`: at how many "
        "places a kernel `kernel` pixels long stops along an image `size` pixels long, with `padding` zeros at *each* "
        "end and steps of `stride`. Use the panel to try your formula before you check it.",
        5,
        1,
        conv_output_size,
        hints=(
            "Begin without stride and padding. A kernel of 3 on 8 pixels: the window can start at pixel 0, 1, ... "
            "up to which? Then how many starts are that?",
            "Padding makes the image longer by `2 * padding`. The last possible start is then `size + 2 * padding - "
            "kernel`. With a stride of s only every s-th start is used, and start 0 always is.",
            "`(size + 2 * padding - kernel) // stride + 1`",
        ),
        cases=((8, 3, 1, 0), (8, 3, 1, 1), (8, 3, 2, 1), (7, 3, 2, 0), (32, 7, 2, 3), (5, 5, 3, 0), (8, 1, 2, 0)),
        mistakes=(
            Mistake("padding at one end", _one_end, "The zeros stand at both ends, so they count twice.", 2),
            Mistake(
                "one too few",
                _fence_posts,
                "A fence of 3 metres with a post at each metre has 4 posts: the first start, 0, counts too.",
                1,
            ),
            Mistake("rounded up", _rounded_up, "A window that would hang over the end is left out: round down.", 2),
            Mistake("not rounded", _not_rounded, "Half a stop is no stop: divide with `//`.", 3),
            Mistake(
                "one added too early",
                _one_at_the_end_divided,
                "Divide the last start by the stride, and add 1 after that.",
                2,
            ),
        ),
        run=_whole,
        explain='A 3 x 3 kernel with padding 1 keeps the size ("same"); with stride 2 besides, it halves it.',
    ),
    Exercise(
        "08.2",
        "A convolution with loops",
        "Write `conv2d(image, kernels, stride, padding)` for an image [C, H, W] "
        "and kernels [O, C, K, K]. Put `padding` zeros around each channel (`np.pad`). Then for every kernel and "
        "every stop: multiply the window, *all channels of it*, by the kernel and add everything up. The result is "
        "[O, H', W']. Slow and clear is what we want here.",
        12,
        2,
        conv2d,
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
        ),
        mistakes=(
            Mistake(
                "channels padded",
                _pads_the_channels,
                "`np.pad(image, padding)` puts zeros before and behind "
                "the channels too. Say for each axis what it gets: none for the channels.",
                2,
            ),
            Mistake(
                "as wide as high",
                _as_wide_as_high,
                "The output is as wide as it is high. An image need not be square: compute W' from W.",
                1,
            ),
            Mistake(
                "one stop too few",
                _one_stop_too_few,
                "The last row and column of stops are missing: from start "
                "0 to the last start there is one stop more than steps, as in 08.1.",
                1,
            ),
            Mistake(
                "flipped kernel",
                _flipped,
                "The kernel is flipped, as in the convolution of mathematics. Deep "
                "learning says convolution and means cross-correlation: the kernel as it is, its upper left number "
                "on the window's upper left pixel.",
                3,
            ),
            Mistake("kernel on its side", _turned, "Rows and columns of the kernel are swapped.", 3),
            Mistake(
                "no stride", _no_stride, "The stride is ignored: the kernel stops at every `stride`-th pixel only.", 1
            ),
            Mistake(
                "stride in the size alone",
                _stride_only_in_the_size,
                "The output has the right size, but the "
                "windows start one pixel apart. That of row i starts at row `i * stride`.",
                1,
            ),
            Mistake("no padding", _no_padding, "The padding is ignored: there should be zeros around the image.", 2),
            Mistake(
                "one channel",
                _first_channel,
                "Only the first channel is used. A kernel has a K x K part for each "
                "channel, and all the products go into one sum.",
                2,
            ),
            Mistake(
                "one kernel", _first_kernel, "Every output channel got the first kernel; number o has `kernels[o]`.", 3
            ),
            Mistake("mean", _mean_of_the_window, "That is the mean of the products. It should be their sum.", 3),
        ),
    ),
    Exercise(
        "08.3",
        "im2col",
        "Write `im2col(image, size, stride, padding)`: every window of an image [C, H, W] as a "
        "column, in a matrix [C * size * size, number of stops]. Down a column come the window's numbers in the order "
        "in which `kernels[o].ravel()` has its own (channel, row, column); the columns follow the stops row by row. "
        "Loops are allowed; `sliding_window_view` needs none.",
        12,
        3,
        im2col,
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
        ),
        mistakes=(
            Mistake(
                "reshape alone",
                _reshaped_only,
                "The shape is right and the numbers are in the wrong places: "
                "reshape keeps the order in memory. Move the axes with transpose first.",
                2,
            ),
            Mistake("windows as rows", _windows_as_rows, "The windows are rows here, and should be columns.", 1),
            Mistake(
                "channels inside",
                _channels_inside,
                "With more than one channel the rows are mixed up: first all "
                "numbers of channel 0, then those of channel 1, as in `kernels[o].ravel()`.",
                2,
            ),
            Mistake("windows on their side", _window_turned, "Inside each window rows and columns are swapped.", 2),
            Mistake(
                "no stride",
                _columns_without_stride,
                "There are too many columns: keep every stride-th stop, down and across.",
                2,
            ),
            Mistake("no padding", _columns_without_padding, "The border of zeros is missing.", 1),
        ),
        run=_array,
        explain="`np.shares_memory(windows, padded)` is true up to the reshape: the view repeats no number. Only the "
        "reshape copies.",
    ),
    Exercise(
        "08.4",
        "The way back: col2im",
        "Write `col2im(columns, shape, size, stride, padding)`: `columns` [C * size * "
        "size, stops] holds a gradient for every number in im2col's matrix. Give every pixel of an image of `shape` "
        "(C, H, W) the sum of the gradients of its copies. Copies of padding are dropped.",
        12,
        3,
        col2im,
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
        ),
        mistakes=(
            Mistake(
                "overwrites",
                _the_last_one_wins,
                "A pixel that several windows see keeps only the last one's gradient. Add: `+=`, one window at a time.",
                3,
            ),
            Mistake(
                "all at once",
                _plus_equals_at_once,
                "`array[places] += columns` is the trap of the text: of "
                "several copies only the last one is written. Go window by window, or use np.add.at.",
                3,
            ),
            Mistake(
                "minus no padding",
                _minus_no_padding,
                "With padding 0 the slice `padding:-padding` is `0:0`, "
                "which is empty. `padding:padding + H` cuts the border off for any padding.",
                3,
            ),
            Mistake(
                "mean",
                _mean_of_the_windows,
                "That is the mean over the windows. Each copy of a pixel adds its "
                "own share to the loss, so the gradients add up.",
                1,
            ),
            Mistake("border", _border_left_on, "The border of zeros is still on: return `shape`, without padding.", 3),
            Mistake(
                "wrong corner",
                _wrong_corner,
                "The shape is right, but it was cut at the wrong end. The image "
                "starts `padding` rows and columns into the padded one.",
                3,
            ),
            Mistake(
                "no stride",
                _stops_close_together,
                "The windows are put down one pixel apart; stop (i, j) begins "
                "at row `i * stride`, column `j * stride`.",
                3,
            ),
        ),
        run=_array,
    ),
    Exercise(
        "08.5",
        "Backward through a maximum",
        "Write `max_pool_backward(image, grad, size)`. Forward, the image [H, W] "
        "was cut into windows of size x size side by side, and of each only the largest number went on. `grad` [H / "
        "size, W / size] is the gradient of these; return that of the image. Among equals the first one, in reading "
        "order, has won.",
        8,
        2,
        max_pool_backward,
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
                "The gradient was shared by equals. That is what T.max and "
                "torch.amax do; a pooling window picks one winner, the first.",
                2,
            ),
            Mistake("last of equals", _last_of_equals, "Among equals the last one got it; the first one should.", 2),
            Mistake(
                "everybody",
                _to_everybody,
                "Every pixel of the window got the gradient. Those that lost could "
                "change a little and nobody would notice: their gradient is 0.",
                1,
            ),
            Mistake("mean", _as_a_mean, "That is the gradient of average pooling.", 1),
            Mistake(
                "the maximum", _the_maximum_itself, "The winner gets the gradient `grad[i, j]`, not its own value.", 3
            ),
        ),
        run=_array,
    ),
    Exercise(
        "08.6",
        "Batch norm in two modes",
        "Write `batch_norm(x, running_mean, running_var, training, momentum=0.1, "
        "eps=1e-5)` for x [N, C, H, W]. For every channel: subtract a mean and divide by the root of (a variance + "
        "eps). In training these are the batch's own, with the *biased* variance; and the running statistics move: "
        "(1 - momentum) of the old plus momentum of the batch's, with the *unbiased* variance. In evaluation the "
        "running statistics are used, and stay. Return (y, running_mean, running_var), without changing the arrays "
        "you were given.",
        12,
        3,
        batch_norm,
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
        ),
        mistakes=(
            Mistake(
                "unbiased used",
                _unbiased_used,
                "The batch was normalized with the unbiased variance. To "
                "normalize, divide by n (what `x.var` does); n - 1 is for the running variance alone.",
                2,
            ),
            Mistake(
                "biased kept",
                _biased_kept,
                "y is right. The running variance should move towards the unbiased "
                "variance: it will have to speak for images outside this batch.",
                2,
            ),
            Mistake(
                "one for all channels",
                _one_for_all_channels,
                "There is one mean for everything. Each channel has its own: leave axis 1 out.",
                1,
            ),
            Mistake(
                "each image by itself",
                _each_image_by_itself,
                "Each image was normalized by itself (that is "
                "instance norm). Batch norm takes the mean over axis 0 too.",
                1,
            ),
            Mistake(
                "batch in evaluation",
                _batch_in_eval,
                "In evaluation the batch's own statistics were used. Then "
                "the answer for an image would depend on the company it comes in.",
                3,
            ),
            Mistake(
                "moves in evaluation",
                _moves_in_eval,
                "In evaluation nothing is learned: the running statistics stay as they are.",
                3,
            ),
            Mistake(
                "momentum of the old",
                _momentum_of_the_old,
                "Here momentum is the weight of the *batch*, as in "
                "torch: running = 0.9 * running + 0.1 * batch. (In other places it is the weight of the old.)",
                3,
            ),
            Mistake("never moves", _never_moves, "The running statistics have not moved. In training they do.", 3),
            Mistake(
                "moved in training",
                _moved_in_training,
                "In training the batch was normalized with the running "
                "statistics. They are for evaluation; in training take the batch's own mean and variance.",
                3,
            ),
            Mistake(
                "no root",
                _no_root_of_the_variance,
                "The root is missing: divide by the standard deviation, not by the variance.",
                3,
            ),
            Mistake(
                "changes your arrays",
                _changes_your_arrays,
                "The arrays that you were given belong to the caller. "
                "`running_mean = ...` makes a new one; `+=` and `[:] =` write into theirs.",
                3,
            ),
            Mistake(
                "only y",
                _only_y,
                "Return three things: y and the two running arrays, also where they stay as they are.",
                3,
            ),
            Mistake("eps outside", _eps_outside, "eps belongs under the root, beside the variance.", 3),
        ),
        run=_by_name,
    ),
    Exercise(
        "08.7",
        "The slope of a shortcut",
        "Three blocks in a row. At some point their insides f have the slopes 0.5, "
        "0 and -0.2 (a dead relu made the 0). What is the slope of the last block's output for the first one's input, "
        "if each block is y = f(x), and if each is y = x + f(x)? A tuple: (plain, residual).",
        3,
        1,
        (0.0, 1.2),
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
    ),
    Exercise(
        "08.8",
        "A residual block",
        "Write `residual_block(x, conv1, bn1, conv2, bn2)`: f is conv1, bn1, relu, conv2, "
        "bn2 one after the other; add x to it, and take the relu of the sum. x is a Tensor, the other four are called "
        "like functions, and relu is `T.relu`.",
        5,
        1,
        residual_block,
        hints=(
            "Write f first: `bn2(conv2(T.relu(bn1(conv1(x)))))`.",
            "There are two relus, one inside f and one around the sum: `T.relu(x + f)`.",
        ),
        cases=(
            ([1.0, -3.0, 2.0], double, minus_one, negate, plus_three),
            ([0.25, -1.0, 4.0], negate, plus_three, double, minus_one),
            ([-2.0, 1.0, -0.5], double, plus_three, minus_one, negate),
        ),
        mistakes=(
            Mistake("no shortcut", _no_shortcut, "x itself is not added: that is a plain block.", 2),
            Mistake(
                "relu before the sum",
                _relu_before_adding,
                "The relu has to come after the sum. In this order f could only ever add to x, never take away.",
                2,
            ),
            Mistake("no relu at the end", _no_relu_at_the_end, "The relu of the sum is missing.", 2),
            Mistake(
                "no relu inside",
                _no_relu_inside,
                "The relu inside f is missing. Without it conv2 after conv1 is only one linear map in two parts.",
                1,
            ),
            Mistake(
                "adds the inner one",
                _adds_the_inner_one,
                "The shortcut starts at x, before conv1. A name that is used twice (`x = conv1(x)`) loses it.",
                1,
            ),
            Mistake(
                "f twice",
                _f_twice,
                "That is f plus f. The name x was used for the result of f, and what came in "
                "was lost: give f a name of its own.",
                1,
            ),
            Mistake(
                "a relu too many",
                _a_relu_too_many,
                "There is a relu behind bn2, before the sum. There f could "
                "only ever add to x, never take away: one relu inside f and one around the sum are all.",
                2,
            ),
            Mistake(
                "without a past",
                _block_on_numbers,
                "The numbers are right, but no gradient comes back to x: "
                "compute with the Tensors themselves, not with their .data.",
                1,
            ),
        ),
        run=_block_and_gradient,
    ),
    Exercise(
        "08.9",
        "Count a block",
        "Write `block_parameters(in_channels, out_channels, stride)`: how many parameters a "
        "block of ResNet has. It has two 3 x 3 convolutions without bias, the first from in_channels to out_channels, "
        "the second from out_channels to out_channels, and a batch norm after each, with a weight and a bias a "
        "channel. Where the shape changes, because stride is not 1 or the channels differ, x goes through a 1 x 1 "
        "convolution without bias and another batch norm before it is added.",
        6,
        2,
        block_parameters,
        hints=(
            "A convolution from a to b channels has a kernel [a, 3, 3] for each of b outputs: b * a * 9 numbers.",
            "A batch norm of b channels has 2 * b parameters. Its running statistics are not trained.",
            "The shortcut, where there is one, has b * a numbers in its convolution and 2 * b in its batch norm: "
            "`if stride != 1 or in_channels != out_channels:`.",
        ),
        cases=((64, 64, 1), (64, 128, 2), (16, 16, 2), (3, 8, 1)),
        mistakes=(
            Mistake(
                "convolution biases",
                _conv_biases,
                "These convolutions have no bias: the batch norm behind each would subtract it again.",
                1,
            ),
            Mistake("no batch norms", _without_norms, "The batch norms are missing, 2 parameters a channel each.", 2),
            Mistake(
                "no downsample",
                _without_downsample,
                "Where the shape changes, the shortcut has parameters of its own.",
                3,
            ),
            Mistake(
                "by stride alone",
                _downsample_by_stride_alone,
                "With stride 1 the shape changes too where the channels differ: 3 channels cannot be added to 8.",
                3,
            ),
            Mistake(
                "only if both",
                _downsample_if_both,
                "One of the two is enough: a stride that is not 1, *or* channels that differ.",
                3,
            ),
            Mistake(
                "one number a channel",
                _one_norm_number,
                "A batch norm has two parameters a channel, a weight and a bias.",
                2,
            ),
            Mistake(
                "shortcut without norm",
                _no_norm_on_the_shortcut,
                "The shortcut's convolution has a batch norm behind it too.",
                3,
            ),
            Mistake(
                "always a downsample",
                _always_downsample,
                "The shortcut only has parameters where the shape changes.",
                3,
            ),
            Mistake(
                "running statistics",
                _running_statistics_too,
                "Running means and variances are measured, not trained: they are no parameters.",
                2,
            ),
            Mistake(
                "both from the input",
                _both_from_the_input,
                "The second convolution gets what the first one made: it goes from out_channels to out_channels.",
                1,
            ),
        ),
    ),
)
