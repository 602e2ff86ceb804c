"""Chapter 05: its solutions against torch."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_05 import exercises as chapter_05


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def torch_gradients(function, g, *arrays):
    tensors = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    function(*tensors).backward(torch.tensor(g, dtype=torch.float64))
    return [tensor.grad.numpy() for tensor in tensors]


def test_silu():
    x, g = np.array([0.0, 1.0, -1.0, 5.0, -20.0]), numbers(5)
    tensor = T.Tensor(x, requires_grad=True)
    out = chapter_05.silu(tensor)
    out.backward(g)
    np.testing.assert_allclose(out.data, F.silu(torch.tensor(x)), rtol=1e-12)
    np.testing.assert_allclose(tensor.grad, torch_gradients(F.silu, g, x)[0], rtol=1e-9)


def test_max_backward_with_and_without_ties():
    for x in (numbers(5, 4), np.round(numbers(6, 6)), np.zeros((3, 2))):
        g = numbers(len(x), seed=1)
        np.testing.assert_allclose(chapter_05.max_backward(g, x), torch_gradients(lambda x: x.amax(1), g, x)[0])


def test_softmax_backward():
    logits, g = 3 * numbers(4, 7), numbers(4, 7, seed=1)
    p = torch.softmax(torch.tensor(logits), 1).numpy()
    expected = torch_gradients(lambda x: torch.softmax(x, 1), g, logits)[0]
    np.testing.assert_allclose(chapter_05.softmax_backward(g, p), expected, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm_backward(scale):
    x, g = scale * numbers(4, 5), numbers(4, 5, seed=1)
    [expected] = torch_gradients(lambda x: F.rms_norm(x, (5,), eps=1e-6), g, x)
    np.testing.assert_allclose(chapter_05.rms_norm_backward(g, x), expected, rtol=1e-9, atol=1e-12 / scale)


def test_logsumexp():
    x = np.concatenate([numbers(3, 5), 1000 + numbers(1, 5), numbers(1, 5) - 1000, 1e4 * numbers(2, 5)])
    np.testing.assert_allclose(chapter_05.logsumexp(x), torch.logsumexp(torch.tensor(x), 1), rtol=1e-14)


def test_cross_entropy_backward():
    logits, targets = 5 * numbers(6, 4), np.array([0, 3, 3, 1, 2, 0])
    expected = torch_gradients(lambda x: F.cross_entropy(x, torch.tensor(targets)), 1.0, logits)[0]
    np.testing.assert_allclose(chapter_05.cross_entropy_backward(logits, targets), expected, atol=1e-14)


def test_root_or_zero():
    numbers = np.array([4.0, 0.0, -3.0, 1e-8, 2.25])
    x = T.Tensor(numbers, requires_grad=True)
    out = chapter_05.root_or_zero(x)
    out.sum().backward()
    np.testing.assert_allclose(out.data, [2.0, 0.0, 0.0, 1e-4, 1.5])
    h = 1e-5 * np.maximum(np.abs(numbers), 1e-9)
    measured = (np.sqrt(np.maximum(numbers + h, 0)) - np.sqrt(np.maximum(numbers - h, 0))) / (2 * h)
    np.testing.assert_allclose(x.grad, np.where(numbers > 0, measured, 0), rtol=1e-8)


def test_pow_backward_at_every_pair_of_edges():
    pairs = list(itertools.product([0.0, 1.0, -1.0, 2.0, -2.0, 0.5], [0.0, 1.0, -1.0, 2.0, -3.0, 0.5]))
    base, exponent = np.array(pairs).T
    g = numbers(len(pairs))
    with np.errstate(all="ignore"):
        ours = chapter_05.pow_backward(g, base, exponent)
    for got, expected in zip(ours, torch_gradients(torch.pow, g, base, exponent), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_rule_of_ones_own_is_a_function_too():
    def s(x):
        return 1 / (1 + np.exp(-x))

    kits = T.RULES.copy()
    try:

        @T.rule(x=lambda g, x: g * s(x) * (1 + x * (1 - s(x))))
        def my_silu(x):
            return x * s(x)
    finally:
        T.RULES.clear()
        T.RULES.update(kits)
    assert check("05.1", my_silu)
