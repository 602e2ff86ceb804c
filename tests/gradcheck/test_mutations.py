"""The checker is checked: whatever passes a gradient on is broken in several ways, and each must be noticed.

That is every rule and every Function of the tensor engine, and every operation of Value.
"""

import ast
import functools
import inspect

import numpy as np
import pytest

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.gradcheck import gradcheck
from mlx_grpo_kit.scalar import Value, value
from mlx_grpo_kit.tensor import graph
from mlx_grpo_kit.tensor.rules import convolution, normalization, shapes
from mlx_grpo_kit.tensor.rules.rule import Rule
from tests.every import every


def near(*shape, low=0.3, high=1.7, seed=0):
    """Numbers around 1, apart from each other and from kinks."""
    count = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(count)
    return T.Tensor((low + (high - low) * (order + 0.5 + 0.1 * seed) / max(count, 1)).reshape(shape))


def signed(*shape, seed=0):
    return near(*shape, low=-1.7, high=1.6, seed=seed)


CONDITION = np.array([[True, False, True], [False, False, True], [True, True, False]])

# For each operation a program in which every derivative matters. Square shapes, so that swapped operands fit.
RULES = {
    "add": (T.add, near(3, 3), near(3, seed=1)),
    "sub": (T.sub, near(3, 3), near(3, seed=1)),
    "mul": (T.mul, near(3, 3), near(3, seed=1)),
    "div": (T.div, near(3, 3), near(3, seed=1)),
    "pow": (T.pow, near(3, 3), near(3, seed=1)),
    "maximum": (T.maximum, near(3, 3), near(3, seed=1)),
    "minimum": (T.minimum, near(3, 3), near(3, seed=1)),
    "safe_div": (T.safe_div, near(3, 3), near(3, seed=1)),
    "where": (lambda a, b: T.where(CONDITION, a, b), near(3, 3), near(3, seed=1)),
    **{
        name: (getattr(T, name), signed(2, 3))
        for name in ["neg", "exp", "abs", "sin", "cos", "tanh", "sigmoid", "relu", "silu", "gelu"]
    },
    **{
        name: (getattr(T, name), near(2, 3))
        for name in ["log", "log2", "log10", "sqrt", "safe_sqrt", "safe_log", "sign", "floor", "ceil", "round", "trunc"]
    },
    "clip": (lambda x: T.clip(x, -1, 1), signed(2, 3)),
    "astype": (lambda x: T.astype(x, np.float64), signed(2, 3)),
    **{
        name: (functools.partial(getattr(T, name), axis=1), signed(2, 3))
        for name in ["sum", "mean", "var", "max", "min", "prod", "logsumexp", "softmax", "log_softmax"]
    },
    "cross_entropy": (lambda x: T.cross_entropy(x, [2, 0]), signed(2, 3)),
    "matmul": (T.matmul, signed(3, 3), signed(3, 3, seed=1)),
    "dot": (T.dot, signed(3), signed(3, seed=1)),
    "outer": (T.outer, signed(3), signed(3, seed=1)),
    "linear": (T.linear, signed(3, 3), signed(3, 3, seed=1), signed(3, seed=2)),
    "reshape": (lambda x: x.reshape(3, 2), signed(2, 3)),
    "transpose": (lambda x: x.T, signed(2, 3)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), signed(2, 3)),
    "broadcast_to": (lambda x: T.broadcast_to(x, (4, 2, 3)), signed(2, 1)),
    "getitem": (lambda x: x[[0, 0, 1]], signed(2, 3)),
    "embedding": (lambda w: T.embedding(w, [0, 0, 1]), signed(2, 3)),
    "pad": (lambda x: T.pad(x, 1), signed(2, 3)),
}
FUNCTIONS = {
    convolution.Conv2d: (
        lambda x, w, b: T.conv2d(x, w, b, stride=2, padding=1),
        signed(2, 2, 4, 4),
        signed(2, 2, 3, 3, seed=1),
        signed(2, seed=2),
    ),
    convolution.MaxPool2d: (lambda x: T.max_pool2d(x, 3, stride=2, padding=1), signed(1, 2, 4, 4)),
    normalization.BatchNorm: (
        lambda x, w, b: T.batch_norm(x, None, None, w, b, training=True),
        signed(3, 2, 2, 2),
        signed(2, seed=1),
        signed(2, seed=2),
    ),
    normalization.LayerNorm: (T.layer_norm, signed(3, 4), signed(4, seed=1), signed(4, seed=2)),
    normalization.RMSNorm: (T.rms_norm, signed(3, 4), signed(4, seed=1)),
    shapes.Concatenate: (lambda a, b: T.concatenate([a, b]), signed(2, 3), signed(1, 3, seed=1)),
    shapes.Stack: (lambda a, b: T.stack([a, b], axis=1), signed(2, 3), signed(2, 3, seed=1)),
}
FLAT = ["sign", "floor", "ceil", "round", "trunc"]  # gradient 0, which has no sign
OF_TWO = ["sub", "mul", "div", "pow", "maximum", "minimum", "where", "safe_div", "matmul", "dot", "outer"]
BROADCAST = ["add", "sub", "mul", "div", "pow", "where", "safe_div"]


