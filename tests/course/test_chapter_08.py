"""The solutions of chapter 08 against torch, and the claims of its prose."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_08 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_08.twins import torch_resnet
from mlx_grpo_kit.course.digits import load_digits
from mlx_grpo_kit.tensor import nn
from mlx_grpo_kit.tensor.resnet import BasicBlock, ResNet

F = torch.nn.functional
RNG = np.random.default_rng(0)
SETTINGS = [(1, 1, 0), (2, 1, 0), (3, 1, 1), (3, 2, 1), (3, 2, 0), (5, 3, 2), (1, 2, 0)]


def image(*shape):
    return RNG.normal(size=shape)


@pytest.mark.parametrize(("size", "stride", "padding"), SETTINGS)
def test_convolution_im2col_and_back(size, stride, padding):
    x, kernels = image(3, 9, 7), image(4, 3, size, size)
    tx = torch.tensor(x[None], requires_grad=True)
    out = torch.conv2d(tx, torch.tensor(kernels), stride=stride, padding=padding)
    np.testing.assert_allclose(chapter.conv2d(x, kernels, stride, padding), out[0].detach(), atol=1e-12)
    assert [chapter.conv_output_size(length, size, stride, padding) for length in (9, 7)] == list(out.shape[2:])

    columns = chapter.im2col(x, size, stride, padding)
    np.testing.assert_array_equal(columns, F.unfold(tx, size, padding=padding, stride=stride)[0].detach())
    grad = image(*columns.shape)
    np.testing.assert_allclose(
        chapter.col2im(grad, (3, 9, 7), size, stride, padding),
        F.fold(torch.tensor(grad)[None], (9, 7), size, padding=padding, stride=stride)[0],
        atol=1e-12,
    )


@pytest.mark.parametrize("size", [2, 3])
def test_max_pooling_backward_with_ties(size):
    x = RNG.integers(0, 3, (2 * size, 4 * size)).astype(float)  # many equal numbers
    grad = image(2, 4)
    tx = torch.tensor(x[None, None], requires_grad=True)
    torch.max_pool2d(tx, size).backward(torch.tensor(grad[None, None]))
    np.testing.assert_array_equal(chapter.max_pool_backward(x, grad, size), tx.grad[0, 0])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training):
    x, mean, var = image(4, 3, 5, 5), image(3), image(3) ** 2
    before = x.copy(), mean.copy(), var.copy()
    y, new_mean, new_var = chapter.batch_norm(x, mean, var, training, momentum=0.3, eps=1e-3)
    t_mean, t_var = torch.tensor(mean), torch.tensor(var)
    expected = F.batch_norm(torch.tensor(x), t_mean, t_var, training=training, momentum=0.3, eps=1e-3)
    np.testing.assert_allclose(y, expected, atol=1e-12)
    np.testing.assert_allclose(new_mean, t_mean, atol=1e-12)
    np.testing.assert_allclose(new_var, t_var, atol=1e-12)
    for array, copy in zip((x, mean, var), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_the_slope_of_a_shortcut():
    def slope(residual):
        x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        y = x
        for each in (0.5, 0.0, -0.2):
            y = (y if residual else 0) + each * y
        y.backward()
        return x.grad.item()

    assert find("08.7").solution == pytest.approx((slope(False), slope(True)))


def test_the_residual_block_is_the_kits():
    nn.manual_seed(0)
    block = BasicBlock(4, 4).astype(np.float64)
    x = image(2, 4, 5, 5)
    ours = chapter.residual_block(T.Tensor(x), block.conv1, block.bn1, block.conv2, block.bn2)
    np.testing.assert_array_equal(ours.data, block(T.Tensor(x)).data)


@pytest.mark.parametrize(("before", "after", "stride"), [(64, 64, 1), (64, 128, 2), (8, 8, 2), (5, 7, 1)])
def test_parameters_of_a_block(before, after, stride):
    modules = [
        torch.nn.Conv2d(before, after, 3, stride, bias=False),
        torch.nn.BatchNorm2d(after),
        torch.nn.Conv2d(after, after, 3, bias=False),
        torch.nn.BatchNorm2d(after),
    ]
    if stride != 1 or before != after:
        modules += [torch.nn.Conv2d(before, after, 1, stride, bias=False), torch.nn.BatchNorm2d(after)]
    expected = sum(parameter.numel() for module in modules for parameter in module.parameters())
    assert chapter.block_parameters(before, after, stride) == expected
    assert sum(p.data.size for p in BasicBlock(before, after, stride).parameters()) == expected


def test_the_four_numbers_of_the_text():
    x = torch.tensor([1.0, 2, 3, 6])
    assert (x.mean().item(), x.var(correction=0).item(), round(x.var().item(), 2)) == (3, 3.5, 4.67)
    y = F.batch_norm(x[:, None], None, None, training=True)[:, 0]
    assert [round(each, 2) for each in y.tolist()] == [-1.07, -0.53, 0, 1.6]


def test_the_trap_of_the_text_and_the_strides_of_a_view():
    careless, careful = np.zeros(5), np.zeros(5)
    careless[[1, 1, 3]] += 1
    np.add.at(careful, [1, 1, 3], 1)
    assert (careless.tolist(), careful.tolist()) == ([0, 1, 0, 1, 0], [0, 2, 0, 1, 0])
    picture = np.zeros((5, 5))
    windows = np.lib.stride_tricks.sliding_window_view(picture, (3, 3))
    assert (windows.shape, windows.strides) == ((3, 3, 3, 3), (40, 8, 40, 8))
    assert np.shares_memory(windows, picture)


def test_a_1x1_kernel_with_stride_2_ignores_three_quarters_of_the_pixels():
    x = T.Tensor(image(1, 4, 8, 8), requires_grad=True)
    T.sum(T.conv2d(x, image(6, 4, 1, 1), stride=2)).backward()
    assert (x.grad == 0).mean() == 0.75


@pytest.mark.parametrize("seed", range(5))
def test_initial_weights_decide_the_signal_after_24_convolutions(seed):
    """With torch's initial weights, the kit's too, differences and gradients vanish; with He's they do not."""
    images = load_digits().train_images[:32]

    def differences_and_gradients(start):
        nn.manual_seed(seed)
        layers = nn.Sequential(*(nn.Conv2d(8 if i else 1, 8, 3, padding=1) for i in range(24))).astype(np.float64)
        draw = np.random.default_rng(seed)
        for layer in layers if start == "He" else ():
            layer.weight.data[...] = draw.normal(size=layer.weight.shape) * np.sqrt(2 / layer.weight.data[0].size)
            layer.bias.data[...] = 0
        x, spread = T.Tensor(images), []
        for layer in layers:
            x = T.relu(layer(x))
            spread.append(np.sqrt(x.data.var(axis=0).mean()))
        T.sum(T.mul(T.mean(x, axis=(2, 3)), image(32, 8))).backward()
        lengths = [np.linalg.norm(layer.weight.grad) for layer in layers]
        return spread[-1] / spread[0], lengths[0] / lengths[-1]

    spread, gradient = differences_and_gradients("as usual")
    assert spread < 1e-8
    assert gradient < 1e-6
    spread, gradient = differences_and_gradients("He")
    assert spread > 1e-3
    assert 0.05 < gradient < 20


