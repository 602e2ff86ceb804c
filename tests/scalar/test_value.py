"""Value against torch in float64: every operation, its kinks and edges, a thousand random graphs, and the errors."""

import gc
import math
import operator
import random
import sys
from fractions import Fraction

import micrograd.engine
import numpy as np
import pytest
import torch

from mlx_grpo_kit.scalar import Value, dot, topological_order
from tests.every import every

INF, NAN = math.inf, math.nan


def tensor(x):
    return torch.tensor(float(x), dtype=torch.float64, requires_grad=True)


def assert_like_torch(function, *numbers, torch_function=None):
    """The same value and the same gradients, for all arguments."""
    values, tensors = [Value(x) for x in numbers], [tensor(x) for x in numbers]
    ours, theirs = function(*values), (torch_function or function)(*tensors)
    ours.backward()
    theirs.backward()
    assert ours.data == pytest.approx(theirs.item(), rel=1e-12, abs=1e-300, nan_ok=True)
    for value, reference in zip(values, tensors, strict=True):
        assert value.grad == pytest.approx(reference.grad.item(), rel=1e-12, abs=1e-300, nan_ok=True)


ONE = {
    **{name: operator.methodcaller(name) for name in ("exp", "tanh", "sigmoid", "relu")}, "neg": operator.neg,
    "abs": abs, "square": lambda x: x**2, "cube": lambda x: x**3, "to the 0": lambda x: x**0, "plus 2": lambda x: x + 2,
    "2 plus": lambda x: 2 + x, "minus 2": lambda x: x - 2, "2 minus": lambda x: 2 - x, "times 3": lambda x: x * 3,
    "3 times": lambda x: 3 * x, "over 4": lambda x: x / 4, "2 to the": lambda x: 2**x,
    "itself times itself": lambda x: x * x, "itself minus itself": lambda x: x - x,
}  # fmt: skip
POSITIVE = {
    "log": lambda x: x.log(),
    "inverse": lambda x: x**-1,
    "root": lambda x: x**0.5,
    "1 over": lambda x: 1 / x,
    "odd power": lambda x: x**-2.5,
}
TWO = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


@every("x", [-700.0, -3.5, -1e-3, 0.0, 1e-3, 0.5, 1.0, 20.0])
@every("name", ONE)
def test_one_argument(name, x):
    assert_like_torch(ONE[name], x)


@every("x", [1e-200, 1e-3, 0.5, 1.0, 20.0, 1e100])
@every("name", POSITIVE)
def test_one_positive_argument(name, x):
    if (name, x) != ("odd power", 1e-200):  # its value is beyond the floats, which is an error of its own
        assert_like_torch(POSITIVE[name], x)


@every("a", [-2.0, 0.0, 3.0])
@every("b", [-1.5, 1e-200, 4.0])
@every("name", TWO)
def test_two_arguments(name, a, b):
    if (name, abs(a), b) not in [("div", 2.0, 1e-200), ("div", 3.0, 1e-200)]:  # torch's derivative of these is -inf/nan
        assert_like_torch(TWO[name], a, b)


def test_a_tiny_divisor_has_a_huge_derivative_and_not_an_error():
    x = Value(1e-200)
    (1 / x).backward()
    assert x.grad == -math.inf


@pytest.mark.parametrize(("a", "b"), [(-1.0, 2.0), (2.0, -1.0), (1.5, 1.5), (0.0, 0.0)])
def test_max_and_min_share_between_equals(a, b):
    assert_like_torch(lambda a, b: a.max(b), a, b, torch_function=torch.maximum)
    assert_like_torch(lambda a, b: a.min(b), a, b, torch_function=torch.minimum)


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (2.0, 3.0), (2.0, -1.5), (0.5, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 2.0), (0.0, 0.5), (-2.0, 3.0), (-2.0, 2.0),
        (-2.0, -1.0), (3.0, 1.0), (1.0, 1000.0),
    ],
)  # fmt: skip
def test_power_in_both_arguments(base, exponent):
    assert_like_torch(lambda a, b: a**b, base, exponent)
    assert_like_torch(lambda a: a**exponent, base)


