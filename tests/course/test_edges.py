"""The table of edges against torch, and its column "elsewhere" against JAX and MLX where they are installed."""

import math

import jax
import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_05.edges import EDGES, measure_edges
from mlx_grpo_kit.runtime import mx
from tests.every import every

INF, NAN = math.inf, math.nan
IDS = [f"{edge.operation} at {edge.point}" for edge in EDGES]


@every("edge", EDGES, ids=IDS)
def test_the_kit_agrees_with_torch(edge):
    assert edge.measure().agrees


def row(operation, *point):
    [row] = [each for each in measure_edges() if (each.operation, each.point) == (operation, point)]
    return row


@every(
    ("operation", "point", "value", "gradients"),
    [
        ("a / b", (0.0, 0.0), NAN, (INF, NAN)),
        ("a / b", (1.0, 0.0), INF, (INF, -INF)),
        ("sqrt(x)", (0.0,), 0.0, (INF,)),
        ("sqrt(x)", (-1.0,), NAN, (NAN,)),
        ("where(x > 0, sqrt(x), 0)", (0.0,), 0.0, (NAN,)),
        ("log(x)", (0.0,), -INF, (INF,)),
        ("log(x)", (-1.0,), NAN, (-1.0,)),
        ("abs(x)", (0.0,), 0.0, (0.0,)),
        ("relu(x)", (0.0,), 0.0, (0.0,)),
        ("round(x)", (2.5,), 2.0, (0.0,)),
        ("clip(x, -1, 1)", (1.0,), 1.0, (1.0,)),
        ("clip(x, 1, -1)", (0.0,), -1.0, (0.0,)),
        ("maximum(a, b)", (2.0, 2.0), 2.0, (0.5, 0.5)),
        ("max(x)", ((3.0, 1.0, 3.0),), 3.0, ((0.5, 0.0, 0.5),)),
        ("a ** b", (0.0, 0.0), 1.0, (0.0, 0.0)),
        ("a ** b", (0.0, 1.0), 0.0, (1.0, 0.0)),
        ("a ** b", (0.0, -1.0), INF, (-INF, -INF)),
        ("a ** b", (-2.0, 3.0), -8.0, (12.0, NAN)),
        ("safe_sqrt(sum(x * x))", ((0.0, 0.0),), 0.0, ((0.0, 0.0),)),
        ("prod(x)", ((0.0, 2.0, 3.0),), 0.0, ((6.0, 0.0, 0.0),)),
        ("logsumexp(x)", ((-INF, -INF),), -INF, ((NAN, NAN),)),
        ("sigmoid(x)", (1000.0,), 1.0, (0.0,)),
        ("sigmoid(x)", (-1000.0,), 0.0, (0.0,)),
    ],
)
def test_the_edges_that_torch_documents(operation, point, value, gradients):
    """Expected numbers, written down so that the kit and torch cannot be wrong together."""
    measured = row(operation, *point)
    assert measured.value == pytest.approx(value, nan_ok=True)
    for got, expected in zip(measured.gradients, gradients, strict=True):
        assert got == pytest.approx(expected, nan_ok=True)


# The same operations in NumPy's names, for a library that has them.
ELSEWHERE = {
    "a / b": lambda m, a, b: a / b,
    "sqrt(x)": lambda m, x: m.sqrt(x),
    "log(x)": lambda m, x: m.log(x),
    "where(x > 0, sqrt(x), 0)": lambda m, x: m.where(x > 0, m.sqrt(x), 0.0),
    "sqrt(sum(x * x))": lambda m, x: m.sqrt((x * x).sum()),
    "safe_sqrt(sum(x * x))": lambda m, x: m.linalg.norm(x),
    "a ** b": lambda m, a, b: m.power(a, b),
    "abs(x)": lambda m, x: m.abs(x),
    "maximum(x, 0)": lambda m, x: m.maximum(x, 0.0),
    "maximum(a, b)": lambda m, a, b: m.maximum(a, b),
    "minimum(a, b)": lambda m, a, b: m.minimum(a, b),
    "max(x)": lambda m, x: m.max(x),
    "clip(x, -1, 1)": lambda m, x: m.clip(x, -1.0, 1.0),
    "clip(x, 1, -1)": lambda m, x: m.clip(x, 1.0, -1.0),
    "sign(x)": lambda m, x: m.sign(x),
    "floor(x)": lambda m, x: m.floor(x),
    "ceil(x)": lambda m, x: m.ceil(x),
    "round(x)": lambda m, x: m.round(x),
    "prod(x)": lambda m, x: m.prod(x),
}
CHECKED = [edge for edge in EDGES if edge.operation in ELSEWHERE]


def assert_elsewhere(edge, framework, gradients):
    """The stored gradients, or torch's if none are stored."""
    expected = edge.elsewhere.get(framework, edge.measure().gradients)
    for got, each in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, each, rtol=1e-5)


@every("edge", CHECKED, ids=[f"{edge.operation} at {edge.point}" for edge in CHECKED])
def test_jax(edge):
    inputs = [jax.numpy.asarray(x, dtype="float32") for x in edge.point]
    gradient = jax.grad(lambda *a: ELSEWHERE[edge.operation](jax.numpy, *a).sum(), argnums=tuple(range(len(inputs))))
    assert_elsewhere(edge, "JAX", gradient(*inputs))


@every("edge", CHECKED, ids=[f"{edge.operation} at {edge.point}" for edge in CHECKED])
def test_mlx(edge):
    inputs = [mx.array(x, dtype=mx.float32) for x in edge.point]
    with mx.stream(mx.cpu):
        gradients = mx.grad(lambda inputs: ELSEWHERE[edge.operation](mx, *inputs).sum())(inputs)
        assert_elsewhere(edge, "MLX", [np.array(each) for each in gradients])


def test_every_disagreement_is_measured_again():
    assert {edge.operation for edge in EDGES if edge.elsewhere} <= ELSEWHERE.keys()
