"""Every operation against torch in float64: values, gradients, edge cases, and errors."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mlx_grpo_kit.tensor as T
from tests.every import every

INF, NAN = math.inf, math.nan


def compare(ours, theirs, *arrays, start=None, rtol=1e-10, atol=1e-12):
    """Assert equal values and gradients; the gradient of the result is random if `start` is None."""
    tensors = [T.Tensor(array, requires_grad=True) for array in arrays]
    references = [torch.tensor(array, requires_grad=True) for array in arrays]
    result, expected = ours(*tensors), theirs(*references)
    assert result.shape == tuple(expected.shape)
    np.testing.assert_allclose(result.data, expected.detach(), rtol=rtol, atol=atol)
    start = np.random.default_rng(1).normal(size=result.shape) if start is None else np.full(result.shape, start)
    result.backward(start)
    expected.backward(torch.tensor(start))
    for tensor, reference in zip(tensors, references, strict=True):
        assert tensor.grad.shape == tensor.shape
        np.testing.assert_allclose(tensor.grad, reference.grad, rtol=rtol, atol=atol)


def numbers(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape)


# -- one element at a time --------------------------------------------------------------------------------------------


def of_both(names):
    """{name: the operation here, the one in torch}"""
    return {name: (getattr(T, name), getattr(torch, name)) for name in names.split()}


ONE = {
    **of_both("neg exp abs sin cos tanh sigmoid relu sign floor ceil round trunc log log2 log10 sqrt"),
    "silu": (T.silu, F.silu),
    "gelu": (T.gelu, F.gelu),
    "gelu tanh": (lambda x: T.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "clip": (lambda x: T.clip(x, -1, 1), lambda x: torch.clamp(x, -1, 1)),
    "clip below": (lambda x: T.clip(x, low=0.5), lambda x: torch.clamp(x, min=0.5)),
    "clip above": (lambda x: T.clip(x, high=0.5), lambda x: torch.clamp(x, max=0.5)),
    "clip crossed": (lambda x: T.clip(x, 1, -1), lambda x: torch.clamp(x, 1, -1)),
    "square": (lambda x: x**2, lambda x: x**2),
    "cube": (lambda x: x**3, lambda x: x**3),
    "to the 0": (lambda x: x**0, lambda x: x**0),
    "inverse": (lambda x: x**-1, lambda x: x**-1),
    "2 to the": (lambda x: 2**x, lambda x: 2**x),
    "1 over": (lambda x: 1 / x, lambda x: 1 / x),
    "2 minus": (lambda x: 2 - x, lambda x: 2 - x),
    "root": (lambda x: x**0.5, lambda x: x**0.5),
}
TWO = {
    **of_both("add sub mul div pow maximum minimum"),
    "where": (lambda a, b: T.where(a.data > b.data, a, b), lambda a, b: torch.where(a > b, a, b)),
}
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 20.0, -20.0, 1000.0, -1000.0, 1e-300, INF, -INF, NAN]
STARTS = [1.0, 0.0, INF, NAN]  # gradients of the result


@every("name", ONE)
def test_one_argument(name):
    x = numbers(3, 4)
    compare(*ONE[name], np.abs(x) if name in ("log", "log2", "log10", "sqrt", "root") else x)


@every("start", STARTS)
@every("name", ONE)
def test_one_argument_at_the_edges(name, start):
    for x in EDGES:  # one at a time, because some of torch's vectorized loops give other results at infinity
        compare(*ONE[name], np.array([x]), start=start)


@every("name", TWO)
def test_two_arguments(name):
    a = numbers(3, 4, low=0.1)
    compare(*TWO[name], a, numbers(4, seed=1))
    compare(*TWO[name], a, numbers(2, 1, 4, seed=1))


@every("start", STARTS)
@every("name", TWO)
def test_two_arguments_at_the_edges(name, start):
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, -0.5, INF, -INF, NAN]
    pairs = np.array(list(itertools.product(edges, edges)))
    compare(*TWO[name], pairs[:, 0], pairs[:, 1], start=start)


@every("exponent", [*EDGES[:9], -0.5, INF, -INF, NAN])
@every("start", STARTS)
def test_a_number_as_exponent_at_the_edges(exponent, start):
    for x in EDGES:
        compare(lambda x: x**exponent, lambda x: x**exponent, np.array([x]), start=start)


def test_an_infinite_gradient_stops_where_torch_stops_it():
    x = np.array([-4.0, 0.0, 1.0, 9.0])
    compare(lambda x: T.sqrt(T.relu(x)), lambda x: torch.sqrt(torch.relu(x)), x)
    compare(lambda x: T.log(T.clip(x, 0, 1)), lambda x: torch.log(torch.clamp(x, 0, 1)), x)
    compare(lambda x: T.sqrt(T.maximum(x, 0.0)), lambda x: torch.sqrt(torch.maximum(x, torch.zeros(4).double())), x)
    compare(
        lambda x: T.sqrt(T.max_pool2d(T.reshape(x[:2] * 0, (1, 1, 1, 2)), (1, 2))),
        lambda x: torch.sqrt(F.max_pool2d((x[:2] * 0).reshape(1, 1, 1, 2), (1, 2))),
        x,
    )


@every(
    ("operation", "inputs", "value", "gradients"),
    [
        (lambda x: T.where(x > 0, T.sqrt(x), 0.0), (0.0,), 0.0, (NAN,)),
        (T.safe_div, (3.0, 0.0), 0.0, (0.0, 0.0)),
        (T.safe_div, (3.0, 2.0), 1.5, (0.5, -0.75)),
        (T.safe_sqrt, (0.0,), 0.0, (0.0,)),
        (T.safe_sqrt, (-1.0,), 0.0, (0.0,)),
        (T.safe_sqrt, (4.0,), 2.0, (0.25,)),
        (T.safe_log, (0.0,), math.log(1e-12), (0.0,)),
        (T.safe_log, (-1.0,), math.log(1e-12), (0.0,)),
        (T.safe_log, (2.0,), math.log(2.0), (0.5,)),
        (T.safe_div, (1.0, NAN), NAN, (NAN, NAN)),
        (T.safe_div, (NAN, 2.0), NAN, (0.5, NAN)),
        (T.safe_div, (NAN, 0.0), 0.0, (0.0, 0.0)),
        (T.safe_sqrt, (NAN,), NAN, (NAN,)),
        (T.safe_log, (NAN,), NAN, (NAN,)),
    ],
)
def test_where_and_safe_operations_at_the_edges(operation, inputs, value, gradients):
    tensors = [T.Tensor(x, requires_grad=True) for x in inputs]
    result = operation(*tensors)
    assert result.item() == pytest.approx(value, nan_ok=True)
    result.backward()
    assert [tensor.grad.item() for tensor in tensors] == pytest.approx(gradients, nan_ok=True)


@pytest.mark.parametrize(
    "x",
    [
        np.float16([6e-8, 6e-5, 2**-14, 2**-8, 0.0039, 0.004, 0.0, -1.0, -0.0039, -0.004]),
        np.float32([1e-38, 1e-20, 0.0, -1.0]),
        np.array([5e-324, 1e-300, 0.0, -1.0]),
    ],
)
@pytest.mark.parametrize("operation", [T.safe_sqrt, T.safe_log, lambda x: T.safe_div(1.0, x)])
def test_safe_operations_have_finite_gradients_at_every_number(operation, x):
    x = T.Tensor(x, requires_grad=True)
    result = operation(x)
    assert result.dtype == x.dtype
    assert np.isfinite(result.data).all()
    result.sum().backward()
    assert np.isfinite(x.grad).all()


def test_safe_operations_in_float16_equal_the_plain_ones_above_their_threshold():
    x = np.float16([0.004, 0.5, 3.0])
    assert T.safe_div(np.float16(1), x).data.tolist() == (np.float16(1) / x).tolist()
    x = np.float16([6.2e-5, 0.001, 0.5])
    assert T.safe_log(x).data.tolist() == np.log(x).tolist()


# -- reductions -------------------------------------------------------------------------------------------------------

REDUCTIONS = {
    **of_both("sum mean logsumexp"),
    "max": (T.max, torch.amax),
    "min": (T.min, torch.amin),
    "var": (T.var, lambda x, axis, keepdims: torch.var(x, dim=axis, correction=0, keepdim=keepdims)),
    "unbiased var": (
        lambda x, axis, keepdims: T.var(x, axis, keepdims, correction=1),
        lambda x, axis, keepdims: torch.var(x, dim=axis, keepdim=keepdims),
    ),
}


@every("keepdims", [False, True])
@every("axis", [0, 1, -1, (0, 2), (-1, 0), (0, 1, 2), None])
@every("name", REDUCTIONS)
def test_reductions(name, axis, keepdims):
    x = np.round(numbers(3, 4, 5), 1)  # rounded, so that there are ties
    ours, theirs = REDUCTIONS[name]
    compare(
        lambda x: ours(x, axis=axis, keepdims=keepdims),
        lambda x: theirs(x, (0, 1, 2) if axis is None else axis, keepdims),
        x,
    )


@pytest.mark.parametrize("axis", [0, -1, None])
def test_prod(axis):
    for x in (numbers(3, 4), np.array([[0.0, 2, 3, 4], [0, 0, 3, 4], [1, 2, 3, 4]])):
        compare(lambda x: T.prod(x, axis=axis), lambda x: x.prod() if axis is None else x.prod(axis), x)


@pytest.mark.parametrize("axis", [-1, None])
@pytest.mark.parametrize(
    ("x", "gradient"),
    [
        ([0.0, 0.0, INF], [0, 0, 0]),  # as in torch for axis=None
        ([0.0, 5.0, 1e200, 1e200], [INF, 0, 0, 0]),
        ([0.0, 0.0, 1e200, 1e200], [0, 0, 0, 0]),
        ([0.0, 3.0, NAN], [NAN, NAN, 0]),
        ([2.0, 3.0, INF], [INF, INF, 6]),
        ([0.0], [1]),
        ([], []),
    ],
)
def test_prod_where_zero_meets_an_overflow_or_inf(x, gradient, axis):
    x = T.Tensor(np.array(x), requires_grad=True)
    T.prod(x, axis=axis).backward()
    assert x.grad.tolist() == pytest.approx(gradient, nan_ok=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_log_softmax_and_logsumexp(axis):
    for x in (numbers(3, 4, 2), 1000 * numbers(3, 4, 2), np.full((2, 3), -INF), np.array([[0.0, -INF], [1e4, -1e4]])):
        compare(lambda x: T.softmax(x, axis), lambda x: torch.softmax(x, axis), x)
        compare(lambda x: T.log_softmax(x, axis), lambda x: torch.log_softmax(x, axis), x)
        compare(lambda x: T.logsumexp(x, axis), lambda x: torch.logsumexp(x, axis), x)


def test_cross_entropy():
    targets = np.array([2, 0, 1, 1])
    for ours, x in ((targets, numbers(4, 3)), (T.Tensor(targets), 1000 * numbers(4, 3))):
        compare(lambda x: T.cross_entropy(x, ours), lambda x: F.cross_entropy(x, torch.tensor(targets)), x)  # noqa: B023


# -- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((2, 5, 2, 3), (3,)),
        ((1, 2, 3), (5, 3, 4)), ((7, 5, 2, 3), (3, 4)),
        # Without numbers.
        ((0, 3), (3, 4)), ((2, 0), (0, 3)), ((0,), (0,)), ((0,), (0, 3)), ((2, 0), (0,)), ((5, 2, 0), (0, 3)),
        ((5, 2, 0), (5, 0, 3)), ((5, 2, 0), (0,)), ((0, 2, 0), (0, 3)), ((2, 3), (3, 0)), ((5, 2, 3), (3, 0)),
        ((0, 0), (0, 0)),
    ],
)  # fmt: skip
def test_matmul(a, b):
    compare(T.matmul, torch.matmul, numbers(*a), numbers(*b, seed=1))


EMPTY = [((2, 0), (3, 0)), ((0,), (3, 0)), ((2, 5, 0), (3, 0)), ((0, 3), (4, 3)), ((2, 3), (0, 3))]


@pytest.mark.parametrize(("x", "weight"), [((3,), (5, 3)), ((2, 3), (5, 3)), ((4, 2, 3), (5, 3)), *EMPTY])
def test_linear(x, weight):
    compare(T.linear, F.linear, numbers(*x), numbers(*weight), numbers(weight[0]))
    compare(T.linear, F.linear, numbers(*x), numbers(*weight))


def test_dot_and_outer():
    compare(T.dot, torch.dot, numbers(4), numbers(4, seed=1))
    compare(T.outer, torch.outer, numbers(4), numbers(3))


# -- shapes -----------------------------------------------------------------------------------------------------------

BOOLS = np.array([[True, False, True, False], [False, False, True, True], [False, True, False, True]])
INDICES = {
    "integer": 1, "slice": slice(1, 3), "step": slice(None, None, 2), "two": (1, slice(None, 2)), "new axis": (None, 1),
    "ellipsis": (..., 0), "negative": -1, "nothing": slice(0, 0), "integers": np.array([2, 0, 2]), "list": [0, 0, 0],
    "pairs": (np.array([0, 0, 2]), np.array([1, 1, 3])), "grid": (np.array([[0], [2]]), np.array([1, 1, 3])),
    "booleans": BOOLS, "rows": BOOLS[:, 0], "mixed": (slice(None), np.array([3, 3, 0])), "everything": (),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_getitem(name):
    index = INDICES[name]
    torch_index = torch.tensor(index) if isinstance(index, np.ndarray) else index
    if isinstance(index, tuple):
        torch_index = tuple(torch.tensor(i) if isinstance(i, np.ndarray) else i for i in index)
    compare(lambda x: x[index], lambda x: x[torch_index], numbers(3, 4))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: T.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
        (lambda x: x.reshape(-1), lambda x: x.reshape(-1)),
        (lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1)),
        (lambda x: T.transpose(x), lambda x: x.permute(2, 1, 0)),
        (lambda x: x.T, lambda x: x.permute(2, 1, 0)),
        (lambda x: x.transpose(1, 2, 0), lambda x: x.permute(1, 2, 0)),
        (lambda x: T.transpose(x, (-1, 0, 1)), lambda x: x.permute(-1, 0, 1)),
        (lambda x: x.swapaxes(0, -1), lambda x: x.transpose(0, -1)),
        (lambda x: T.broadcast_to(x, (5, 2, 3, 4)), lambda x: x.broadcast_to(5, 2, 3, 4)),
        (lambda x: T.broadcast_to(x[:, :1], (2, 7, 4)), lambda x: x[:, :1].broadcast_to(2, 7, 4)),
        (lambda x: T.pad(x, 2), lambda x: F.pad(x, (2,) * 6)),
        (lambda x: T.pad(x, ((0, 0), (1, 2), (3, 0)), value=5.0), lambda x: F.pad(x, (3, 0, 1, 2), value=5.0)),
        (lambda x: T.concatenate([x, x * x], axis=1), lambda x: torch.cat([x, x * x], 1)),
        (lambda x: T.concatenate([x, x[:1]], axis=-3), lambda x: torch.cat([x, x[:1]], -3)),
        (lambda x: T.stack([x, x * x, x]), lambda x: torch.stack([x, x * x, x])),
        (lambda x: T.stack(list(x), axis=-1), lambda x: torch.stack(list(x), -1)),
    ],
)
def test_shapes(ours, theirs):
    compare(ours, theirs, numbers(2, 3, 4))


def test_embedding_adds_the_gradients_of_a_repeated_id():
    ids = np.array([[1, 1], [4, 0]])
    compare(lambda w: T.embedding(w, ids), lambda w: F.embedding(torch.tensor(ids), w), numbers(5, 3))
    compare(lambda w: T.embedding(w, T.Tensor(ids)), lambda w: F.embedding(torch.tensor(ids), w), numbers(5, 3))


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stride", "padding", "kernel", "bias"),
    [
        (1, 0, (3, 3), True), (1, 1, (3, 3), False), (2, 1, (3, 3), True), (2, 0, (1, 1), False),
        ((2, 1), (0, 2), (2, 3), True), (1, 2, (5, 5), True), (3, 1, (2, 2), True), (1, 0, (6, 7), True),
    ],
)  # fmt: skip
def test_conv2d(stride, padding, kernel, bias):
    x, weight = numbers(3, 4, 6, 7), numbers(8, 4, *kernel, seed=1)
    extra = [numbers(8, seed=2)] if bias else []
    compare(
        lambda x, w, b=None: T.conv2d(x, w, b, stride=stride, padding=padding),
        lambda x, w, b=None: F.conv2d(x, w, b, stride=stride, padding=padding),
        x,
        weight,
        *extra,
    )


def test_conv2d_of_a_conv2d_and_of_an_image_that_needs_no_gradient():
    compare(
        lambda x, v, w: T.conv2d(T.relu(T.conv2d(x, v, padding=1)), w, stride=2),
        lambda x, v, w: F.conv2d(torch.relu(F.conv2d(x, v, padding=1)), w, stride=2),
        numbers(2, 3, 6, 6),
        numbers(4, 3, 3, 3),
        numbers(5, 4, 2, 2),
    )
    x = numbers(2, 3, 6, 6)
    compare(lambda w: T.conv2d(x, w), lambda w: F.conv2d(torch.tensor(x), w), numbers(4, 3, 3, 3))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(2, None, 0), (3, 2, 1), ((2, 3), (1, 2), (1, 0)), (3, 1, 1), (2, 3, 0), (6, None, 0)],
)
def test_pooling(kernel, stride, padding):
    x = np.round(numbers(2, 3, 6, 7))  # few different numbers, so that windows have ties
    compare(lambda x: T.max_pool2d(x, kernel, stride, padding), lambda x: F.max_pool2d(x, kernel, stride, padding), x)


def test_max_pool_passes_nan_on():
    x = numbers(1, 1, 4, 4)
    x[0, 0, 1, 1] = NAN
    compare(lambda x: T.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), x)


# -- normalization ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2, 5)])
def test_batch_norm_and_its_running_statistics(shape):
    mean, var = numbers(3), numbers(3, low=0.5)
    torch_mean, torch_var = torch.tensor(mean), torch.tensor(var)
    inputs = numbers(*shape), numbers(3, seed=1), numbers(3, seed=2)
    for training in (True, True, False):
        compare(
            lambda x, w, b: T.batch_norm(x, mean, var, w, b, training=training),  # noqa: B023
            lambda x, w, b: F.batch_norm(x, torch_mean, torch_var, w, b, training=training),  # noqa: B023
            *inputs,
        )
        np.testing.assert_allclose(mean, torch_mean, rtol=1e-12)
        np.testing.assert_allclose(var, torch_var, rtol=1e-12)
    compare(lambda x: T.batch_norm(x, training=True), lambda x: F.batch_norm(x, None, None, training=True), inputs[0])


def test_layer_norm_and_rms_norm():
    x, weight, bias = numbers(2, 3, 5), numbers(5, seed=1), numbers(5, seed=2)
    compare(T.layer_norm, lambda x, w, b: F.layer_norm(x, (5,), w, b), x, weight, bias)
    compare(T.layer_norm, lambda x: F.layer_norm(x, (5,)), x)
    compare(T.rms_norm, lambda x, w: F.rms_norm(x, (5,), w, eps=1e-6), x, weight)
    compare(T.rms_norm, lambda x: F.rms_norm(x, (5,), eps=1e-6), x)


# -- attention and dropout --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention(options):
    compare(
        lambda q, k, v: T.scaled_dot_product_attention(q, k, v, **options),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        numbers(2, 3, 4, 5),
        numbers(2, 3, 6, 5, seed=1),
        numbers(2, 3, 6, 7, seed=2),
    )


def test_attention_with_a_mask_of_either_kind():
    inputs = numbers(2, 4, 5), numbers(2, 6, 5, seed=1), numbers(2, 6, 7, seed=2)
    allowed = numbers(4, 6) > -1
    for mask in (allowed, numbers(4, 6)):
        compare(
            lambda q, k, v: T.scaled_dot_product_attention(q, k, v, mask),  # noqa: B023
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor(mask)),  # noqa: B023
            *inputs,
        )


def test_dropout_keeps_the_mean_and_masks_gradients_like_values():
    x = T.Tensor(np.ones((100, 100)), requires_grad=True)
    y = T.dropout(x, p=0.3, rng=np.random.default_rng(0))
    assert set(np.unique(y.data)) == {0.0, 1 / 0.7}
    assert y.data.mean() == pytest.approx(1, abs=0.03)
    y.sum().backward()
    assert (x.grad == y.data).all()
    assert T.dropout(x, training=False) is x
    assert T.dropout(x, p=1.0).data.sum() == 0
    same = T.dropout(x, p=0.3, rng=np.random.default_rng(0))
    assert (same.data == y.data).all()


# -- float16 and whole numbers ----------------------------------------------------------------------------------------

MORE = {
    "prod": (T.prod, torch.prod),
    "softmax": (T.softmax, lambda x: torch.softmax(x, -1)),
    "log_softmax": (T.log_softmax, lambda x: torch.log_softmax(x, -1)),
    "cross_entropy": (
        lambda x: T.cross_entropy(T.reshape(x, (2, -1)), [0, 1]),
        lambda x: F.cross_entropy(x.reshape(2, -1), torch.tensor([0, 1])),
    ),
    "layer_norm": (T.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": (T.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "batch_norm": (
        lambda x: T.batch_norm(T.reshape(x, (-1, 1)), training=True),
        lambda x: F.batch_norm(x.reshape(-1, 1), None, None, training=True),
    ),
    "max_pool2d": (
        lambda x: T.max_pool2d(T.reshape(x, (1, 1, 2, -1)), 2, padding=1),
        lambda x: F.max_pool2d(x.reshape(1, 1, 2, -1), 2, padding=1),
    ),
    "conv2d": (
        lambda x: T.conv2d(T.reshape(x, (1, 1, 2, -1)), T.reshape(x, (1, 1, 2, -1))),
        lambda x: F.conv2d(x.reshape(1, 1, 2, -1), x.reshape(1, 1, 2, -1)),
    ),
    "attention": (
        lambda x: T.scaled_dot_product_attention(*[T.reshape(x, (2, -1))] * 3),
        lambda x: F.scaled_dot_product_attention(*[x.reshape(2, -1)] * 3),
    ),
    "matmul": (lambda x: x @ x, lambda x: x @ x),
    "dot": (lambda x: T.dot(x, x), lambda x: torch.dot(x, x)),
    "linear": (lambda x: T.linear(x, T.reshape(x, (1, -1))), lambda x: F.linear(x, x.reshape(1, -1))),
    "broadcast_to": (
        lambda x: T.broadcast_to(x[:1], (70_000,)) / 70_000,
        lambda x: x[:1].broadcast_to(70_000) / 70_000,
    ),
    "embedding": (
        lambda x: T.embedding(T.reshape(x, (-1, 1)), np.zeros(5000, int)) / 5000,
        lambda x: F.embedding(torch.zeros(5000, dtype=int), x.reshape(-1, 1)) / 5000,
    ),
    "pad": (lambda x: T.pad(x, 1), lambda x: F.pad(x, (1, 1))),
    "concatenate": (lambda x: T.concatenate([x, x]), lambda x: torch.cat([x, x])),
    "stack": (lambda x: T.stack([x, x]), lambda x: torch.stack([x, x])),
    "half": (lambda x: x * 0.5, lambda x: x * 0.5),
}
ALL = (
    ONE
    | {
        name: (lambda x, f=f: f(x, axis=0, keepdims=False), lambda x, g=g: g(x, 0, False))
        for name, (f, g) in REDUCTIONS.items()
    }
    | {name: (lambda x, f=f: f(x, x[::-1]), lambda x, g=g: g(x, x.flip(0))) for name, (f, g) in TWO.items()}
    | MORE
)


@every(
    "x",
    [
        numbers(6), numbers(6, low=-300, high=300), np.array([60_000.0, -60_000.0, 1, 2, 3, 4]), np.ones(70_000),
        np.full(40_000, 3.0), np.full(70_000, 300.0), np.ones(2), np.zeros(0),
    ],
    ids=["small", "large", "largest", "many ones", "many threes", "many large", "two", "none"],
)  # fmt: skip
@every("name", ALL)
def test_float16_is_computed_in_a_wider_dtype_and_rounded(name, x):
    """The truth is torch's float64, because torch's own float16 overflows in log_softmax."""
    ours, theirs = ALL[name]
    half = x.astype(np.float16)
    tensor, reference = T.Tensor(half, requires_grad=True), torch.tensor(half.astype(float), requires_grad=True)
    try:
        expected = theirs(reference)
    except (RuntimeError, IndexError) as error:
        pytest.skip(f"torch: {error}")
    result = ours(tensor)
    assert result.dtype == np.float16
    start = np.ones(result.shape, np.float16)
    result.backward(start)
    expected.backward(torch.tensor(start.astype(float)))
    with np.errstate(over="ignore"):
        expected, gradient = (each.detach().numpy().astype(np.float16) for each in (expected, reference.grad))
    assert tensor.grad.dtype == np.float16
    np.testing.assert_allclose(result.data.astype(float), expected.astype(float), rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(tensor.grad.astype(float), gradient.astype(float), rtol=4e-3, atol=2e-3)


@every("dtype", [bool, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64])
@every("name", ALL)
def test_whole_numbers_are_torchs_or_those_of_float64_or_an_error(name, dtype):
    x = np.array([1, 100, 7, 90, 3, 5] if np.dtype(dtype).kind != "i" else [1, -100, 7, 90, 3, 5]).astype(dtype)
    if dtype == np.uint8:
        x[1] = 200  # its negative is not 56
    ours, theirs = ALL[name]
    try:
        result = ours(T.Tensor(x)).data
    except (TypeError, ValueError, OverflowError):
        assert name in ("2 to the", "inverse", "pow", "clip crossed", "batch_norm") or dtype is bool
        return
    try:
        expected = theirs(torch.tensor(x)).numpy()
    except (RuntimeError, TypeError):
        as_float = result.dtype.kind == "f"
        expected = ours(T.Tensor(x.astype(float if as_float else np.int64))).data.astype(result.dtype)
    if result.dtype.kind == "f":
        assert result.dtype == np.float64
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(result.astype(expected.dtype), expected, rtol=1e-5, atol=1e-30)
    else:  # a Python number is an int64, so 2 - x does not overflow; torch's does
        assert result.astype(expected.dtype).tolist() == expected.tolist()


@every("dtype", [np.float16, np.float32, np.float64])
@every("whole", [bool, np.uint8, np.int64])
@every("name", [*TWO, "matmul", "concatenate"])
def test_whole_numbers_beside_floats_take_the_dtype_of_the_floats(name, whole, dtype):
    joined = (lambda a, b: T.concatenate([a, b]), lambda a, b: torch.cat([a, b]))
    ours, theirs = (TWO | {"matmul": (T.matmul, torch.matmul), "concatenate": joined})[name]
    a, b = np.array([0.5, 1.5, 2.5], dtype), np.array([1, 0, 3]).astype(whole)
    tensor, reference = T.Tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    assert torch.result_type(reference, torch.tensor(b)) == reference.dtype
    result, expected = ours(tensor, T.Tensor(b)), theirs(reference, torch.tensor(b).to(reference.dtype))
    assert result.dtype == dtype
    np.testing.assert_allclose(result.data, expected.detach(), rtol=2e-3)
    result.sum().backward()
    expected.sum().backward()
    assert tensor.grad.dtype == dtype
    np.testing.assert_allclose(tensor.grad, reference.grad, rtol=2e-3)


@pytest.mark.parametrize(("size", "correction"), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 2), (2, 3)])
def test_var_of_too_few_numbers(size, correction):
    x = numbers(size)
    ours = T.var(T.Tensor(x), correction=correction).item()
    assert ours == pytest.approx(torch.var(torch.tensor(x), correction=correction).item(), nan_ok=True)


def test_a_number_beyond_float16_is_not_infinite_beside_float16():
    x = T.Tensor(np.float16([700.0, -1.0]), requires_grad=True)
    y = x / 70_000 + 1e-7
    assert y.dtype == np.float16
    assert y.data.tolist() == (torch.tensor(x.data) / 70_000 + 1e-7).tolist()
    y.sum().backward()
    assert x.grad.tolist() == np.full(2, 1 / 70_000, np.float16).tolist()


def test_dropout_of_whole_numbers_does_not_truncate_its_factor():
    x = T.Tensor(np.ones(100, np.int64))
    assert set(T.dropout(x, p=0.3, rng=np.random.default_rng(0)).data) == {0.0, 1 / 0.7}


# -- arrays without numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), [((0,), 0), ((2, 0), 1), ((2, 0), 0), ((0, 3), 0), ((2, 0, 3), 1)])
def test_softmax_over_an_empty_axis(shape, axis):
    for name in ("softmax", "log_softmax", "logsumexp"):
        ours, theirs = getattr(T, name), getattr(torch, name)
        compare(lambda x: ours(x, axis), lambda x: theirs(x, axis), numbers(*shape))  # noqa: B023


def test_attention_without_keys_or_features():
    for length, size in [(0, 3), (2, 0)]:
        inputs = numbers(1, 2, size), numbers(1, length, size), numbers(1, length, 4)
        compare(T.scaled_dot_product_attention, F.scaled_dot_product_attention, *inputs)


@pytest.mark.parametrize("padding", [0, 1])
def test_conv2d_of_an_empty_batch(padding):
    compare(
        lambda x, w, b: T.conv2d(x, w, b, padding=padding),
        lambda x, w, b: F.conv2d(x, w, b, padding=padding),
        numbers(0, 4, 5, 5),
        numbers(6, 4, 3, 3),
        numbers(6),
    )


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2, 2)])
def test_batch_norm_of_an_empty_batch_leaves_its_running_statistics(shape):
    mean, var = numbers(3), numbers(3, low=0.5)
    before = mean.copy(), var.copy()
    compare(
        lambda x, w, b: T.batch_norm(x, mean, var, w, b, training=True),
        lambda x, w, b: F.batch_norm(x, *map(torch.tensor, before), w, b, training=True),
        numbers(*shape),
        numbers(3),
        numbers(3),
    )
    assert mean.tolist() == before[0].tolist()
    assert var.tolist() == before[1].tolist()


# -- errors -----------------------------------------------------------------------------------------------------------


def ones(*shape):
    return T.Tensor(np.ones(shape))


@every(
    ("broken", "kind", "message"),
    [
        (lambda: ones(3) + ones(4), ValueError, r"Add of \(3,\) and \(4,\): .* a \(3\) must match .* b \(4\) at .* 0"),
        (lambda: ones(2, 3) * ones(4, 2, 5), ValueError, r"The size of tensor a \(3\) .* b \(5\) at .* dimension 2"),
        (lambda: T.where(np.ones(3, bool), ones(4), ones(4)), ValueError, r"Where of \(4,\) and \(4,\)"),
        (lambda: ones(3, 4) @ ones(3, 4), ValueError, r"mat1 and mat2 shapes cannot be multiplied \(3x4 and 3x4\)"),
        (lambda: ones(3) @ ones(4), ValueError, "3 columns meet 4 rows"),
        (lambda: ones(3) @ ones(), ValueError, "to be at least 1D, but they are 1D and 0D"),
        (lambda: ones(2, 3, 4) @ ones(3, 4, 5), ValueError, r"Matmul of \(2, 3, 4\) and \(3, 4, 5\)"),
        (lambda: T.linear(ones(2, 3), ones(4, 5)), ValueError, r"cannot be multiplied \(2x3 and 5x4\)"),
        (lambda: T.dot(ones(2), ones(3)), ValueError, "same number of elements"),
        (lambda: T.outer(ones(2, 2), ones(3)), ValueError, "1-D"),
        (lambda: ones(2, 3).reshape(4, 2), ValueError, r"shape \(4, 2\) is invalid for input of size 6"),
        (lambda: ones(2, 3).sum(5), ValueError, r"Sum of \(2, 3\): axis 5 is out of bounds"),
        (lambda: ones(2, 3)[5], IndexError, r"Getitem of \(2, 3\): index 5 is out of bounds .* size 2"),
        (lambda: T.broadcast_to(ones(2, 3), (4, 4)), ValueError, r"BroadcastTo of \(2, 3\)"),
        (lambda: T.concatenate([ones(2, 3), ones(2, 4)]), ValueError, r"Concatenate of \(2, 3\) and \(2, 4\)"),
        (lambda: T.stack([ones(2, 3), ones(2, 4)]), ValueError, r"Stack of \(2, 3\) and \(2, 4\)"),
        (lambda: T.cross_entropy(ones(2, 3), [0, 3]), IndexError, "Target 3 is out of bounds"),
        (lambda: T.cross_entropy(ones(2, 3), [0, 1, 2]), ValueError, "input batch_size .* to match target batch"),
        (lambda: T.cross_entropy(ones(2, 3), [0.0, 1.0]), TypeError, "targets have dtype float64; expected integers"),
        (lambda: T.embedding(ones(3, 2), [3]), IndexError, "index out of range"),
        (lambda: T.embedding(ones(3, 2), [0.5]), TypeError, "expected integers"),
        (lambda: T.conv2d(ones(1, 3, 5, 5), ones(2, 4, 3, 3)), ValueError, "groups=1, .* have 4 channels, but got 3"),
        (
            lambda: T.conv2d(ones(1, 3, 2, 2), ones(2, 3, 3, 3)),
            ValueError,
            r"Calculated padded input size per channel: \(2 x 2\). Kernel size: \(3 x 3\)",
        ),
        (lambda: T.conv2d(ones(3, 5, 5), ones(2, 3, 3, 3)), ValueError, r"expected x \[N, C, H, W\]"),
        (lambda: T.max_pool2d(ones(1, 3, 5, 5), 2, padding=2), ValueError, "pad should be at most half"),
        (lambda: T.batch_norm(ones(1, 2), training=True), ValueError, "Expected more than 1 value per channel"),
        (lambda: T.batch_norm(ones(3, 2)), ValueError, "needs running_mean and running_var"),
        (lambda: T.layer_norm(ones(2, 3), ones(4)), ValueError, r"Given normalized_shape=\(4,\)"),
        (lambda: T.dropout(ones(2), 2.0), ValueError, "dropout probability has to be between 0 and 1, but got 2.0"),
        (lambda: T.gelu(ones(2), "fast"), ValueError, "either 'none' or 'tanh'; got 'fast'"),
        (lambda: T.clip(ones(2)), ValueError, "at least one of low and high"),
        (lambda: T.scaled_dot_product_attention(ones(2, 2), ones(2, 2), ones(2, 2), True, True), ValueError, "causal"),
        (lambda: T.exp(), TypeError, r"exp\(x\): missing a required argument: 'x'"),
        (lambda: T.sum(ones(2), axes=0), TypeError, r"sum\(x, axis=None, keepdims=False\): got an unexpected .*'axes'"),
        (lambda: T.exp("a"), TypeError, "expected numbers"),
    ],
)
def test_errors_name_the_operation_and_the_shapes(broken, kind, message):
    with pytest.raises(kind, match=message):
        broken()


def test_a_rule_with_an_unknown_name_raises_an_error():
    with pytest.raises(TypeError, match=r"@rule of double\(x\): its formulas name \['y'\]"):

        @T.rule(x=lambda g, y: g * y)
        def double(x):
            return 2 * x
