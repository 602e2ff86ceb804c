"""The solutions of chapter 08 against torch, and the claims of its prose."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
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
