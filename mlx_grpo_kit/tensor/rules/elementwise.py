"""Elementwise operations and their derivatives.

At edge cases and at nan, values and derivatives equal torch's: IEEE arithmetic gives inf and nan where a formula
divides by zero, and kinks have the derivative that torch gives them. `safe_div`, `safe_sqrt` and `safe_log` have finite
derivatives at every finite number.
"""

from __future__ import annotations

import math

import numpy as np

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.tensor.rules.rule import rule

__all__ = [
    "abs",
    "add",
    "ceil",
    "clip",
    "cos",
    "div",
    "exp",
    "floor",
    "gelu",
    "log",
    "log2",
    "log10",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "pow",
    "relu",
    "round",
    "safe_div",
    "safe_log",
    "safe_sqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sqrt",
    "sub",
    "tanh",
    "trunc",
    "where",
]


@rule(a=lambda g: g, b=lambda g: g)
def add(a, b):
    """a + b"""
    return a + b


@rule(a=lambda g: g, b=lambda g: -g)
def sub(a, b):
    """a - b"""
    return np.subtract(a, b)


@rule(a=lambda g, b: g * b, b=lambda g, a: g * a)
def mul(a, b):
    """a * b, element by element"""
    return a * b


@rule(a=lambda g, b: g / b, b=lambda g, b, out: -g * (out / b))
def div(a, b):
    """a / b. Division by zero gives inf or nan, as in IEEE 754; see `safe_div`."""
    return np.true_divide(a, b)


@rule(x=lambda g: -g)
def neg(x):
    """-x"""
    return np.negative(x)


# x ** 0 is 1 for every x, so the derivative is 0 even at x = 0, where the formula would give 0 * inf.
@rule(
    base=lambda g, base, exponent: np.where(exponent == 0, 0, g * exponent * _power(base, exponent - 1)),
    exponent=lambda g, base, exponent, out: g * np.where((base == 0) & (exponent >= 0), 0, out * np.log(base)),
)
def pow(base, exponent):
    """base ** exponent. A negative base needs whole exponents; the derivative by the exponent is nan there."""
    return _power(base, exponent)


def _power(base, exponent):
    # NumPy has fast loops for squares, square roots and reciprocals, which it uses only if the exponent is a number.
    if exponent.ndim:
        return base**exponent
    number = exponent.item()
    return 1 / np.sqrt(base) if number == -0.5 else base**number


@rule(x=lambda g, out: g * out)
def exp(x):
    """e ** x"""
    return np.exp(x)


@rule(x=lambda g, x: g / x)
def log(x):
    """The natural logarithm: -inf at 0, nan below 0. See `safe_log`."""
    return np.log(x)


@rule(x=lambda g, x: g / (x * math.log(2)))
def log2(x):
    """The logarithm to base 2."""
    return np.log2(x)


@rule(x=lambda g, x: g / (x * math.log(10)))
def log10(x):
    """The logarithm to base 10."""
    return np.log10(x)


@rule(x=lambda g, out: g / (2 * out))
def sqrt(x):
    """The square root. Its derivative is inf at 0; below 0 both are nan. See `safe_sqrt`."""
    return np.sqrt(x)


@rule(x=lambda g, x: g * _sign(x))
def abs(x):
    """|x|, with derivative 0 at 0."""
    return np.abs(x)


def _sign(x):
    return np.subtract(x > 0, x < 0, dtype=x.dtype)  # np.sign(nan) is nan; torch.sign(nan) is 0


@rule(x=lambda g, x: g * np.cos(x))
def sin(x):
    """The sine, x in radians."""
    return np.sin(x)


@rule(x=lambda g, x: -g * np.sin(x))
def cos(x):
    """The cosine, x in radians."""
    return np.cos(x)


@rule(x=lambda g, out: g * (1 - out * out))
def tanh(x):
    """The hyperbolic tangent, between -1 and 1."""
    return np.tanh(x)


@rule(x=lambda g, out: g * out * (1 - out))
def sigmoid(x):
    """1 / (1 + e ** -x), between 0 and 1, computed without overflow."""
    return _sigmoid(x)


def _sigmoid(x):
    small = np.exp(np.abs(x) * -1.0)
    return np.where(x >= 0, 1, small) / (1 + small)


def masked(g, mask):
    """Return g where `mask` is true, 0 elsewhere.

    g * mask would be nan where g is infinite, and np.where takes eight times as long, so this multiplies g's bits by 0
    or 1.
    """
    return (g.view(_BITS[g.itemsize]) * mask).view(g.dtype)


_BITS = {2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


@rule(x=lambda g, out: masked(g, out != 0))
def relu(x):
    """max(x, 0), with derivative 0 at 0."""
    return np.maximum(x, 0)


@rule(x=lambda g, x: g * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))))
def silu(x):
    """x * sigmoid(x), also known as swish (Ramachandran et al., 2017)."""
    return x * _sigmoid(x)