@pytest.mark.parametrize("x", [-1000.0, -745.0, -40.0, 40.0, 1000.0])
def test_sigmoid_does_not_overflow(x):
    assert_like_torch(lambda v: v.sigmoid(), x)


def test_nan_is_passed_on_and_not_hidden():
    assert math.isnan(Value(math.nan).relu().data)
    assert math.isnan((Value(math.nan) * 0).data)


def test_dot_is_the_sum_of_products():
    numbers = 2.0, -3.0, 0.5, 4.0, 1.0
    written_out = lambda a, b, c, d, e: a * c + b * d + e  # noqa: E731
    assert_like_torch(lambda a, b, c, d, e: dot([a, b], [c, d], e), *numbers, torch_function=written_out)
    assert_like_torch(lambda a: dot([a, a], [a, 3.0]), 2.0, torch_function=lambda a: a * a + 3 * a)
    with pytest.raises(ValueError, match="2 weights for 1 inputs"):
        dot([Value(1.0), Value(2.0)], [1.0])


# -- whole graphs -----------------------------------------------------------------------------------------------------


def random_program(rng, leaves, operations):
    """A list of (function, positions of its arguments): every result may be used again, so nodes are shared."""
    unary = [
        lambda x: x.tanh(), lambda x: x.sigmoid(), lambda x: x.relu(), abs, lambda x: -x, lambda x: x * x,
        lambda x: (x * x + 1).log(), lambda x: x.tanh().exp(), lambda x: 2 ** x.tanh(), lambda x: x**3 / 10,
    ]  # fmt: skip
    binary = [
        lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / (b * b + 1),
        lambda a, b: (a * a + 1) ** b.tanh(), lambda a, b: 0.5 - a + b * 2,
    ]  # fmt: skip
    program = []
    for count in range(leaves, leaves + operations):
        function, arity = (rng.choice(unary), 1) if rng.random() < 0.4 else (rng.choice(binary), 2)
        program.append((function, [rng.randrange(count) for _ in range(arity)]))
    return program


def run(program, leaves):
    values = list(leaves)
    for function, positions in program:
        result = function(*[values[position] for position in positions])
        values.append(result.tanh() if abs(result) > 50 else result)  # keeps the numbers in a sane range
    return sum(values[1:], values[0])


def test_gradients_equal_torchs_on_a_thousand_random_graphs_with_shared_nodes():
    rng = random.Random(0)
    worst = 0.0
    for _ in range(1000):
        numbers = [rng.uniform(-2, 2) for _ in range(4)]
        program = random_program(rng, 4, rng.randint(3, 14))
        values, tensors = [Value(x) for x in numbers], [tensor(x) for x in numbers]
        ours, theirs = run(program, values), run(program, tensors)
        ours.backward()
        theirs.backward()
        assert ours.data == pytest.approx(theirs.item(), rel=1e-12)
        for value, reference in zip(values, tensors, strict=True):
            expected = reference.grad.item()
            worst = max(worst, abs(value.grad - expected) / max(1.0, abs(expected)))
    assert worst < 1e-10


def test_a_shared_value_hands_its_gradient_on_once_it_is_complete():
    a = Value(3.0)
    b = a + a
    c = b + b
    c.backward()
    assert (a.grad, b.grad, c.grad) == (4.0, 2.0, 1.0)


def test_sharing_at_every_level_takes_time_by_values_and_not_by_paths():
    x = Value(1.0)
    y = x
    for _ in range(200):  # 2**200 paths
        y = y + y
    y.backward()
    assert x.grad == 2.0**200
    assert len(topological_order(y)) == 201


def test_topological_order_has_each_value_once_and_after_its_parents():
    a, b = Value(1.0), Value(2.0)
    c = a * b
    d = c + a
    e = d * c + b
    order = topological_order(e)
    assert len(order) == len(set(order))
    assert set(order) >= {a, b, c, d, e}
    for position, node in enumerate(order):
        assert all(order.index(parent) < position for parent in node.parents)
    assert order[-1] is e


