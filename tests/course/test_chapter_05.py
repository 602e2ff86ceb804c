"""Chapter 05: its solutions against torch, other right answers, and messages for slips."""

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


# -- answers that others would give, right ones and slips -------------------------------------------------------------


def max_in_a_loop(g, x):
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        places = np.flatnonzero(row == row.max())
        out[i, places] = g[i] / len(places)
    return out


def softmax_through_jacobians(g, p):
    return np.stack([gi @ (np.diag(pi) - np.outer(pi, pi)) for gi, pi in zip(g, p, strict=True)])


def cross_entropy_with_one_hot(logits, targets):
    return (T.softmax(T.Tensor(logits)).data - np.eye(logits.shape[1])[targets]) / len(targets)


def root_with_the_kits_own(x):
    return T.safe_sqrt(x)


def root_with_a_zero_inside(x):
    return T.sqrt(T.where(x > 0, x, 0.0))  # where's rule filters, so the inf of sqrt at 0 does not pass


def root_of_a_clip(x):
    return T.where(x > 0, T.sqrt(T.clip(x, 1e-12, None)), 0.0)


def rms_norm_with_einsum(g, x, eps=1e-6):
    r = np.sqrt(np.einsum("ij,ij->i", x, x) / x.shape[1] + eps)[:, None]
    return g / r - x * np.einsum("ij,ij->i", g, x)[:, None] / (x.shape[1] * r**3)


def rms_norm_in_a_loop(g, x, eps=1e-6):
    rows = []
    for gi, xi in zip(g, x, strict=True):
        r = np.sqrt((xi**2).mean() + eps)
        rows.append(gi @ (np.eye(len(xi)) / r - np.outer(xi, xi) / (len(xi) * r**3)))
    return rows


def rms_norm_by_torch(g, x, eps=1e-6):
    return torch_gradients(lambda x: F.rms_norm(x, (x.shape[1],), eps=eps), g, x)[0]


def softmax_with_einsum(g, p):
    return g * p - p * np.einsum("ij,ij->i", g, p)[:, None]


