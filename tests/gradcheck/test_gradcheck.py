"""What gradcheck says, for four engines: right gradients pass, wrong ones are named, and the report reads well."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.gradcheck import check_gradient, gradcheck
from mlx_grpo_kit.gradcheck.differences import Probe
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.tensor.rules.reductions import spread
from mlx_grpo_kit.tensor.rules.rule import rule
from tests.every import every


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


class WrongInOnePlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad):
        slope = 2 * ctx.saved_tensors[0]
        slope.reshape(-1)[3] *= 1.01
        return grad * slope


@mx.custom_function
def wrong_in_mlx(x):
    return mx.sin(x)


@wrong_in_mlx.vjp
def wrong_in_mlx_vjp(primals, cotangent, output):
    return -cotangent * mx.cos(primals)


# -- the four engines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "inputs", "engine"),
    [
        (lambda a, b: (a * b + a.exp()).tanh(), (Value(1.0), Value(-2.0)), "Value"),
        (lambda a, b: [a * b, [a / b]], (Value(1.0), Value(-2.0)), "Value"),
        (lambda a, b: T.relu(a @ b), (T.Tensor(numbers(3, 4)), T.Tensor(numbers(4, 2))), "Tensor"),
        (lambda a, b: (a @ b, a * 2), (T.Tensor(numbers(3, 4)), T.Tensor(numbers(4, 2))), "Tensor"),
        (lambda a: torch.relu(a) ** 2, (torch.tensor(numbers(3, 4)),), "torch"),
        (lambda a: mx.sin(a) * a, (mx.array(numbers(3, 4)),), "MLX"),
        (lambda a, b: [mx.sin(a) @ b, mx.exp(b)], (mx.array(numbers(3, 4)), mx.array(numbers(4, 2))), "MLX"),
    ],
)
def test_right_gradients_pass(fn, inputs, engine):
    report = gradcheck(fn, *inputs)
    assert report.passed, report
    assert report.engine == engine
    assert str(report).startswith("gradcheck passed: ")


def wrong_value(x):
    return Value(x.data**2, op="square", parents=(x,), derivatives=(3 * x.data,))


@pytest.mark.parametrize(
    ("fn", "inputs", "where"),
    [
        (lambda a, b: wrong_value(a) * b, (Value(1.5), Value(-2.0, label="b")), "input 0"),
        (lambda a: WrongInOnePlace.apply(a), (torch.tensor(numbers(2, 3)),), "input 0 at index (1, 0)"),
        (lambda a, b: a + wrong_in_mlx(b), (mx.array([0.5, 2.0]), mx.array([1.0, 3.0])), "input 1 at index 1"),
    ],
)
def test_a_wrong_gradient_is_named(fn, inputs, where):
    report = gradcheck(fn, *inputs)
    assert not report
    assert report.worst.where == where
    assert f"Worst: {where}" in str(report)


def test_constants_are_passed_on():
    report = gradcheck(lambda x, ids, scale: x[ids] * scale, T.Tensor(numbers(4)), np.array([0, 0, 3]), 2.5)
    assert report.count == 4
    assert report.passed


def test_a_gradient_that_never_arrives():
    report = gradcheck(lambda x: T.Tensor(x.data) * 2, T.Tensor(numbers(3), label="w"))
    assert not report
    assert "The gradient of 'w' is 0 everywhere: nothing came back to it." in str(report)
    assert not gradcheck(lambda x: x.detach() ** 2, torch.tensor(numbers(3)))
    assert not gradcheck(lambda x: mx.stop_gradient(x) * x, mx.array([1.0, 2.0]))


# -- the report reads like a sentence ---------------------------------------------------------------------------------


LEAVES = {
    "Value": lambda: Value(2.0),
    "Tensor": lambda: T.Tensor([0.5, 2.0]),
    "torch": lambda: torch.tensor([0.5, 2.0]),
    "MLX": lambda: mx.array([0.5, 2.0]),
}


@every("returned", [None, [], (), "text", {"a": 1}, [None, None]])
@every(("engine", "second_order"), [*[(name, False) for name in LEAVES], ("torch", True), ("MLX", True)])
def test_a_function_that_returns_no_arrays_raises_an_error(engine, returned, second_order):
    what = (
        "an empty list" if returned in ([], ()) else "NoneType" if returned == [None, None] else type(returned).__name__
    )
    with pytest.raises(TypeError, match=f"fn returned {what}; expected one array of {engine}"):
        gradcheck(lambda x: returned, LEAVES[engine](), second_order=second_order)


def test_a_function_of_mlx_returns_arrays_of_mlx():
    for constant in (1.0, np.ones(2)):
        with pytest.raises(TypeError, match=r"fn returned .*; expected one array of MLX"):
            gradcheck(lambda x: constant, mx.array([0.5]))  # noqa: B023


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: torch.complex(x, x * x), torch.tensor([0.5, 2.0])),
        (lambda x: [x, torch.view_as_complex(torch.stack([x, x], -1))], torch.tensor([0.5, 2.0])),
        (lambda x: x * 1j, mx.array([0.5, 2.0])),
        (lambda x: x.data * 1j, T.Tensor([0.5, 2.0])),
    ],
)
def test_complex_outputs_raise_an_error(fn, x):
    with pytest.raises(ValueError, match="fn returned complex numbers"):
        gradcheck(fn, x)


@pytest.mark.parametrize(
    ("x", "to_half"),
    [
        (torch.tensor([0.5, 2.0]), lambda x: x.to(torch.bfloat16)),
        (torch.tensor([0.5, 2.0]), lambda x: x.half()),
        (mx.array([0.5, 2.0]), lambda x: x.astype(mx.bfloat16)),
        (mx.array([0.5, 2.0]), lambda x: x.astype(mx.float16)),
        (T.Tensor([0.5, 2.0]), lambda x: x.astype(np.float16)),
    ],
)
def test_inputs_and_outputs_of_16_bits_raise_an_error(x, to_half):
    with pytest.raises(ValueError, match=r"input 0 has dtype b?float16, which is too coarse"):
        gradcheck(lambda x: x * x, to_half(x))
    with pytest.raises(ValueError, match=r"fn returned b?float16, which is too coarse"):
        gradcheck(lambda x: to_half(x * x), x)


@pytest.mark.parametrize("empty", [T.Tensor(np.ones((0, 3))), torch.ones(0, 3), mx.ones((0, 3))])
def test_a_check_without_numbers_raises_an_error(empty):
    with pytest.raises(ValueError, match=r"input 0 of shape \(0, 3\): there is no number"):
        gradcheck(lambda x: x * x, empty)
    assert gradcheck(lambda x, y: (x * x).sum() + (y * y).sum(), empty, one_like(empty))


def one_like(x):
    return {T.Tensor: T.Tensor, torch.Tensor: torch.tensor}.get(type(x), mx.array)([2.0])


@pytest.mark.parametrize("x", [T.Tensor([0.5]), torch.tensor([0.5]), mx.array([0.5])])
def test_a_function_that_returns_no_numbers_raises_an_error(x):
    with pytest.raises(ValueError, match="fn returned no numbers"):
        gradcheck(lambda x: x[:0], x)


@pytest.mark.parametrize("wrong", [lambda x: None, lambda x: x * 1j, lambda x: x[:0]])
def test_a_separate_forward_returns_real_numbers(wrong):
    with pytest.raises(TypeError, match=r"forward_fn returned .*; expected an array of real numbers"):
        check_gradient(wrong, lambda g, x: g, np.ones(2))
    with pytest.raises(ValueError, match=r"x of shape \(0,\): there is no number"):
        check_gradient(np.sin, lambda g, x: g * np.cos(x), np.ones(0))


def test_the_words_of_a_pass_and_of_a_failure():
    x = T.Tensor([[1.0, 2.0]], label="x")
    assert str(gradcheck(lambda x: (x * x).sum(), x)) == (
        "gradcheck passed: 2 derivatives of Tensor agree with the complex step.\n"
        "  Largest difference 0.0e+00, 'x' at index (0, 0): analytic 2, numeric 2."
    )
    with T.replaced_gradient("mul", a=lambda g, b: -g * b, b=lambda g, a: -g * a):
        assert str(gradcheck(lambda x: (x * x).sum(), x)) == (
            "gradcheck FAILED: 2 of 2 derivatives of Tensor are wrong.\n"
            "  Worst: 'x' at index (0, 1)\n"
            "    analytic                -4   what backward computed\n"
            "    numeric                  4   what the function does: the complex step\n"
            "    difference               8   200.0% of the larger\n"
            "  Also 'x' at index (0, 0): -2 should be 2\n"
            "  The gradient of 'x' is -1 times the right one everywhere: a wrong sign."
        )


def test_a_transposed_gradient_is_recognized():
    @rule(x=lambda g, x: (g * 2 * x).T)
    def square(x):
        return x * x

    del T.RULES["square"]
    x = T.Tensor(numbers(3, 3))
    x.data = x.data / 2
    report = gradcheck(lambda x: square(x).sum(), x)
    assert "is the transpose of the right one" in str(report)


def test_in_a_notebook_it_is_text_and_a_picture():
    report = gradcheck(lambda x, y: T.relu(x) * y, T.Tensor(numbers(3, 4)), T.Tensor(numbers(4)))
    shown = report._repr_html_()
    assert "\N{CHECK MARK} gradcheck passed" in shown
    assert 'alt="Maps of analytic minus numeric, one for each input. input 0, 3 by 4: only rounding' in shown
    assert "data:image/png;base64," in shown
    assert len(report.plot().figure.axes) == 3


def test_the_picture_of_a_failure_names_the_wrong_elements():
    with T.replaced_gradient("relu", x=lambda g, out: g * np.where(out > 0, 1, 0.1)):
        report = gradcheck(lambda x: T.relu(x).sum(), T.Tensor([1.0, -2.0, -3.0], label="x"))
    assert "\N{BALLOT X} gradcheck FAILED: 2 of 3" in report._repr_html_()
    assert "'x', 3: 2 of 3 wrong, by up to 0.1 at 1, 2." in report.plot().alt
    assert "No step makes them agree" in report.plot().alt
    _, errors = report.errors_by_step()
    np.testing.assert_allclose(errors, 0.1, rtol=1e-6)  # flat: no V where the gradient itself is wrong
    assert "The gradient of 'x' is right where it should not be 0, and wrong where it should" in str(report)
    assert "a constant factor" not in str(report)


def test_a_report_of_a_random_function_has_no_picture():
    shown = gradcheck(lambda x: T.dropout(x), T.Tensor(numbers(30)))._repr_html_()
    assert "not deterministic" in shown
    assert "<img" not in shown


def test_the_error_against_the_step_is_a_v():
    report = gradcheck(lambda x: T.sin(x), T.Tensor(1.0))
    steps, errors = report.errors_by_step()
    best = errors.argmin()
    assert 1e-7 < steps[best] < 1e-4
    assert errors[best] < 1e-9
    assert errors[0] > 1e-4
    assert errors[-1] > 1e-7


# -- kinks and edges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [T.abs, T.relu])
def test_a_kink_is_reported_and_a_subgradient_passes(operation):
    report = gradcheck(operation, T.Tensor(0.0))
    assert report.passed
    left, right = report.kinks[0].left, report.kinks[0].right
    assert (left, right) == pytest.approx((-1.0 if operation is T.abs else 0.0, 1.0))
    assert "not differentiable here" in str(report)
    assert f"any slope in [{left + 0.0:.6g}, 1] is a subgradient" in str(report)


def test_a_slope_outside_of_a_kink_fails():
    with T.replaced_gradient("abs", x=lambda g, x: g * np.where(x == 0, 2.0, np.sign(x))):
        report = gradcheck(T.abs, T.Tensor([0.0]))
    assert not report
    assert "which the engine gave, is NOT one" in str(report)


@pytest.mark.parametrize("x", [3e-6, -3e-6, 1e-5, 1e-7])
def test_a_step_that_reaches_over_a_kink_is_made_smaller(x):
    assert gradcheck(T.relu, T.Tensor([x, 1.0])).passed


def all_to_each(g, x, out, axis, keepdims):
    """The tie bug: every one of several largest numbers gets all of the gradient of their maximum."""
    return spread(g, x.shape, axis, keepdims) * (x == spread(out, x.shape, axis, keepdims))


TIES = {
    "two": (T.max, [[3.0, 3.0]]),
    "five of six": (T.max, [[3.0, 3.0, 3.0, 1.0, 3.0, 3.0]]),
    "rows": (lambda x: T.max(x, axis=1), [[[2.0, 2.0, 1.0], [0.0, 3.0, 3.0]]]),
    "rows with one maximum": (lambda x: T.max(x, axis=1), [[[2.0, 2.0, 1.0], [2.0, 2.0, 2.0]]]),
    "after relu": (lambda x: T.max(T.relu(x)), [[0.0, 0.0, -1.0]]),
    "two inputs": (lambda a, b: T.max(T.concatenate([a, b])), [[1.0, 2.0], [2.0, 0.0]]),
    "one in 3,000": (lambda x: T.max(x, axis=1), [np.minimum(np.arange(3000.0), 2998).reshape(1, 3000) / 100]),
}


@pytest.mark.parametrize("name", TIES)
def test_equal_elements_share_one_gradient(name):
    fn, inputs = TIES[name]
    assert gradcheck(fn, *map(T.Tensor, inputs)), gradcheck(fn, *map(T.Tensor, inputs))
    rules = {"max": {"x": all_to_each}}
    if name == "after relu":  # with 1 at 0, which is a right subgradient, so that something comes through
        rules["relu"] = {"x": lambda g, out: g}
    with contextlib.ExitStack() as broken:
        for operation, gradients in rules.items():
            broken.enter_context(T.replaced_gradient(operation, **gradients))
        assert not gradcheck(fn, *map(T.Tensor, inputs))


def test_a_tie_bug_in_words():
    with T.replaced_gradient("max", x=all_to_each):
        report = gradcheck(T.max, T.Tensor([3.0] * 5, label="x"))
    assert (
        "'x' at index 0, 'x' at index 1, 'x' at index 2 and 2 more are equal and share a gradient. Moved together, "
        "they have a slope of 1, but their gradients add up to 5." in str(report)
    )
    report._repr_html_()


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda x: x.max(1).values, [[[2.0, 2.0, 1.0], [0.0, 3.0, 3.0]]]),  # the first takes all
        (lambda x: x.amax(1), [[[2.0, 2.0, 1.0], [0.0, 3.0, 3.0]]]),
        (torch.maximum, [[1.0, 2.0], [1.0, 3.0]]),
        (torch.relu, [np.zeros(5)]),
        (lambda a, b: a.abs() - b.abs(), [[0.0], [0.0]]),
        (lambda x: torch.nn.functional.max_pool2d(x, 2), [np.ones((1, 1, 4, 4))]),
        (torch.linalg.norm, [np.zeros(3)]),
        (lambda x: torch.sort(x).values[:2], [[1.0, 1.0, 1.0]]),
        (lambda x: torch.clamp(x, 0, 1), [[0.0, 0.0, 1.0, 1.0]]),
    ],
)
def test_torchs_choices_at_ties_pass(fn, inputs):
    inputs = [torch.tensor(x, dtype=torch.float64) for x in inputs]
    assert gradcheck(fn, *inputs), gradcheck(fn, *inputs)


def test_kinks_that_share_nothing_may_choose_one_by_one():
    with T.replaced_gradient("relu", x=lambda g, out: g * np.array([1.0, 0.0, 0.5, 0.0, 1.0])):
        assert gradcheck(T.relu, T.Tensor(np.zeros(5)))


# -- large outputs, small inputs --------------------------------------------------------------------------------------

OFFSETS = {
    "relu + 1e7": (lambda x: T.relu(x) + 1e7, numbers(6)),
    "relu + 1e7 in one output": (lambda x: T.relu(x).sum() + 1e7, numbers(6)),
    "relu + 1e7, 3,600 of them": (lambda x: T.relu(x) + 1e7, numbers(60, 60)),
    "relu + 1e7 beside its kink": (lambda x: T.relu(x) + 1e7, np.array([3e-6, 1.0])),
    "(relu + 1e7) - 1e7": (lambda x: (T.relu(x) + 1e7) - 1e7, numbers(6)),
    "sin + 1e7": (lambda x: T.sin(x) + 1e7, numbers(6)),
    "sin + 1e4 in float32": (lambda x: T.sin(x) + 1e4, numbers(6).astype(np.float32)),
    "sin(3x) + 1e4 in float32": (lambda x: T.sin(3 * x) + 1e4, numbers(6).astype(np.float32)),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_large_outputs_hide_neither_a_right_gradient_nor_a_wrong_one(name):
    fn, x = OFFSETS[name]
    assert gradcheck(fn, T.Tensor(x)), gradcheck(fn, T.Tensor(x))
    for factor in (-1.0, 0.0, 0.8, 1.2):
        with (
            T.replaced_gradient("relu", x=lambda g, out: factor * g * (out > 0)),  # noqa: B023
            T.replaced_gradient("sin", x=lambda g, x: factor * g * np.cos(x)),  # noqa: B023
        ):
            assert not gradcheck(fn, T.Tensor(x)), factor


def test_what_large_outputs_hide_is_said():
    assert "The outputs reach 1.0e+07: their rounding hides errors below" in str(gradcheck(*_offset(1e7)))
    for detach in (False, True):  # a gradient that cannot be seen is not called right
        report = gradcheck(*_offset(1e13, detach))
        assert not report
        assert "The outputs reach 1.0e+13, and their rounding hides 3 of these derivatives." in str(report)
    big = gradcheck(lambda x: T.sin(x) + 1e4, T.Tensor(numbers(60, 60).astype(np.float32)))
    assert not big
    assert "an error as large as the largest derivative would not be seen" in str(big)


def _offset(size, detach=False):
    return lambda x: T.sigmoid(x.detach() if detach else x) + size + 0 * x, T.Tensor([0.5, 1.0, -2.0])


@pytest.mark.parametrize("x", [1e-4, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize(
    "fn", [lambda x: x.log(), lambda x: 1 / x, lambda x: x**0.5, lambda x: x**-0.5, lambda x: x.log() * 1e9 * x]
)
def test_a_small_input_gets_small_steps(fn, x):
    for leaf in (T.Tensor([x]), Value(x), torch.tensor([x], dtype=torch.float64)):
        assert gradcheck(fn, leaf), gradcheck(fn, leaf)

    def off(leaf):
        return leaf + 0.01 * (leaf - leaf.detach())  # the same value, and a gradient of 1% more

    assert not gradcheck(lambda leaf: fn(off(leaf)), torch.tensor([x], dtype=torch.float64))


def test_a_small_input_is_at_a_kink_only_where_the_kink_is():
    with T.replaced_gradient("relu", x=lambda g, out: 0.5 * g):
        assert gradcheck(T.relu, T.Tensor([0.0]))
        for x in (1e-12, -1e-12, 1e-9):
            assert not gradcheck(T.relu, T.Tensor([x]))


def test_curvature_is_no_kink():
    report = gradcheck(lambda x: T.relu(x) + 1000 * x * x, T.Tensor([1e-2, 1.0]))
    assert report.passed
    assert not report.kinks


def test_an_infinite_gradient_fails_and_says_so():
    report = gradcheck(T.sqrt, T.Tensor([0.0, 1.0]))
    assert not report
    assert "is inf or nan in 1 of 2 places" in str(report)
    assert gradcheck(T.safe_sqrt, T.Tensor([0.5, 1.0])).passed


# -- the complex step -------------------------------------------------------------------------------------------------


def test_the_complex_step_is_exact_and_finds_an_error_of_one_in_a_million():
    assert gradcheck(lambda x: T.exp(T.sin(x)), T.Tensor(numbers(4))).worst.difference < 1e-14
    with T.replaced_gradient("sin", x=lambda g, x: g * np.cos(x) * (1 + 1e-6)):
        assert not gradcheck(lambda x: T.exp(T.sin(x)), T.Tensor(numbers(4)))


@pytest.mark.parametrize(
    "fn",
    [
        T.abs, T.relu, lambda x: T.clip(x, -1, 1), lambda x: T.max(x, axis=0), lambda x: T.maximum(x, 0.1), T.sigmoid,
        lambda x: x * 2 if x.data.sum() > 0 else x, lambda x: x * np.abs(x.data).sum() * 0 + x,
    ],
)  # fmt: skip
def test_the_complex_step_refuses_what_is_not_analytic(fn):
    report = gradcheck(fn, T.Tensor(numbers(3)))
    assert report.passed, report


def test_what_the_graph_does_not_show_falls_back_to_central_differences():
    report = gradcheck(lambda x: x * np.abs(x.data), T.Tensor(numbers(3)))  # half of it is outside of the graph
    assert not report
    assert report.worst.numeric == pytest.approx(2 * report.worst.analytic, rel=1e-6)


# -- many elements ----------------------------------------------------------------------------------------------------


def test_one_wrong_percent_among_ten_thousand_is_found():
    x = T.Tensor(numbers(100, 100))
    assert gradcheck(lambda x: T.tanh(x) ** 2, x).passed
    off = np.ones((100, 100))
    off[12, 34] = 1.01
    with T.replaced_gradient("tanh", x=lambda g, out: g * (1 - out * out) * off):
        report = gradcheck(lambda x: T.tanh(x) ** 2, x)
    assert [failure.index for failure in report.failures] == [(12, 34)]


def wrong_tanh(*errors, shape=(250, 400)):
    """The rule of tanh with relative errors at places: (place, error) each."""
    factor = np.ones(shape)
    for place, error in errors:
        factor[place] += error
    return T.replaced_gradient("tanh", x=lambda g, out: g * (1 - out * out) * factor)


@pytest.mark.parametrize("fn", [lambda x: T.tanh(x) ** 2, lambda x: (T.tanh(x) ** 2).mean()], ids=["each", "mean"])
def test_a_tenth_of_a_percent_in_one_of_a_hundred_thousand_is_found(fn):
    x = T.Tensor(numbers(250, 400))
    assert gradcheck(fn, x).passed
    with wrong_tanh(((123, 210), 1e-3)):
        report = gradcheck(fn, x)
    assert [failure.index for failure in report.failures] == [(123, 210)]


def test_two_errors_that_cancel_in_a_plain_sum_are_both_found():
    x = T.Tensor(np.tile(numbers(250, 1), 400))
    with wrong_tanh(((7, 0), 1e-2), ((7, 1), -1e-2)):
        report = gradcheck(T.tanh, x)
    assert {failure.index for failure in report.failures} == {(7, 0), (7, 1)}


def test_the_report_says_what_an_error_must_amount_to_and_that_is_true():
    x = T.Tensor(numbers(250, 400))
    report = gradcheck(T.tanh, x)
    assert report.visible < 2e-5
    assert f"a single derivative that is off by more than {report.visible:.1e} is seen" in str(report)
    assert gradcheck(T.tanh, T.Tensor(numbers(3))).visible is None
    sizes = report.analytic[0]
    for place in [(0, 0), (100, 17), tuple(np.unravel_index(np.abs(sizes).argmin(), sizes.shape))]:
        with wrong_tanh((place, 1.01 * report.visible / sizes[place])):
            assert [failure.index for failure in gradcheck(T.tanh, x).failures] == [place]


def test_the_same_seed_makes_the_same_sums():
    first, again, other = (gradcheck(T.tanh, T.Tensor(numbers(3000)), seed=seed).visible for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("factor", [0.97, 1.0, 1.03])
def test_in_float32_an_error_of_three_percent_is_seen(factor):
    @mx.custom_function
    def square(x):
        return x * x

    @square.vjp
    def square_vjp(x, cotangent, output):
        return factor * 2 * x * cotangent

    assert bool(gradcheck(square, mx.array([1.0, 2.0, 3.0]))) == (factor == 1)


def test_kinks_among_many_are_no_errors():
    x = numbers(100, 100)
    x[5, :50] = np.linspace(-2e-5, 2e-5, 50)
    assert gradcheck(lambda x: T.relu(x) * x, T.Tensor(x))
    assert gradcheck(T.relu, T.Tensor(x))


def test_many_wrong_ones_are_shown_in_part():
    with T.replaced_gradient("tanh", x=lambda g: g):
        report = gradcheck(T.tanh, T.Tensor(numbers(60, 60)))
    assert 10 < len(report.failures) < 100
    assert len(str(report).splitlines()) < 15


# -- functions that misbehave -----------------------------------------------------------------------------------------


def test_a_random_function_is_not_blamed_on_the_gradient():
    report = gradcheck(lambda x: T.dropout(x), T.Tensor(numbers(30)))
    assert not report
    assert "not deterministic" in str(report)
    assert not report.failures


def test_a_changed_input_is_noticed():
    def greedy(x):
        y = x * 2
        x.data += 1
        return y

    assert "fn changed input 0 in place" in str(gradcheck(greedy, T.Tensor(numbers(3))))


def test_float32_is_checked_loosely_and_says_so():
    report = gradcheck(T.tanh, T.Tensor(numbers(3).astype(np.float32)))
    assert report.passed
    assert "float32 leaves about three digits" in str(report)
    with pytest.raises(ValueError, match="float16, which is too coarse"):
        gradcheck(T.tanh, T.Tensor(np.float16([1.0])))


@pytest.mark.parametrize("inputs", [(), (1.0,), (np.ones(3),), (Value(1.0), T.Tensor(1.0))])
def test_inputs_of_no_engine_or_of_two(inputs):
    with pytest.raises(TypeError, match=r"expected at least one array .* of one engine"):
        gradcheck(lambda *x: x[0], *inputs)


# -- second derivatives -----------------------------------------------------------------------------------------------


class WrongTwice(torch.autograd.Function):
    """x ** 3 with a right first derivative and a wrong second one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x.detach()


