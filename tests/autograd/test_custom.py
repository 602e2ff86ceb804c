"""check_vjp passes right rules and names what is wrong with others; ground truth are formulas worked out by hand."""

import pytest

from mlx_grpo_kit.autograd import check_vjp
from mlx_grpo_kit.runtime import mx

X = mx.array([[0.5, -1.5, 2.0], [3.0, -0.25, 0.1]])
B = mx.array([1.0, -2.0, 0.5])


def with_rule(forward, rule):
    """`forward` with a backward rule; a new function each time."""
    custom = mx.custom_function(forward)
    custom.vjp(rule)
    return custom


def silu(x):
    return x * mx.sigmoid(x)


def silu_rule(x, cotangent, output):
    s = mx.sigmoid(x)
    return cotangent * s * (1 + x * (1 - s))


def scale(x, b):
    return x * b


def scale_rule(primals, cotangent, output):
    x, b = primals
    return cotangent * b, (cotangent * x).sum(axis=0)


def test_right_rules_pass():
    report = check_vjp(with_rule(silu, silu_rule), silu, X)
    assert report.passed
    assert "6 derivatives of the custom rule agree with the automatic rule" in str(report)
    assert "Central differences agree too" in str(report)
    assert check_vjp(with_rule(scale, scale_rule), scale, X, B)
    assert check_vjp(with_rule(silu, silu_rule), silu, mx.array(0.3))
    assert check_vjp(with_rule(silu, silu_rule), silu, mx.array([[1.25]]))


@pytest.mark.parametrize(("factor", "is_the_same"), [(1.0002, True), (0.9998, True), (1.003, False), (0.997, False)])
def test_outputs_may_differ_by_a_rounding_and_no_more(factor, is_the_same):
    """The bound that gradients have: a tenth of a percent."""
    report = check_vjp(with_rule(lambda x: factor * silu(x), silu_rule), silu, X)
    assert report.passed == is_the_same
    assert ("compute different things" in str(report)) != is_the_same