def silu_that_saves_x_alone(x):
    class Silu(T.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x / (1 + np.exp(-x))

        @staticmethod
        def backward(ctx, grad):
            s = 1 / (1 + np.exp(-ctx.x))
            return grad * (s + ctx.x * s * (1 - s))

    return Silu.apply(x)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("05.1", silu_that_saves_x_alone),
        ("05.2", max_in_a_loop),
        ("05.3", softmax_with_einsum),
        ("05.4", rms_norm_with_einsum),
        ("05.4", rms_norm_in_a_loop),
        ("05.4", rms_norm_by_torch),
        ("05.5", lambda x: np.logaddexp.reduce(x, axis=1)),
        ("05.6", cross_entropy_with_one_hot),
        ("05.7", root_with_the_kits_own),
        ("05.7", lambda x: T.sqrt(T.where(x > 0, x, 1.0)) * (x > 0)),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_other_right_answers_pass(exercise, answer):
    assert check(exercise, answer)


def silu_with_a_list(x):
    class Silu(T.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * 0.5

    return Silu.apply(x)


def silu_that_spoils_x(x):
    class Silu(T.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x.copy()
            x /= 1 + np.exp(-x)
            return x.copy()

        @staticmethod
        def backward(ctx, grad):
            s = 1 / (1 + np.exp(-ctx.x))
            return grad * s * (1 + ctx.x * (1 - s))

    return Silu.apply(x)


def silu_that_spoils_x_in_backward(x):
    class Silu(T.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x / (1 + np.exp(-x))

        @staticmethod
        def backward(ctx, grad):
            s = 1 / (1 + np.exp(-ctx.x))
            slope = s * (1 + ctx.x * (1 - s))
            ctx.x[...] = 0
            return grad * slope

    return Silu.apply(x)


def max_that_spoils_x(g, x):
    x -= x.max(axis=1, keepdims=True)
    wins = x == 0
    return g[:, None] * wins / wins.sum(axis=1, keepdims=True)


def max_with_a_tolerance(tolerance):
    def max_backward(g, x):
        wins = np.abs(x - x.max(axis=1, keepdims=True)) < tolerance
        return g[:, None] * wins / wins.sum(axis=1, keepdims=True)

    return max_backward


def logsumexp_that_spoils_x(x):
    largest = x.max(axis=1, keepdims=True)
    x -= largest
    return largest[:, 0] + np.log(np.exp(x).sum(axis=1))


def cross_entropy_that_spoils_the_logits(logits, targets):
    logits -= logits.max(axis=1, keepdims=True)
    return cross_entropy_with_one_hot(logits, targets)


def softmax_with_all_jacobians(g, p):
    eye = np.eye(p.shape[1])
    return (g[:, None] @ (p[:, :, None] * (eye - p[:, None]))).squeeze(1)


def norm_that_spoils_g(g, x, eps=1e-6):
    r = np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)
    g -= x / r * (g * x / r).mean(axis=1, keepdims=True)
    return g / r


class KeptOutside(T.Function):
    @staticmethod
    def forward(ctx, x):
        KeptOutside.x = x
        return x / (1 + np.exp(-x))

    @staticmethod
    def backward(ctx, grad):
        s = 1 / (1 + np.exp(-KeptOutside.x))
        return grad * s * (1 + KeptOutside.x * (1 - s))


def logsumexp_with(shift):
    def logsumexp(x):
        m = shift(x)
        return m[:, 0] + np.log(np.exp(x - m).sum(axis=1))

    return logsumexp


def norm_that_is_measured(g, x, eps=1e-6):
    def loss(x):
        return (g * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)).sum()

    def nudge(index):
        step = np.zeros_like(x)
        step[index] = 1e-6
        return (loss(x + step) - loss(x - step)) / 2e-6

    return np.array([nudge(index) for index in np.ndindex(*x.shape)]).reshape(x.shape)


def in_float32(g, x, *eps):
    return chapter_05.rms_norm_backward(g.astype(np.float32), x.astype(np.float32), *eps)


SPOILED = "new numbers in what it was given"


@pytest.mark.parametrize(
    ("exercise", "answer", "words"),
    [
        ("05.1", silu_that_spoils_x, "forward writes into an array that other operations use too"),
        ("05.1", lambda x: KeptOutside.apply(x), "another silu was computed"),
        ("05.1", silu_that_spoils_x_in_backward, "are read-only: other operations use them too"),
        ("05.2", max_that_spoils_x, SPOILED),
        ("05.2", max_with_a_tolerance(2e-3), "A number that is 0.001 smaller is not a winner"),
        ("05.2", max_with_a_tolerance(1e-13), "two numbers that differ only in their last digit"),
        ("05.2", max_with_a_tolerance(1e-6), "two numbers that differ only in their last digit"),
        (
            "05.3",
            lambda g, p: [pi * (gi - gi @ pi) for gi, pi in zip(g, p, strict=True)],
            "a Python loop runs over the rows",
        ),
        ("05.3", softmax_through_jacobians, "each row costs a Jacobian and a pass of a Python loop"),
        ("05.3", softmax_with_all_jacobians, "you still build all Jacobians"),
        ("05.4", lambda g, x, eps=1e-6: g / np.sqrt((x * x).mean(1, keepdims=True) + eps), "as if `r` were a constant"),
        ("05.4", norm_that_spoils_g, SPOILED),
        ("05.5", logsumexp_that_spoils_x, SPOILED),
        ("05.5", logsumexp_with(lambda x: x[:, :1]), "need not be its largest"),
        ("05.5", logsumexp_with(lambda x: np.abs(x).max(axis=1, keepdims=True)), "you get -2000"),
        ("05.5", lambda x: np.logaddexp.reduce(x, axis=1).astype(x.dtype), "expected"),
        ("05.6", lambda x, y: cross_entropy_with_one_hot(np.clip(x, -50, 50), y), "expected"),
        ("05.6", lambda x, y: chapter_05.cross_entropy_backward(np.clip(x, -500, 500), y), "1000 and 999 are equal"),
        ("05.6", cross_entropy_that_spoils_the_logits, SPOILED),
        ("05.7", lambda x: T.sqrt(T.where(x > 0, x, 1e-30)), "0 zeros in the result"),
        ("05.7", root_of_a_clip, "A number between 0 and the limit of the clip is positive too"),
        ("05.7", root_with_a_zero_inside, "The numbers are right, since the root of 0 is 0"),
        ("05.1", lambda x: x.data * 0.5, "which is not a Tensor. Return Silu.apply(x)"),
        ("05.1", lambda x: T.silu(x), "the result of the kit's own Silu"),
        ("05.1", silu_with_a_list, "raised NotImplementedError: a Function needs a backward"),
        ("05.2", lambda g, x: x.argmax(axis=1), "of shape (2,), expected"),
        ("05.7", lambda x: np.sqrt(x), "raised TypeError: np.sqrt got a Tensor"),
        ("05.8", lambda g, base, exponent: g * exponent * base ** (exponent - 1), "expected ("),
        ("05.4", norm_that_is_measured, "1e-14"),
        ("05.4", lambda g, x, *eps: in_float32(g, x, *eps), "right as far as float32 goes"),
        ("05.5", lambda x: x.max(1) + np.log(np.exp(x - x.max(1, keepdims=True)).sum(1) + 1e-6), "9.99999e-07"),
        ("05.5", lambda x: np.log(np.exp(x.astype(np.longdouble)).sum(axis=1)), "inf"),
        ("05.7", lambda x: chapter_05.root_or_zero(T.where(x > 1e-16, x, 0.0)), "[1e-300, 2.25, -1e-300]"),
    ],
)
def test_slips_get_their_messages(exercise, answer, words):
    note = check(exercise, answer)
    assert not note
    assert words in note.text


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


def test_a_result_without_history_gets_a_message():
    for answer in (
        lambda x: np.sqrt(np.maximum(x.data, 0)),
        lambda x: T.sqrt(T.relu(x.detach())),
        lambda x: T.Tensor(np.sqrt(np.maximum(x.data, 0))),
    ):
        assert "x gets no gradient at all" in check("05.7", answer).text
