"""The solutions of chapter 04 against torch and NumPy, on other numbers than those of the exercises."""

import itertools

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_04 import exercises as chapter_04
from mlx_grpo_kit.tensor import Tensor

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


@pytest.mark.parametrize("a", SHAPES, ids=str)
@pytest.mark.parametrize("b", SHAPES, ids=str)
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("id", ["04.3", "04.4", "04.5", "04.6", "04.7"])
def test_other_right_answers_pass(id):
    def with_numpys_own(a, b):
        try:
            return list(np.broadcast_shapes(a, b))
        except ValueError:
            return None

    def in_one_sum(grad, shape):
        new = grad.ndim - len(shape)
        axes = (*range(new), *(new + axis for axis, size in enumerate(shape) if size == 1))
        return grad.sum(axis=axes, keepdims=True).reshape(shape)

    def by_adding_zeros(grad, shape, axis, keepdims):
        return np.zeros(shape) + (grad if keepdims else np.expand_dims(grad, axis))

    def by_indices(grad, a, b):
        return [np.einsum("ij,kj->ik", grad, b), np.einsum("ik,ij->kj", a, grad)]

    def under_no_grad(parameters, compute_loss, learning_rate):
        from mlx_grpo_kit.tensor import no_grad

        loss = compute_loss()
        for p in parameters:
            p.grad = None
        loss.backward()
        with no_grad():
            for p in parameters:
                p -= learning_rate * p.grad
        return float(loss.data)

    answers = {
        "04.3": with_numpys_own,
        "04.4": in_one_sum,
        "04.5": by_adding_zeros,
        "04.6": by_indices,
        "04.7": under_no_grad,
    }
    assert check(id, answers[id]), check(id, answers[id])


def test_the_cases_of_unbroadcast_distinguish_the_mistakes():
    """No two of the named mistakes give the same results in all cases, so each gets its own message."""
    for id in ("04.3", "04.4", "04.5", "04.6", "04.7"):
        exercise = find(id)
        results = [
            [repr(exercise.try_out(mistake.wrong, case)) for case in exercise.cases] for mistake in exercise.mistakes
        ]
        for first, second in itertools.combinations(range(len(results)), 2):
            assert results[first] != results[second], (exercise.mistakes[first].name, exercise.mistakes[second].name)


def fits_if_divisible(a, b):
    longest = max(len(a), len(b))
    pairs = list(zip((1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b, strict=True))
    return tuple(map(max, pairs)) if all(max(pair) % min(pair) == 0 for pair in pairs) else None


def squeezed(grad, shape, axis, keepdims):
    return np.broadcast_to(np.expand_dims(np.squeeze(grad), axis), shape)


def repeated_until_it_fits(grad, shape, axis, keepdims):
    return np.resize(grad, shape)


def spoils_grad(grad, shape):
    result = chapter_04.unbroadcast(grad, shape)
    grad *= 0
    return result


BUFFERS = {}


def into_one_buffer(grad, shape):
    buffer = BUFFERS.setdefault(shape, np.empty(shape))
    buffer[...] = chapter_04.unbroadcast(grad, shape)
    return buffer


def without_backward(parameters, compute_loss, learning_rate):
    for p in parameters:
        p.grad = None
    loss = compute_loss()
    for p in parameters:
        p.data -= learning_rate * p.grad
    return loss.item()


def clears_after_the_update(parameters, compute_loss, learning_rate):
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p.data -= learning_rate * p.grad
    for p in parameters:
        p.grad = None
    return loss.item()


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("04.3", lambda a, b: (np.zeros(a) + np.zeros(b)).shape, "Here the answer is None"),
        (
            "04.3",
            lambda a, b: chapter_04.broadcast_shape(a, b) or False,
            "expected None, because they do not fit.",
        ),
        ("04.3", fits_if_divisible, "only a 1 is stretched"),
        ("04.3", lambda a, b: None if (a, b) == ((4, 3), (3, 4)) else a, "expected"),
        ("04.3", lambda a, b: chapter_04.broadcast_shape(a, b) or None, "Python counts an empty tuple as false"),
        ("04.4", lambda grad, shape: grad.sum(), "gave 21 of shape ()"),
        ("04.4", into_one_buffer, "a later call wrote over it"),
        ("04.4", spoils_grad, "new numbers in what it was given"),
        ("04.5", lambda *given: chapter_04._never_from_the_end(*given), "-1 is the last"),
        ("04.5", squeezed, "`squeeze` removes *every* axis of length 1"),
        (
            "04.5",
            repeated_until_it_fits,
            "`sum_backward(array([1, 2]), (2, 3), 1, False)` gave array([[1, 2, 1], [2, 1, 2]])",
        ),
        ("04.7", clears_after_the_update, "Clear them before backward, not after the update"),
        ("04.7", without_backward, "A gradient was None at the update"),
        ("04.7", lambda parameters, compute_loss, learning_rate: compute_loss, "as the loss, expected"),
    ],
)
def test_slips_get_their_messages(id, answer, words):
    note = check(id, answer)
    assert not note
    assert words in note.text