WRONG = {
    "a tenth of a percent too much": lambda x, g, y: 1.002 * silu_rule(x, g, y),
    "sign": lambda x, g, y: -silu_rule(x, g, y),
    "no cotangent": lambda x, g, y: silu_rule(x, mx.ones_like(g), y),
    "the cotangent alone": lambda x, g, y: g,
    "nothing": lambda x, g, y: mx.zeros_like(x),
    "half of the product rule": lambda x, g, y: g * mx.sigmoid(x),
    "one element": lambda x, g, y: silu_rule(x, g, y) + 0.1 * (x == 3.0),
    "nan": lambda x, g, y: mx.where(x == 3.0, mx.array(float("nan")), silu_rule(x, g, y)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name):
    report = check_vjp(with_rule(silu, WRONG[name]), silu, X)
    assert not report.passed
    assert "derivatives of the custom rule are wrong" in str(report) or "derivatives of the custom rule is" in str(
        report
    )


@pytest.mark.parametrize("error", [0.01, 0.002, -0.002])
@pytest.mark.parametrize("small", [1.0, 0.1])
def test_a_small_error_in_a_small_number_beside_a_large_one_is_caught(small, error):
    """x * x has slopes of 2,000 and of 2: one percent of the 2 is a hundred-thousandth of the 2,000."""
    small = small if abs(error) > 0.005 else 10 * small
    x = mx.array([1000.0, small, -500.0])
    factors = mx.array([1.0, 1.0 + error, 1.0])
    square = with_rule(lambda x: x * x, lambda x, g, y: 2 * x * g * factors)
    report = check_vjp(square, lambda x: x * x, x)
    assert [failure.index for failure in report.failures] == [(1,)]
    assert check_vjp(with_rule(lambda x: x * x, lambda x, g, y: g * (x + x)), lambda x: x * x, x)


def test_rounding_is_no_error():
    """Another rule rounds sums of numbers that cancel, and differences of nearly equal ones, in another way."""
    x = mx.random.normal((4096, 3), key=mx.random.key(0))
    scaled = with_rule(scale, lambda primals, g, y: (g * primals[1], ((g * primals[0]).T @ mx.ones(4096))))
    assert check_vjp(scaled, scale, x, B)
    x = mx.array([0.5, 2.0, 6.0, 8.0, 9.5])
    assert check_vjp(with_rule(mx.tanh, lambda x, g, y: g / mx.square(mx.cosh(x))), mx.tanh, x)


def test_the_worst_number_is_named():
    report = check_vjp(with_rule(silu, WRONG["one element"]), silu, X)
    assert (report.failures[0].name, report.failures[0].index) == ("input 0", (1, 0))
    assert "input 0 at index (1, 0)" in str(report)

    def second_input(primals, cotangent, output):
        gx, gb = scale_rule(primals, cotangent, output)
        return gx, gb + mx.array([0.0, 0.0, 0.5])

    report = check_vjp(with_rule(scale, second_input), scale, X, B)
    assert [(failure.name, failure.index) for failure in report.failures] == [("input 1", (2,))]


def test_a_broadcast_that_was_not_summed_is_told_though_mlx_does_not_notice():
    def rule(primals, cotangent, output):
        x, b = primals
        return cotangent * b, cotangent * x

    custom = with_rule(scale, rule)
    assert mx.grad(lambda b: custom(X, b).sum())(B).shape == (2, 3)
    report = check_vjp(custom, scale, X, B)
    assert not report
    assert "gradient of input 1 has shape (2, 3); expected (3,), the input's" in str(report)


def test_another_function_is_told():
    report = check_vjp(with_rule(lambda x: 2 * silu(x), silu_rule), silu, X)
    assert not report
    assert "compute different things: output 0 at index (0, 0)" in str(report)
    assert "returns shape ()" in str(check_vjp(with_rule(lambda x: silu(x).sum(), silu_rule), silu, X))


def test_where_the_automatic_rule_has_no_number_differences_decide():
    """log(1 + exp(x)) overflows at 100, and its automatic gradient is nan there."""

    def softplus(x):
        return mx.where(x > 20, x, mx.log(1 + mx.exp(x)))

    x = mx.array([100.0, 1.0, -2.0])
    assert mx.isnan(mx.grad(lambda x: softplus(x).sum())(x)).tolist() == [True, False, False]
    report = check_vjp(with_rule(softplus, lambda x, g, y: g * mx.sigmoid(x)), softplus, x)
    assert report.passed
    assert "The automatic rule has a finite number for 2 of 3" in str(report)
    wrong = check_vjp(with_rule(softplus, lambda x, g, y: g * mx.where(x > 20, 0.5, mx.sigmoid(x))), softplus, x)
    assert not wrong


def test_whole_numbers_and_settings_are_passed_on():
    def pick(x, index, factor):
        return x[:, index] * factor

    def rule(primals, cotangent, output):
        x, index = primals[:2]
        return mx.zeros_like(x).at[:, index].add(3.0 * cotangent), mx.zeros_like(index)

    custom = with_rule(lambda x, index: pick(x, index, 3.0), rule)
    assert check_vjp(custom, lambda x, index: pick(x, index, 3.0), X, mx.array([2, 0]))
    with pytest.raises(TypeError, match="got no float32 array"):
        check_vjp(custom, pick, mx.array([1, 2]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (mx.array([float("nan"), 1.0]), "not finite"),
        (mx.array([float("inf"), 1.0]), "not finite"),
        (mx.zeros((0,)), "no numbers"),
    ],
)
def test_inputs_without_derivatives_are_refused(x, message):
    with pytest.raises(ValueError, match=f"Input 0 has .*{message}"):
        check_vjp(with_rule(silu, silu_rule), silu, x)


@pytest.mark.parametrize("plain", [lambda x: None, lambda x: 3.0, lambda x: (x, 3.0)])
def test_a_function_that_returns_no_array_is_named(plain):
    with pytest.raises(TypeError, match=r"returned (NoneType|float); expected an mx.array"):
        check_vjp(with_rule(silu, silu_rule), plain, X)
