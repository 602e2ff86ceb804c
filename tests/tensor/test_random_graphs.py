"""Random expression graphs of 5 to 30 operations over random broadcastable shapes, against torch: values and gradients.

Hypothesis draws the program and shrinks it to the smallest one that differs. In CI there are 2,000 of them; set
RANDOM_GRAPHS=20000 for more.
"""

import os

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import mlx_grpo_kit.tensor as T

COUNT = int(os.environ.get("RANDOM_GRAPHS", "2000"))

# Each operation for both engines: bounded slopes, no division by almost 0, and no kinks within rounding errors.
ONE = [
    *((getattr(T, name), getattr(torch, name)) for name in ["tanh", "sigmoid", "neg", "sin", "cos", "relu", "abs"]),
    (T.silu, torch.nn.functional.silu),
    (T.gelu, torch.nn.functional.gelu),
    (lambda x: T.exp(T.tanh(x)), lambda x: torch.exp(torch.tanh(x))),
    (lambda x: T.log(x * x + 1), lambda x: torch.log(x * x + 1)),
    (lambda x: T.sqrt(x * x + 1), lambda x: torch.sqrt(x * x + 1)),
    (lambda x: T.tanh(x) ** 3, lambda x: torch.tanh(x) ** 3),
    (lambda x: T.clip(x, -0.7, 0.8), lambda x: torch.clamp(x, -0.7, 0.8)),
    (lambda x: 2 - 3 * x, lambda x: 2 - 3 * x),
    (lambda x: 1 / (x * x + 1), lambda x: 1 / (x * x + 1)),
]
TWO = [
    *((getattr(T, name), getattr(torch, name)) for name in ["add", "sub", "mul", "maximum", "minimum"]),
    (lambda a, b: a / (b * b + 1), lambda a, b: a / (b * b + 1)),
    (lambda a, b: (a * a + 1) ** T.tanh(b), lambda a, b: (a * a + 1) ** torch.tanh(b)),
    (lambda a, b: T.where(a.data > b.data, a, b * 2), lambda a, b: torch.where(a > b, a, b * 2)),
]
REDUCE = [
    (T.sum, torch.sum), (T.mean, torch.mean), (T.max, torch.amax), (T.min, torch.amin), (T.logsumexp, torch.logsumexp),
    (T.var, lambda x, axis, keepdim: torch.var(x, axis, correction=0, keepdim=keepdim)),
]  # fmt: skip
ALONG = [(T.softmax, torch.softmax), (T.log_softmax, torch.log_softmax)]

SHAPES = [(), (1,), (3,), (2, 1), (2, 3), (1, 3), (2, 2, 1), (4, 1, 3), (2, 3, 3), (1, 2, 1)]
MOST_ELEMENTS = 4000

KINDS = ["one", "one", "two", "two", "reduce", "along", "matmul", "index", "transpose", "join"]


def decode(number):
    """Make a step of a program from one number, which Hypothesis draws faster than five."""
    number, kind = divmod(number, len(KINDS))
    number, which = divmod(number, 840)
    number, first = divmod(number, 840)
    keepdims, second = divmod(number, 840)
    return KINDS[kind], which, first, second, keepdims % 2 == 1


def run(steps, leaves, torch_side):
    """Run the same program on either side. A step that the shapes do not allow is skipped."""
    values = list(leaves)
    for kind, which, first, second, keepdims in map(decode, steps):
        a, b = values[first % len(values)], values[second % len(values)]
        axis = second % a.ndim if a.ndim else None
        if kind == "one":
            new = ONE[which % len(ONE)][torch_side](a)
        elif kind == "two" and broadcastable(a.shape, b.shape):
            new = TWO[which % len(TWO)][torch_side](a, b)
        elif kind == "reduce" and a.ndim:
            new = REDUCE[which % len(REDUCE)][torch_side](a, axis, keepdims)
        elif kind == "along" and a.ndim:
            new = ALONG[which % len(ALONG)][torch_side](a, axis)
        elif (
            kind == "matmul"
            and a.ndim >= 2
            and a.ndim == b.ndim
            and a.shape[:-2] == b.shape[:-2]
            and a.shape[-1] == b.shape[-2]
        ):
            new = a @ b
        elif kind == "index" and a.ndim:
            new = a[which % a.shape[0]] if keepdims else a[[which % a.shape[0], 0, which % a.shape[0]]]
        elif kind == "transpose" and a.ndim >= 2:
            new = a.swapaxes(axis, -1)
        elif kind == "join" and a.ndim:
            new = torch.cat([a, a * 2], axis) if torch_side else T.concatenate([a, a * 2], axis)
        else:
            continue
        if np.prod(new.shape) <= MOST_ELEMENTS and new.ndim <= 5:
            large = new.ndim and abs(new.data).max() > 10  # kept in a sane range, so that rounding stays rounding
            values.append(ONE[0][torch_side](new) if large else new)
    total = values[-1].sum()
    for value in values[-4:-1] + list(leaves):  # every leaf gets a gradient
        total = total + value.mean()
    return total, len(values) - len(leaves)


def broadcastable(a, b):
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))


@settings(max_examples=COUNT, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.lists(st.integers(0, 2**34), min_size=6, max_size=30),
    st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4),
    st.integers(0, 2**16),
)
def test_values_and_gradients_equal_torchs(steps, shapes, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=shape) for shape in shapes]
    ours = [T.Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    (value, done), (expected, _) = run(steps, ours, False), run(steps, theirs, True)
    assume(done >= 5)
    np.testing.assert_allclose(value.data, expected.detach(), rtol=1e-9, atol=1e-9)
    value.backward()
    expected.backward()
    for tensor, reference in zip(ours, theirs, strict=True):
        assert tensor.grad.shape == tensor.shape
        np.testing.assert_allclose(tensor.grad, reference.grad, rtol=1e-8, atol=1e-9)