def test_a_chain_of_a_million_values():
    collecting = gc.isenabled()
    gc.disable()  # the collector's rounds, not the chain, would be most of this test
    try:
        x = Value(1.0)
        y = x
        for _ in range(1_000_000):
            y = y + 1e-6
        y.backward()
        assert y.data == pytest.approx(2.0)
        assert x.grad == 1.0
        assert sys.getrecursionlimit() <= 10_000
        del y  # freeing a long chain must not overflow the stack either
    finally:
        if collecting:
            gc.enable()


def test_a_second_backward_adds_to_the_leaves_only():
    x, reference = Value(3.0), tensor(3.0)
    h = x * x
    y = h * h
    t = reference * reference * (reference * reference)
    for _ in range(3):
        y.backward()
        t.backward(retain_graph=True)
    assert x.grad == reference.grad.item()
    assert (y.grad, h.grad) == (1.0, 18.0)


def test_two_results_that_share_a_part():
    x, reference = Value(0.7), tensor(0.7)
    for number in (x, reference):
        shared = number.tanh() * number
        (shared * 2).backward(**({"retain_graph": True} if number is reference else {}))
        shared.exp().backward()
    assert x.grad == pytest.approx(reference.grad.item(), rel=1e-12)


def test_backward_of_a_leaf():
    x = Value(2.0)
    x.backward()
    assert x.grad == 1.0
    x.backward()
    assert x.grad == 2.0


def test_changing_a_number_after_the_forward_pass_leaves_its_derivatives_alone():
    x, w = Value(2.0), Value(5.0)
    y = x * w
    w.data = 100.0
    y.backward()
    assert x.grad == 5.0


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        3, True, 2.5, Fraction(1, 2), np.float64(1.5), np.float32(0.5), np.int64(4), np.bool_(True), np.array(2.0),
        torch.tensor(2.0),
    ],
)  # fmt: skip
def test_any_real_number_becomes_a_float(number):
    value = Value(number)
    assert type(value.data) is float
    assert value.data == float(number)


@pytest.mark.parametrize(
    "operate",
    [operator.add, operator.mul, operator.sub, operator.truediv, operator.pow, lambda n, v: v + n, lambda n, v: v**n],
)
def test_numpy_scalars_do_not_leak_in(operate):
    value = Value(3.0)
    result = operate(np.float64(2), value)
    assert isinstance(result, Value)
    result.backward()
    assert result.data == operate(2.0, 3.0)
    assert type(result.data) is type(value.grad) is float


def test_values_compare_by_their_numbers():
    a, b = Value(1.0), Value(2.0)
    assert a < b <= 2 <= b
    assert b > a >= 1.0 >= a
    assert np.float64(1.5) > a
    assert max(a, b) is b
    assert sorted([b, a])[0] is a
    assert b == 2
    assert np.float64(2) == b
    assert a != b
    assert a != None  # noqa: E711 (a comparison with something else is False, not an error)


def test_values_with_equal_numbers_are_two_as_in_micrograd():
    for make in (Value, micrograd.engine.Value):
        a, b = make(0.0), make(0.0)
        assert a == a
        assert a != b
        assert b not in [a]
        assert [a, b].index(b) == 1
        assert len({a, b}) == 2
        assert [each for each in (a, b) if each] == [a, b]  # even 0.0 is a node


def listed(root):
    """The nodes of a graph, as one collects them in a list."""
    nodes = []

    def visit(value):
        if value not in nodes:
            nodes.append(value)
            for child in value._prev:
                visit(child)

    visit(root)
    return nodes


def test_a_list_of_nodes_has_those_with_equal_numbers_too():
    def program(make):
        x, y = make(1.0), make(1.0)
        return x * y + x * 1.0

    assert len(listed(program(Value))) == len(listed(program(micrograd.engine.Value))) == 6


