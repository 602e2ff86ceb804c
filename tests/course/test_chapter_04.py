"""The solutions of chapter 04 against torch and NumPy, on other numbers than those of the exercises."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_04 import exercises as chapter_04
from mlx_grpo_kit.tensor import Tensor
from tests.every import every

SHAPES = [(), (1,), (4,), (3, 1), (3, 4), (2, 1, 4), (2, 3, 1), (5, 1, 1), (1, 4), (4, 3), (6,), (2, 6)]


def torchs(function, grad, *arrays):
    """The gradients of function(*arrays) that torch finds, started with `grad`."""
    leaves = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    function(*leaves).backward(torch.tensor(grad))
    return [leaf.grad.numpy() for leaf in leaves]


def test_the_shapes_to_predict_agree_with_numpy():
    x = np.zeros((2, 3, 4))
    assert find("04.1").solution == (
        x.sum(axis=0).shape,
        x.sum(axis=1).shape,
        x.sum(axis=1, keepdims=True).shape,
        x.sum(axis=(0, 2)).shape,
    )
    fits = []
    for pair in (((3, 1), (1, 5)), ((6,), (2, 6)), ((2, 6), (2,)), ((4, 1, 2), (3, 1))):
        assert all(str(shape) in find("04.2").prompt for shape in pair)
        try:
            fits.append(np.broadcast_shapes(*pair))
        except ValueError:
            fits.append(None)
    assert find("04.2").solution == tuple(fits)


@every("a", SHAPES, ids=str)
@every("b", SHAPES, ids=str)
def test_broadcast_shape_and_unbroadcast(a, b):
    try:
        expected = tuple(torch.broadcast_shapes(a, b))
    except RuntimeError:
        assert chapter_04.broadcast_shape(a, b) is None
        return
    assert chapter_04.broadcast_shape(a, b) == expected
    rng = np.random.default_rng(1)
    grad = rng.normal(size=expected)
    for shape, gradient in zip((a, b), torchs(torch.add, grad, np.zeros(a), np.zeros(b)), strict=True):
        assert np.shape(chapter_04.unbroadcast(grad, shape)) == shape
        np.testing.assert_allclose(chapter_04.unbroadcast(grad, shape), gradient)


@every(
    ("shape", "axis", "keepdims"),
    [
        (shape, axis, keepdims)
        for shape in ((5,), (2, 3), (3, 3), (2, 3, 4))
        for axis in (*range(len(shape)), -1)
        for keepdims in (False, True)
    ],
    ids=str,
)
def test_the_backward_pass_of_a_sum(shape, axis, keepdims):
    rng = np.random.default_rng(2)
    x = rng.normal(size=shape)
    grad = rng.normal(size=x.sum(axis=axis, keepdims=keepdims).shape)
    [expected] = torchs(lambda t: t.sum(dim=axis, keepdim=keepdims), grad, x)
    np.testing.assert_allclose(chapter_04.sum_backward(grad, shape, axis, keepdims), expected)


@pytest.mark.parametrize(("n", "k", "m"), [(2, 3, 4), (3, 3, 3), (1, 5, 2), (4, 1, 1)])
def test_the_gradient_of_a_matrix_product(n, k, m):
    rng = np.random.default_rng(3)
    a, b, grad = rng.normal(size=(n, k)), rng.normal(size=(k, m)), rng.normal(size=(n, m))
    for mine, expected in zip(chapter_04.matmul_backward(grad, a, b), torchs(torch.matmul, grad, a, b), strict=True):
        np.testing.assert_allclose(mine, expected)


def test_a_training_step_equals_torchs():
    x, y = np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]]), np.array([[1.0], [0.0], [-2.0]])
    start = [np.array([[0.3], [-0.2]]), np.array([0.1])]
    own = [Tensor(array, requires_grad=True) for array in start]
    theirs = [torch.tensor(array, requires_grad=True) for array in start]
    optimizer = torch.optim.SGD(theirs, lr=0.1)
    for _ in range(4):
        mine = chapter_04.train_step(own, lambda: ((x @ own[0] + own[1] - y) ** 2).mean(), 0.1)
        optimizer.zero_grad()
        loss = ((torch.tensor(x) @ theirs[0] + theirs[1] - torch.tensor(y)) ** 2).mean()
        loss.backward()
        optimizer.step()
        assert mine == pytest.approx(loss.item())
    for tensor, expected in zip(own, theirs, strict=True):
        np.testing.assert_allclose(tensor.data, expected.detach())