@rule(x=lambda g, x, approximate: g * _gelu_slope(x, approximate))
def gelu(x, approximate="none"):
    """x * P(Z <= x) for a standard normal Z (Hendrycks and Gimpel, 2016).

    `approximate="tanh"` is the paper's approximation with tanh instead of the error function, which GPT-2 uses. Raises
    ValueError for any other `approximate`.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate argument must be either 'none' or 'tanh'; got {approximate!r}.")
    return x * _normal_cdf(x, approximate)


def _normal_cdf(x, approximate):
    if approximate == "tanh":
        return (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    with packages_for("gelu"):
        from scipy.special import erf  # NumPy has no error function

    return (1 + erf(x * math.sqrt(0.5))) / 2


def _gelu_slope(x, approximate):
    cdf = _normal_cdf(x, approximate)
    if approximate == "tanh":
        return cdf + x * 2 * cdf * (1 - cdf) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@rule(x=lambda g, x, low, high: masked(g, _within(x, low, high)))
def clip(x, low=None, high=None):
    """Limit x to `low` and `high`, of which one may be None. The derivative is 1 within and on the limits, else 0."""
    if low is None and high is None:
        raise ValueError("at least one of low and high must not be None.")
    return np.clip(x, low, high)


def _within(x, low, high):
    return (x >= (-np.inf if low is None else low)) & (x <= (np.inf if high is None else high))


def _flat(name, compute, doc):
    """Make the operation of a step function, which is flat almost everywhere, so that its derivative is 0."""

    def step(x):
        return compute(x)

    step.__name__, step.__doc__ = name, doc + " Its derivative is 0 everywhere, even where it jumps."
    return rule(x=lambda g: np.zeros_like(g))(step)


sign = _flat("sign", _sign, "The sign of x: -1, 0 or 1; 0 for nan.")
floor = _flat("floor", np.floor, "x rounded down to a whole number.")
ceil = _flat("ceil", np.ceil, "x rounded up to a whole number.")
round = _flat("round", np.round, "x rounded to the nearest whole number; halves are rounded to the even one.")
trunc = _flat("trunc", np.trunc, "x rounded toward 0 to a whole number.")


def _share(g, own, other):
    """Return g where `own` is the result, and half of g where both are equal. At a nan both sides get g."""
    return masked(g, ~(own <= other)) + masked(g / 2, own == other)


@rule(a=lambda g, a, b: _share(g, a, b), b=lambda g, a, b: _share(g, b, a))
def maximum(a, b):
    """The elementwise maximum of a and b. Equal elements share the gradient."""
    return np.maximum(a, b)


@rule(a=lambda g, a, b: _share(g, b, a), b=lambda g, a, b: _share(g, a, b))
def minimum(a, b):
    """The elementwise minimum of a and b. Equal elements share the gradient."""
    return np.minimum(a, b)


@rule(a=lambda g, condition: np.where(condition, g, 0), b=lambda g, condition: np.where(condition, 0, g))
def where(condition, a, b):
    """`a` where `condition` is true, `b` elsewhere.

    The side that is not chosen gets gradient 0. The operation that computed it may turn that 0 into nan: 0 * inf.
    """
    return np.where(condition, a, b)


@rule(as_is=True, a=lambda g, b, eps: _over(g, b, eps), b=lambda g, b, out, eps: -_over(g * out, b, eps))
def safe_div(a, b, eps=1e-12):
    """a / b, but 0 with derivative 0 where |b| <= eps.

    In float16, eps is at least 2**-8, because 1 / b**2 has to be finite.
    """
    return _over(a, b, eps)


def _over(a, b, eps):
    return _quotient(a, b, np.abs(b) <= _at_least(2.0**-8, eps, b.dtype))


def _quotient(a, b, near):
    """Return a / b, but 0 where `near` is true."""
    return np.where(near, 0, a / np.where(near, 1, b))


def _at_least(least, eps, dtype):
    """Return eps, but at least `least` in float16, where eps may be 0 and smaller numbers have infinite slopes."""
    return max(least, eps) if dtype == np.float16 else eps


@rule(as_is=True, x=lambda g, out: _quotient(g, 2 * out, out <= 0))
def safe_sqrt(x):
    """The square root, but 0 with derivative 0 where x <= 0."""
    return np.sqrt(np.maximum(x, 0.0))


@rule(as_is=True, x=lambda g, x, eps: _quotient(g, x, x <= _at_least(2.0**-14, eps, x.dtype)))
def safe_log(x, eps=1e-12):
    """The logarithm, but log(eps) with derivative 0 where x <= eps. In float16, eps is at least 2**-14."""
    return np.log(np.maximum(x, _at_least(2.0**-14, eps, x.dtype)))