def inputs_of(name):
    return list(T.RULES[name].function.gradients)


def check(program):
    return gradcheck(*program)


def test_every_operation_is_here():
    assert set(RULES) == set(T.RULES)
    assert set(FUNCTIONS) == {f for f in T.Function.__subclasses__() if f.__module__.startswith(T.__name__)} - {Rule}


@every("name", RULES)
def test_the_rule_as_it_is_passes(name):
    assert check(RULES[name]), check(RULES[name])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_function_as_it_is_passes(function):
    assert check(FUNCTIONS[function]), check(FUNCTIONS[function])


def broken(gradient, change):
    """The same formula with its result changed. What it names is what forward saves, so the signature stays."""

    def formula(g, *saved):
        return change(g, gradient(g, *saved))

    formula.__signature__ = inspect.signature(gradient)
    return formula


@every(("what", "factor"), [("wrong sign", -1.0), ("1% too much", 1.01), ("no gradient", 0.0)])
@every("name", [name for name in RULES if name not in FLAT])
def test_a_factor_in_a_rule_is_caught(name, what, factor):
    for position, key in enumerate(inputs_of(name)):
        with T.replaced_gradient(
            name, **{key: broken(T.RULES[name].function.gradients[key], lambda g, grad: factor * grad)}
        ):
            report = check(RULES[name])
        assert not report.passed, f"{name}, {key}: {what}"
        assert {failure.input for failure in report.failures} == {position}


@pytest.mark.parametrize("name", FLAT)
def test_a_gradient_where_there_is_none_is_caught(name):
    with T.replaced_gradient(name, x=lambda g: g):
        assert not check(RULES[name])


@pytest.mark.parametrize("name", OF_TWO)
def test_swapped_operands_are_caught(name):
    first, second = inputs_of(name)
    gradients = T.RULES[name].function.gradients
    program = RULES[name]
    if name in BROADCAST or name in ("maximum", "minimum"):
        program = (program[0], near(3, 3), near(3, 3, seed=1))
    assert check(program)
    with T.replaced_gradient(name, **{first: gradients[second], second: gradients[first]}):
        assert not check(program)


@pytest.mark.parametrize("name", BROADCAST)
def test_a_missing_sum_over_a_broadcast_axis_is_caught(name):
    key = inputs_of(name)[1]
    first_row = broken(T.RULES[name].function.gradients[key], lambda g, grad: np.broadcast_to(grad, g.shape)[:1])
    with T.replaced_gradient(name, **{key: first_row}):
        assert not check(RULES[name])


@pytest.mark.parametrize("name", [*BROADCAST, "broadcast_to", "linear"])
def test_an_engine_that_forgets_to_sum_is_caught(name, monkeypatch):
    def first_copy(grad, shape):
        while grad.ndim > len(shape):
            grad = grad[0]
        return grad[tuple(slice(0, size) for size in shape)]

    monkeypatch.setattr(graph, "unbroadcast", first_copy)
    assert not check(RULES[name])