def test_second_order():
    x = torch.tensor(numbers(3))
    assert gradcheck(lambda x: x**3 * x.sum(), x, second_order=True).passed
    assert gradcheck(WrongTwice.apply, x).passed
    assert not gradcheck(WrongTwice.apply, x, second_order=True)
    assert gradcheck(lambda x, y: x**3 * y, mx.array([1.0, 2.0]), mx.array([0.5, 2.0]), second_order=True).passed
    with pytest.raises(ValueError, match="Tensor has first derivatives only"):
        gradcheck(T.tanh, T.Tensor(1.0), second_order=True)


# -- check_gradient ---------------------------------------------------------------------------------------------------


def test_check_gradient_of_a_backward_that_stands_by_itself():
    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def right(g, x):
        y = softmax(x)
        return y * (g - (g * y).sum(axis=-1, keepdims=True))

    x = numbers(2, 4)
    before = x.copy()
    assert check_gradient(softmax, right, x)
    assert not check_gradient(softmax, lambda g, x: g * softmax(x), x)
    # With a gradient of ones, as the sum of the outputs would have it, this passes: the right answer is 0 then.
    assert not check_gradient(softmax, lambda g, x: np.zeros_like(x), x)
    assert (x == before).all()
    assert check_gradient(lambda x: x**2, lambda g, x: 2 * g * x, [1, 2, 3])
    with pytest.raises(ValueError, match=r"returned shape \(4,\); expected the shape of x, \(2, 4\)"):
        check_gradient(lambda x: x + 1, lambda g, x: g.sum(axis=0), x)