def test_the_small_twin_has_the_names_of_the_kits():
    twin = torch_resnet([4, 8], blocks=2, channels=1)
    nn.manual_seed(0)
    own = ResNet([4, 8], blocks=2, in_channels=1).astype(np.float64)
    own.load_state_dict(twin.state_dict())
    x = image(2, 1, 6, 6)
    np.testing.assert_allclose(own(T.Tensor(x)).data, twin(torch.tensor(x)).detach(), atol=1e-12)


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


def with_add_at(columns, shape, size, stride, padding):
    channels, height, width = shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding))
    places = chapter.im2col(np.arange(padded.size).reshape(padded.shape), size, stride, 0)
    np.add.at(padded.reshape(-1), places, columns)
    return padded[:, padding : padding + height, padding : padding + width]


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


def adds_in_place(x, conv1, bn1, conv2, bn2):
    f = nn.Sequential(conv1, bn1, T.relu, conv2, bn2)(x)
    f += x
    return f.relu()


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("08.1", lambda size, kernel, stride, padding: len(range(0, size + 2 * padding - kernel + 1, stride))),
        ("08.2", a_list_of_sums),
        (
            "08.3",
            lambda image, *settings: torch.nn.functional.unfold(
                torch.tensor(image)[None], settings[0], stride=settings[1], padding=settings[2]
            )[0].numpy(),
        ),
        ("08.4", with_add_at),
        ("08.6", channel_by_channel),
        ("08.7", [0, 1.2]),
        ("08.8", adds_in_place),
    ],
)
def test_right_answers_in_another_style_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


def float32(solution):
    return lambda *given: solution(*given).astype(np.float32)


def whole_numbers(solution):
    return lambda *given: solution(*given).astype(int)


