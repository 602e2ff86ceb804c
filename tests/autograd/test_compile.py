"""What compiling would freeze is refused, whichever way it came in; the rest gives the numbers of uncompiled MLX."""

import collections
import contextlib
import copy
import copyreg
import functools
import math
import types
from dataclasses import dataclass

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.autograd import CapturedArrayError, GradientError, compile_value_and_grad, compiled, value_and_grad
from mlx_grpo_kit.qwen3 import load_pretrained, qwen3_forward
from mlx_grpo_kit.runtime import mx

X = mx.array([1.0, -2.0, 0.5])
TABLE = mx.array([3.0, 1.0, 2.0])
FRIENDS = types.SimpleNamespace(layers=[{"w": mx.array(2.0)}])
MODULE = types.ModuleType("tables")
MODULE.inner = types.ModuleType("inner")
MODULE.inner.table = mx.array([1.0])


class Slotted:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = mx.array(2.0)

    def __call__(self, x):
        return x * self.weight


class OfItsClass:
    shared = mx.array(4.0)

    @property
    def doubled(self):
        return 2 * self.shared

    def forward(self, x):
        return x * self.doubled


@dataclass
class Layer:
    weight: mx.array

    def forward(self, x):
        return x * self.weight

    @staticmethod
    def plain(x):
        return x * TABLE


CAPTURED = mx.array(2.0)


def uses_global(x):
    return x * TABLE


def uses_it_two_calls_away(x):
    return 1 + uses_global(x)


def uses_default(x, w=mx.array(2.0)):  # noqa: B008
    return x * w


def uses_keyword_default(x, *, w=mx.array(2.0)):  # noqa: B008
    return x * w


def within(x):
    return sum(x * value for value in [TABLE])


def around(value):
    return lambda x: x * _of(value)


def _of(value):
    while not isinstance(value, (mx.array, np.ndarray)):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return mx.array(value)


def under(transformation):
    w = mx.array(2.0)
    inner = transformation(lambda y: (y * w).sum())
    return lambda x: inner(x)


def custom_rule():
    w = mx.array(2.0)

    @mx.custom_function
    def scale(x):
        return x * 2.0

    @scale.vjp
    def rule(primals, cotangent, output):
        return cotangent * w

    return lambda x: mx.grad(lambda y: scale(y).sum())(x)


def fixed(x, w):
    return x * w


CAPTURES = {
    "closure": (around(mx.array(2.0)), "`value`, a variable around the lambda"),
    "closure, NumPy": (around(np.array(2.0)), "`value`, a variable around the lambda"),
    "a list": (around([mx.array(2.0)]), r"`value\[0\]`"),
    "a tuple of dictionaries": (around(({"w": mx.array(2.0)},)), r"`value\[0\]\['w'\]`"),
    "a deque": (around(collections.deque([mx.array(2.0)])), "`value`"),
    "an iterator": (around(iter([mx.array(2.0)])), "`value"),
    "a global": (uses_global, "`TABLE`, a global that `uses_global` uses"),
    "a global of a function it calls": (uses_it_two_calls_away, "`TABLE`, a global that `uses_global` uses"),
    "a global in a comprehension": (within, "`TABLE`"),
    "an attribute of a global": (lambda x: x * FRIENDS.layers[0]["w"], r"`FRIENDS.layers\[0\]\['w'\]`"),
    "an attribute of a module": (lambda x: x * MODULE.inner.table, "`MODULE.inner.table`"),
    "an attribute of a class": (lambda x: x * OfItsClass.shared, "`OfItsClass.shared`"),
    "a default": (uses_default, "`w`, a default of `uses_default`"),
    "a keyword default": (uses_keyword_default, "`w`, a default of `uses_keyword_default`"),
    "partial, by place": (functools.partial(fixed, mx.array(2.0)), "`argument 1`, fixed by functools.partial in `fix"),
    "partial, by name": (functools.partial(fixed, w=mx.array(2.0)), "`w`, fixed by functools.partial"),
    "partial of partial": (functools.partial(functools.partial(fixed, w=mx.array(2.0))), "`w`, fixed by"),
    "a bound method": (Layer(mx.array(2.0)).forward, "`self.weight`, the object whose method `forward` is"),
    "a bound method's class": (OfItsClass().forward, "`self.shared`"),
    "a static method": (Layer(1.0).plain, "`TABLE`"),
    "a callable object": (Slotted(), "`weight`"),
    "a callable object in a closure": ((lambda net: lambda x: net(x))(Slotted()), "`net.weight`"),
    "a method called in a closure": ((lambda net: lambda x: net.forward(x))(OfItsClass()), "`net.shared`"),
    "a function in a closure": ((lambda f: lambda x: f(x))(around(mx.array(2.0))), "`value`"),
    "behind grad": (under(mx.grad), "`w`, a variable around the lambda"),
    "behind checkpoint": (under(mx.checkpoint), "`w`"),
    "behind compile": (under(mx.compile), "`w`"),
    "behind vmap": (under(mx.vmap), "`w`"),
    "behind custom_function": (custom_rule(), "`w`, a variable around `rule`"),
}  # fmt: skip