@pytest.mark.parametrize(("what", "factor"), [("wrong sign", -1.0), ("1% too much", 1.01), ("no gradient", 0.0)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_factor_in_a_function_is_caught(function, what, factor, monkeypatch):
    backward = function.backward
    for position in range(len(FUNCTIONS[function]) - 1):

        def changed(ctx, grad, position=position):
            grads = backward(ctx, grad)
            grads = list(grads) if isinstance(grads, tuple | list) else [grads]
            grads[position] = factor * grads[position]
            return tuple(grads)

        monkeypatch.setattr(function, "backward", staticmethod(changed))
        report = check(FUNCTIONS[function])
        assert {failure.input for failure in report.failures} == {position}, what


@pytest.mark.parametrize(
    "function", [normalization.BatchNorm, normalization.LayerNorm, convolution.Conv2d, shapes.Stack]
)
def test_swapped_gradients_of_a_function_are_caught(function, monkeypatch):
    backward = function.backward

    def changed(ctx, grad):
        grads = list(backward(ctx, grad))
        if function is convolution.Conv2d:
            return grads[0], grads[1].swapaxes(0, 1), grads[2]
        return (*grads[:-2], grads[-1], grads[-2])

    monkeypatch.setattr(function, "backward", staticmethod(changed))
    assert not check(FUNCTIONS[function])


@pytest.mark.parametrize(
    ("function", "position"), [(convolution.Conv2d, 2), (normalization.LayerNorm, 1), (normalization.RMSNorm, 1)]
)
def test_a_function_that_forgets_the_batch_is_caught(function, position, monkeypatch):
    backward = function.backward

    def changed(ctx, grad):
        grads = list(backward(ctx, grad))
        grads[position] = grad[0].sum(axis=(1, 2)) if function is convolution.Conv2d else grads[position][0]
        return tuple(grads)

    monkeypatch.setattr(function, "backward", staticmethod(changed))
    assert not check(FUNCTIONS[function])


def forgets(gradient_of, position):
    """A backward that returns nothing for one input."""

    def backward(ctx, grad):
        grads = gradient_of(ctx, grad)
        grads = list(grads) if isinstance(grads, tuple | list) else [grads]
        grads[position] = None
        return tuple(grads)

    return staticmethod(backward)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_returns_nothing_is_caught(function, monkeypatch):
    backward = function.backward
    for position in range(len(FUNCTIONS[function]) - 1):
        monkeypatch.setattr(function, "backward", forgets(backward, position))
        assert {failure.input for failure in check(FUNCTIONS[function]).failures} == {position}


@pytest.mark.parametrize("name", [*(name for name in RULES if name not in FLAT), *FUNCTIONS])
def test_an_edge_that_forward_does_not_record_is_caught(name, monkeypatch):
    function, program = (T.RULES[name].function, RULES[name]) if name in RULES else (name, FUNCTIONS[name])
    apply = function.apply
    for position in range(len(program) - 1):

        def without_edge(*inputs, position=position, **settings):
            inputs = list(inputs)
            inputs[position] = inputs[position].detach()
            return apply(*inputs, **settings)

        monkeypatch.setattr(function, "apply", without_edge)
        assert {failure.input for failure in check(program).failures} == {position}


# For each operation of Value a program and its inputs, at a place where every derivative matters.
VALUES = {
    "__add__": (lambda a, b: a + b, 1.3, -0.7),
    "__sub__": (lambda a, b: a - b, 1.3, -0.7),
    "__mul__": (lambda a, b: a * b, 1.3, -0.7),
    "__truediv__": (lambda a, b: a / b, 1.3, -0.7),
    "__neg__": (lambda a: -a, 1.3),
    "__pow__": (lambda a, b: a**b + b**2, 1.3, 0.7),
    "__abs__": (lambda a: abs(a), -1.3),
    "max": (lambda a, b: a.max(b) + b.max(a + 3), 1.3, 0.7),
    "min": (lambda a, b: a.min(b) + b.min(a + 3), 1.3, 0.7),
    **{name: (lambda a, name=name: getattr(a, name)(), 0.7) for name in ["exp", "log", "tanh", "sigmoid", "relu"]},
    "dot": (lambda a, b, c: value.dot([a, b], [b, c], c), 1.3, -0.7, 0.4),
}


def test_every_operation_of_value_is_here():
    source = ast.parse(inspect.getsource(value))
    operations = {
        function.name
        for function in ast.walk(source)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_result"
    }
    assert set(VALUES) == operations


@pytest.mark.parametrize("operation", VALUES)
def test_an_operation_of_value_as_it_is_passes(operation):
    program, *numbers = VALUES[operation]
    assert check((program, *map(Value, numbers)))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("wrong sign", lambda derivative: -derivative),
        ("1% too much", lambda derivative: 1.01 * derivative),
        ("no gradient", lambda derivative: 0.0),
        ("no edge", None),
    ],
)
@pytest.mark.parametrize("operation", VALUES)
def test_an_operation_of_value_that_is_broken_is_caught(operation, what, change, monkeypatch):
    program, *numbers = VALUES[operation]
    place = value if operation == "dot" else Value
    right = getattr(place, operation)
    parents = 5 if operation == "dot" else len(numbers)
    for position in range(parents):

        def broken_operation(*inputs, position=position):
            result = right(*inputs)
            if len(result.parents) > position:  # b**2 has one parent
                rest = slice(position + 1, None)
                own = () if change is None else (change(result.derivatives[position]),)
                kept = () if change is None else (result.parents[position],)
                result.parents = (*result.parents[:position], *kept, *result.parents[rest])
                result.derivatives = (*result.derivatives[:position], *own, *result.derivatives[rest])
            return result

        monkeypatch.setattr(place, operation, broken_operation)
        assert not check((program, *map(Value, numbers))), f"{operation}, parent {position}: {what}"