def into_the_image(image, grad, size):
    image[...] = chapter.max_pool_backward(image, grad, size)
    return image


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        (
            "08.1",
            lambda *sizes: float(chapter.conv_output_size(*sizes)),
            "gave 6.0, a float (a length is a whole number",
        ),
        ("08.3", lambda *given: chapter.im2col(*given).tolist(), "gave a list (later cells need a NumPy array"),
        ("08.4", lambda *given: torch.tensor(chapter.col2im(*given)), "gave a Tensor (later cells need a NumPy array"),
        ("08.5", lambda *given: chapter.max_pool_backward(*given).tolist(), "gave a list (later cells"),
        ("08.5", into_the_image, "the right result, but also new numbers in what it was given"),
        ("08.2", float32(chapter.conv2d), "gave an array of float32, which cuts digits off"),
        ("08.2", whole_numbers(chapter.conv2d), "gave an array of int64, which cuts digits off"),
        ("08.3", whole_numbers(chapter.im2col), "gave an array of int64, which cuts digits off"),
        ("08.4", whole_numbers(chapter.col2im), "gave an array of int64, which cuts digits off"),
    ],
)
def test_results_that_would_break_a_later_cell_get_a_message(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text


# -- a layer of one's own ---------------------------------------------------------------------------------------------


def layer_of(function, **parameters):
    """A module whose forward is `function(x, *parameters)`."""

    class Layer(nn.Module):
        def __init__(self):
            for name, value in parameters.items():
                setattr(self, name, T.Tensor(value, requires_grad=True))

        def forward(self, x):
            return function(x, *(getattr(self, name) for name in parameters))

    return Layer()


def twin_of(function, **parameters):
    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in parameters.items():
                setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

        def forward(self, x):
            return function(x, *(getattr(self, name) for name in parameters))

    return Twin()


class Leak(T.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.x, ctx.slope = x, slope
        return np.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad):
        return grad * np.where(ctx.x > 0, 1, ctx.slope), grad * np.where(ctx.x > 0, 0, ctx.x)


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


class Root(T.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = np.sqrt(x)
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        return grad / (2 * ctx.y)


def noise(*shape):
    return np.random.default_rng(3).normal(size=shape)


def leaky_of_one(count):
    return layer_of(Leak.apply, slope=[0.25]), twin_of(torch.nn.functional.prelu, slope=[0.25]), noise(count, 4)


def scaled_by_one_number(count):
    """A parameter of shape ()."""

    def leaky(x, slope):
        return torch.where(x > 0, x, slope * x)

    return layer_of(Leak.apply, slope=0.25), twin_of(leaky, slope=0.25), noise(count, 4)


def scaled_channels(count):
    parameters = {"scale": [1.0, 1.0]}
    twin = twin_of(lambda x, scale: x * scale[:, None, None], **parameters)
    return layer_of(ChannelScale.apply, **parameters), twin, noise(count, 2, 3, 4).astype(np.float32)


def root_mean_square(count):
    """Windows as in pooling, an own operation among the kit's, and examples that have to be positive."""

    def pooled(root, mean):
        return lambda x, weight: root(mean(x * x) * weight * weight)

    ours = pooled(Root.apply, lambda x: T.mean(x.reshape(len(x), 2, 3), axis=2))
    theirs = pooled(torch.sqrt, lambda x: x.reshape(len(x), 2, 3).mean(dim=2))
    return [layer_of(ours, weight=[1.0, 2.0]), twin_of(theirs, weight=[1.0, 2.0]), np.abs(noise(count, 6)) + 0.1]


def with_layers_inside(count):
    """Linear layers around the operation, so that inner modules have parameters."""

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


@pytest.mark.parametrize(
    "answer", [leaky_of_one, scaled_by_one_number, scaled_channels, root_mean_square, with_layers_inside]
)
def test_layers_of_many_kinds_pass(answer):
    note = check("08.10", answer)
    assert note.passed, note


def broken(function=Leak, **changed):
    """`leaky_of_one` with a different forward or backward."""
    own = type("Own", (function,), {name: staticmethod(value) for name, value in changed.items()})

    def answer(count):
        return layer_of(own.apply, slope=[0.25]), *leaky_of_one(count)[1:]

    return answer


def in_place(ctx, x, slope):
    result = Leak.forward(ctx, x.copy(), slope)
    x[...] = result
    return x


def noisy(ctx, x, slope):
    return Leak.forward(ctx, x, slope) + np.random.normal(size=x.shape)


def in_float32(ctx, x, slope):
    return Leak.forward(ctx, x, slope).astype(np.float32)


def a_twin_of_relu(count):
    return leaky_of_one(count)[0], twin_of(lambda x, slope: torch.relu(x) + 0 * slope, slope=[0.25]), noise(count, 4)


def other_names(count):
    return leaky_of_one(count)[0], twin_of(torch.nn.functional.prelu, leak=[0.25]), noise(count, 4)


def without_operation(count):
    layer = layer_of(lambda x, slope: T.relu(x) + slope * (x - T.relu(x)), slope=[0.25])
    return layer, *leaky_of_one(count)[1:]


def an_idle_parameter(count):
    def ours(x, slope, idle):
        return Leak.apply(x, slope) + 0.0 * idle

    def theirs(x, slope, idle):
        return torch.nn.functional.prelu(x, slope) + 0.0 * idle

    parameters = {"slope": [0.25], "idle": [1.0]}
    return layer_of(ours, **parameters), twin_of(theirs, **parameters), noise(count, 4)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda count: leaky_of_one(count)[:2], "instead of three things: layer, twin and x"),
        (lambda count: (Leak, *leaky_of_one(count)[1:]), "a layer that is a type, not an nn.Module"),
        (lambda count: (leaky_of_one(count)[0], Leak, noise(count, 4)), "a twin that is a type, not a torch.nn.Module"),
        (lambda count: (*leaky_of_one(count)[:2], noise(7, 4)), "the first of length 2, one per example"),
        (lambda count: (*leaky_of_one(count)[:2], torch.zeros(count, 4)), "it has to be a NumPy array"),
        (lambda count: (*leaky_of_one(count)[:2], noise(count, 5000)), "an x of 10,000 numbers"),
        (lambda count: (nn.Sequential(T.relu), torch.nn.ReLU(), noise(count, 4)), "a layer without parameters"),
        (without_operation, "a layer made only of the kit's operations"),
        (broken(backward=lambda ctx, grad: (grad, grad * np.minimum(ctx.x, 0))), "a wrong gradient: for x["),
        (broken(backward=lambda ctx, grad: (Leak.backward(ctx, grad)[0], None)), "a wrong gradient: for slope[0]"),
        (broken(backward=lambda ctx, grad: grad), "raised AutogradError"),
        (broken(forward=in_place), "forward writes into an array that other operations use too"),
        (broken(forward=noisy), "a layer that cannot be examined: fn is not deterministic"),
        (broken(forward=in_float32), "an output of float32 for an x of float64"),
        (a_twin_of_relu, "raised LockstepError: Step 1: the loss differs"),
        (other_names, "missing ['slope'], unexpected ['leak']"),
        (an_idle_parameter, "a parameter, `idle`, whose gradient is 0 everywhere"),
    ],
)
def test_a_wrong_layer_gets_the_reason(answer, words):
    note = check("08.10", answer)
    assert not note.passed
    assert words in note.text