@pytest.mark.parametrize("name", CAPTURES)
def test_every_way_of_capturing_is_refused(name):
    function, where = CAPTURES[name]
    with pytest.raises(CapturedArrayError, match=where):
        compiled(function)(X)


def test_the_stale_value_and_the_zero_gradient_are_real():
    """What MLX does, and why this file exists. If it stops doing so, the refusal may go."""
    state = {"w": mx.array(2.0)}
    frozen = mx.compile(lambda x: x * state["w"])
    for _ in range(2):  # the first function that a program compiles is traced twice
        assert frozen(X).tolist() == (2 * X).tolist()
    state["w"] = mx.array(10.0)
    assert frozen(X).tolist() == (2 * X).tolist()
    with pytest.raises(CapturedArrayError, match=r"`state\['w'\]`"):
        compiled(lambda x: x * state["w"])(X)

    def loss(compile, w):
        return compile(lambda x: (x * w).sum())(X)

    assert mx.grad(functools.partial(loss, lambda f: f))(mx.array(3.0)).item() == X.sum().item()
    assert mx.grad(functools.partial(loss, mx.compile))(mx.array(3.0)).item() == 0.0
    with pytest.raises(CapturedArrayError, match="`w`"):
        mx.grad(functools.partial(loss, compiled))(mx.array(3.0))


def test_several_captures_are_counted():
    a, b, c = mx.array(1.0), mx.array(2.0), mx.array(3.0)
    with pytest.raises(CapturedArrayError, match=r"`a`, .* So is `b`, a variable around the lambda. Pass it"):
        compiled(lambda x: a * b * x)(X)
    with pytest.raises(CapturedArrayError, match="So are 2 more"):
        compiled(lambda x: a * b * c * x)(X)


def test_random_numbers_without_a_key_are_refused_and_with_one_are_fresh():
    def noisy(x):
        return x + mx.random.normal(x.shape)

    for _ in range(2):
        with pytest.raises(CapturedArrayError, match="`noisy` draws random numbers without a key"):
            compiled(noisy)(X)
        mx.eval(mx.random.normal((2,)))  # the generator still works
    keyed = compiled(lambda x, key: x + mx.random.normal(x.shape, key=key))
    for seed in (0, 1):
        key = mx.random.key(seed)
        np.testing.assert_allclose(keyed(X, key), X + mx.random.normal(X.shape, key=key), rtol=1e-6)


def test_what_is_no_captured_array_is_let_through():
    scale, names, table = 2.0, ["a", "b"], mx.array([9.0])
    config = Layer(weight=3.0)

    class Unused:
        shared = mx.array(1.0)

    def function(x, params):
        table = mx.array([1.0, 2.0, 3.0])  # made inside: a constant, as it should be
        value = Unused.__name__, names, math.pi
        return x * scale * config.weight + params["TABLE"] + table + len(value)

    run = compiled(function)
    np.testing.assert_allclose(run(X, {"TABLE": X}), function(X, {"TABLE": X}), rtol=1e-6)
    assert table.item() == 9.0


def test_a_recursive_function_and_a_missing_cell():
    def down(x, n=3):
        return x if n == 0 else 2 * down(x, n - 1)

    assert compiled(down)(X).tolist() == (8 * X).tolist()
    if math.pi < 0:
        never = 1
    assert compiled(lambda x: x + 1 if x.ndim else never)(X).tolist() == (X + 1).tolist()


def test_new_shapes_dtypes_and_the_uncompiled_path():
    calls = []

    def double(x):
        calls.append(x.shape)
        return 2 * x

    run = compiled(double)
    for x in (X, X + 1, mx.ones((2, 2)), X.astype(mx.bfloat16)):
        assert run(x).tolist() == (2 * x).tolist()
    assert len(calls) == 3
    assert run.__wrapped__ is double
    assert run.__name__ == "double"


def mlp_loss(params, x, y):
    hidden = mx.tanh(x @ params["w1"] + params["b1"])
    return ((hidden @ params["w2"])[:, 0] - y).square().mean()