def test_check_gradient_of_a_noisy_function_says_so():
    rng = np.random.default_rng(0)
    for size in 10.0 ** np.arange(-12, 0):
        report = check_gradient(
            lambda x: x**2 + size * rng.normal(size=x.shape),  # noqa: B023
            lambda g, x: 3 * g * x,
            numbers(4),
        )
        assert not report
        assert "forward_fn or backward_fn is not deterministic" in str(report)
    assert not check_gradient(np.sin, lambda g, x: g * np.cos(x) * (1 + 1e-12 * rng.normal()), numbers(4))


@pytest.mark.parametrize("epsilon", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_check_gradient_with_a_step_of_ones_own(epsilon):
    report = check_gradient(np.sin, lambda g, x: g * np.cos(x), numbers(4), epsilon=epsilon)
    assert report
    assert f"(step {epsilon:g})" in str(report)
    assert not check_gradient(np.sin, lambda g, x: 1.1 * g * np.cos(x), numbers(4), epsilon)


def test_check_gradient_refuses_what_tells_nothing():
    with pytest.raises(ValueError, match=r"x has dtype float16, .* float64, or float32"):
        check_gradient(np.sin, lambda g, x: g * np.cos(x), np.float16([1, 2]))
    for epsilon in (0, -1e-5, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"epsilon is {epsilon}; expected a step above 0"):
            check_gradient(np.sin, lambda g, x: g * np.cos(x), numbers(2), epsilon)


# -- the numbers beneath ----------------------------------------------------------------------------------------------


def test_slopes_of_a_known_function():
    probe = Probe(lambda arrays: np.abs(arrays[0]) + arrays[0] ** 2, [np.array([0.0, 1.0])], np.ones(2))
    assert probe.central((0, (1,)), 1e-5) == pytest.approx(3.0)
    assert probe.sides(1e-6, (0, (0,))) == pytest.approx((-1.0, 1.0), abs=1e-5)
    assert probe.surroundings((0, (1,)), 1e-5)[1] is None
    assert probe.surroundings((0, (0,)), 1e-5)[1] == pytest.approx((-1.0, 1.0), abs=1e-5)


def test_checking_a_tensor_imports_neither_torch_nor_mlx():
    program = (
        "import sys, mlx_grpo_kit.tensor as T; from mlx_grpo_kit.gradcheck import gradcheck; "
        "assert gradcheck(T.tanh, T.Tensor([1.0])); "
        "print(sorted({'mlx', 'torch', 'matplotlib'} & {m.split('.')[0] for m in sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_lets_something_through_is_wrong_where_the_slope_is_0():
    x = np.array([0.5, -0.3, 2.0, -3.0])
    words = "lets something through"
    assert words in str(check_gradient(lambda x: np.clip(x, -1, 1), lambda g, x: g, x))
    nearly = np.array([1.0, 1.0005, 1.0, 1.0])  # a small error where the slope is not 0
    assert words not in str(check_gradient(np.sin, lambda g, x: nearly * g * np.cos(x), x))