def test_numbers_kept_in_the_class_are_those_of_another_call():
    class Keeps(Leak):
        @staticmethod
        def forward(ctx, x, slope):
            return Leak.forward(Keeps, x, slope)

        @staticmethod
        def backward(ctx, grad):
            return Leak.backward(Keeps, grad)

    def answer(count):
        return layer_of(Keeps.apply, slope=[0.25]), *leaky_of_one(count)[1:]

    note = check("08.10", answer)
    assert not note.passed
    assert "a backward that changes when the layer is called again" in note.text


def a_narrow_col2im(columns, shape, size, stride, padding):
    """Stop where the last window ends, so that the pixels after it are missing."""
    channels, *image = shape
    down, across = ((n + 2 * padding - size) // stride for n in image)
    narrow = channels, down * stride + size - 2 * padding, across * stride + size - 2 * padding
    return chapter.col2im(columns, narrow, size, stride, padding)


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        ("08.1", lambda size, kernel, stride, padding: (size + 2 * padding - kernel // 2 * 2 - 1) // stride + 1),
        ("08.2", lambda image, kernels, *rest: chapter.conv2d(image, kernels[:, :, :3, :3], *rest)),
        ("08.4", a_narrow_col2im),
        (
            "08.9",
            lambda before, after, stride: (
                chapter.block_parameters(before, after, stride)
                - (before * after + 2 * after) * (stride == 1 and before > after)
            ),
        ),
    ],
)
def test_answers_that_are_right_only_for_the_usual_sizes(number, answer):
    note = check(number, answer)
    assert not note.passed
    assert "raised" not in note.text


def test_a_norm_in_float32_gets_a_message():
    def answer(x, *rest):
        y, *running = chapter.batch_norm(x, *rest)
        return y.astype(np.float32), *running

    note = check("08.6", answer)
    assert not note.passed
    assert "an array of float32" in note.text


def test_a_norm_that_ignores_training_gets_a_message():
    def answer(x, running_mean, running_var, training, momentum=0.1, eps=1e-5):
        return chapter.batch_norm(x, running_mean, running_var, True, momentum, eps)

    assert "`training` is ignored" in check("08.6", answer).text