def mlp():
    keys = mx.random.split(mx.random.key(0), 4)
    params = {
        "w1": mx.random.normal((3, 5), key=keys[0]),
        "b1": mx.zeros(5),
        "w2": mx.random.normal((5, 1), key=keys[1]),
    }
    return params, mx.random.normal((8, 3), key=keys[2]), mx.random.normal((8,), key=keys[3])


def test_compiled_gradients_equal_uncompiled_ones_and_follow_new_data():
    params, x, y = mlp()
    step = compile_value_and_grad(mlp_loss)
    for shift in (0.0, 1.0, -2.0):
        loss, grads = step(params, x + shift, y)
        expected, theirs = value_and_grad(lambda p, shift=shift: mlp_loss(p, x + shift, y), params)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert grads.keys() == params.keys()
        for name in params:
            np.testing.assert_allclose(grads[name], theirs[name], rtol=1e-4, atol=1e-6)
        params = {name: value - 0.1 * grads[name] for name, value in params.items()}


def test_compiled_gradients_of_the_whole_model():
    config, params = load_pretrained(TINY)

    def loss_fn(params, ids):
        return qwen3_forward(config, params, ids).logsumexp(-1).mean()

    ids = mx.array([[1, 5, 9, 2], [7, 7, 3, 4]])
    loss, grads = compile_value_and_grad(loss_fn)(params, ids)
    expected, theirs = value_and_grad(lambda p: loss_fn(p, ids), params)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name in params:
        np.testing.assert_allclose(grads[name], theirs[name], rtol=1e-3, atol=1e-5)


def test_what_is_wrong_with_a_loss_is_told_in_the_first_call():
    params, x, y = mlp()

    def loss_fn(params, y):
        return mlp_loss(params, x, y)

    with pytest.raises(CapturedArrayError, match="`x`, a variable around `loss_fn`"):
        compile_value_and_grad(loss_fn)(params, y)
    with pytest.raises(GradientError, match="no path from params to the loss"):
        compile_value_and_grad(lambda p, x: x.square().mean())(params, x)
    with pytest.raises(GradientError, match="expected a scalar"):
        compile_value_and_grad(lambda p, x: x @ p["w1"])(params, x)


class OfAModule:
    """Its instances are made inside of the compiled function, by a name in a module."""

    weight = mx.array(2.0)

    def forward(self, x):
        return x * self.weight

    @classmethod
    def of_class(cls, x):
        return x * cls.weight


MODULE.Layer = OfAModule
MODULE.Layer.itself = MODULE.Layer  # and a class that leads back to itself
GENERATED = (array for array in [TABLE])
BY_NEED = collections.defaultdict(lambda: TABLE)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: MODULE.Layer().forward(x), "MODULE.Layer.weight"),
        (lambda x: MODULE.Layer.of_class(x), "MODULE.Layer.weight"),
        (lambda x: MODULE.Layer.itself.of_class(x), "MODULE.Layer.weight"),
        (lambda x: x * next(GENERATED), "GENERATED"),
        (lambda x: x * BY_NEED["w"], "TABLE"),
    ],
)
def test_arrays_behind_classes_generators_and_factories_are_found(function, named):
    with pytest.raises(CapturedArrayError, match=named):
        compiled(function)(X)


def test_the_object_that_is_called_itself_is_named():
    with pytest.raises(CapturedArrayError, match="`Slotted` uses `weight`, kept by `Slotted` itself"):
        compiled(Slotted())(X)


@pytest.mark.parametrize("thing", [3, None, TABLE])
def test_what_is_no_function_is_refused_at_once(thing):
    with pytest.raises(TypeError, match=r"compiled got .*; expected a function"):
        compiled(thing)


def test_the_globals_of_pythons_own_modules_are_left_alone(monkeypatch):
    """They lead everywhere: whoever calls copy.deepcopy refers to what any library has registered with copyreg."""
    looked = []

    def registered(thing):
        return looked, CAPTURED

    monkeypatch.setitem(copyreg.dispatch_table, type("Foreign", (), {}), registered)

    def step(x, options):
        return x * copy.deepcopy(options)["rate"]

    assert compiled(step)(mx.array(2.0), {"rate": 3.0}).item() == 6

    @contextlib.contextmanager
    def with_array():
        yield CAPTURED

    def through_a_library(x):
        with with_array() as w:
            return x * w

    with pytest.raises(CapturedArrayError, match="`CAPTURED`, a global that `with_array` uses"):
        compiled(through_a_library)(mx.array(2.0))