@pytest.mark.parametrize(
    "operate",
    [
        lambda array, v: array * v,
        lambda array, v: array - v,
        lambda array, v: array / v,
        lambda array, v: array**2 + v,
        lambda array, v: np.array([array.sum()]),
        lambda array, v: np.array([np.cumsum(array)[1] * v]),
        lambda array, v: np.array([array @ array * v]),
        lambda array, v: np.array([np.dot(np.array([2.0, 3.0]), array)]),
        lambda array, v: np.array([2.0, 3.0]) * v,
    ],
)
def test_arrays_of_values_compute_as_with_micrograd(operate):
    results = []
    for make in (Value, micrograd.engine.Value):
        values, v = [make(2.0), make(5.0)], make(4.0)
        total = sum(operate(np.array(values), v))
        total.backward()
        results.append([total.data, v.grad, *[value.grad for value in values]])
    assert results[0] == results[1]


@every("name", ["max", "min", "relu"])
@every(("a", "b"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (INF, NAN), (INF, INF), (-INF, INF), (0.0, -0.0)])
def test_nan_and_inf_are_torchs(name, a, b):
    ours = [Value(a), Value(b)]
    theirs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (a, b)]
    if name == "relu":
        result, expected = ours[0].relu() + ours[1].relu(), theirs[0].relu() + theirs[1].relu()
    else:
        result, expected = getattr(ours[0], name)(ours[1]), getattr(torch, f"{name}imum")(*theirs)
    result.backward()
    expected.backward()
    assert result.data == pytest.approx(expected.item(), nan_ok=True)
    assert [x.grad for x in ours] == pytest.approx([x.grad.item() for x in theirs], nan_ok=True)


def test_repr_and_format():
    assert repr(Value(2, label="a")) == "Value(data=2, grad=0, label='a')"
    assert repr(Value(1 / 3)) == "Value(data=0.333333, grad=0)"
    assert f"{Value(1 / 3):.2f} {Value(2)}" == "0.33 Value(data=2, grad=0)"


# -- errors -----------------------------------------------------------------------------------------------------------

ERRORS = [
    (lambda v: v / 0, ZeroDivisionError, r"Value\(data=2, grad=0, label='a'\) / .*divided by zero"),
    (lambda v: 0 / (v - 2), ZeroDivisionError, "divided by zero.*add a small positive number"),
    (lambda v: (v - 2) ** -1, ZeroDivisionError, r"\*\* -1 divides by zero"),
    (lambda v: 0**-v, ZeroDivisionError, "divides by zero"),
    (lambda v: (v - 10) ** 0.5, ValueError, r"data=-8.*\*\* 0.5 is a complex number"),
    (lambda v: (-3) ** (v / 4), ValueError, "is a complex number.*whole exponents"),
    (lambda v: v**5000, OverflowError, "larger than the largest float"),
    (lambda v: (v * 1000).exp(), OverflowError, "overflows at 709.78"),
    (lambda v: (v - 2).log(), ValueError, "log of .*data=0.* above 0 only"),
    (lambda v: (-v).log(), ValueError, "log of .*data=-2"),
    (lambda v: math.tanh(v), TypeError, "forgets its graph"),
    (lambda v: v + "1", TypeError, "holds one real number; got str: '1'"),
    (lambda v: v * None, TypeError, "got NoneType"),
    (lambda v: v**1j, TypeError, "got complex"),
    (lambda v: v + np.complex128(1j), TypeError, "got complex128"),
    (lambda v: v * np.ones(3), TypeError, r"got ndarray of shape \(3,\).*make a list of Values"),
    (lambda v: v - np.ones(3), TypeError, r"got ndarray of shape \(3,\).*array \* value"),
    (lambda v: v < [1], TypeError, "got list"),
    (lambda v: Value(v), TypeError, "got Value"),
]


@pytest.mark.parametrize(("broken", "error", "message"), ERRORS, ids=[message for _, _, message in ERRORS])
def test_what_has_no_result_says_so(broken, error, message):
    with pytest.raises(error, match=message):
        broken(Value(2.0, label="a"))


def test_the_second_argument_is_the_label_and_the_rest_have_names():
    a = Value(2.0, "a")
    assert (a.label, a.op, a.parents) == ("a", "", ())
    square = Value(4.0, op="square", parents=(a,), derivatives=(4.0,))
    square.backward()
    assert a.grad == 4.0
    with pytest.raises(TypeError, match="positional"):
        Value(4.0, "square", (a,), (4.0,))
