"""Operations that treat every element alike, and their derivatives.

At the edges and at nan, values and derivatives are torch's: IEEE arithmetic gives inf and nan where a formula divides
by zero, kinks have the derivative that torch gives them. `safe_div`, `safe_sqrt` and `safe_log` have finite derivatives
at every finite number.
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
    """a / b. Division by zero gives inf or nan, as IEEE 754 has it; see `safe_div`."""
    return np.true_divide(a, b)


@rule(x=lambda g: -g)
def neg(x):
    """-x"""
    return np.negative(x)


# 0 ** 0 is 1 whatever the 0 below does next: its derivative is 0, and not the 0 * inf that the formula would give.
@rule(
    base=lambda g, base, exponent: np.where(exponent == 0, 0, g * exponent * _power(base, exponent - 1)),
    exponent=lambda g, base, exponent, out: g * np.where((base == 0) & (exponent >= 0), 0, out * np.log(base)),
)
def pow(base, exponent):
    """base ** exponent. A negative base takes whole exponents; its derivative in the exponent is nan."""
    return _power(base, exponent)


def _power(base, exponent):
    # NumPy has fast loops for squares, square roots and inverses, which it takes for exponents that are plain numbers.
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
    """The natural logarithm: -inf at 0, nan below. See `safe_log`."""
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
    """The square root: its derivative is inf at 0, and both are nan below. See `safe_sqrt`."""
    return np.sqrt(x)


@rule(x=lambda g, x: g * _sign(x))
def abs(x):
    """|x|, with derivative 0 at 0."""
    return np.abs(x)


def _sign(x):
    return np.subtract(x > 0, x < 0, dtype=x.dtype)  # np.sign of a nan is a nan, torch's is 0


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
    """1 / (1 + e ** -x), between 0 and 1, without an overflow on either side."""
    return _sigmoid(x)


def _sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def masked(g, mask):
    """g where `mask` is true, 0 elsewhere.

    g * mask would be nan where g is infinite, and np.where takes eight times as long: these are g's bits times 0 or 1.
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

    `approximate="tanh"` is the paper's formula with tanh in place of the error function, the one of GPT-2.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate argument must be either 'none' or 'tanh'; got {approximate!r}.")
    return x * _normal_cdf(x, approximate)


def _normal_cdf(x, approximate):
    if approximate == "tanh":
        return (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    with packages_for("gelu"):
        from scipy.special import erf  # NumPy has none

    return (1 + erf(x * math.sqrt(0.5))) / 2


def _gelu_slope(x, approximate):
    cdf = _normal_cdf(x, approximate)
    if approximate == "tanh":
        return cdf + x * 2 * cdf * (1 - cdf) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@rule(x=lambda g, x, low, high: masked(g, _within(x, low, high)))
def clip(x, low=None, high=None):
    """x between `low` and `high`, either of which may be None. The derivative is 1 on the bounds, 0 outside."""
    if low is None and high is None:
        raise ValueError("at least one of low and high must not be None.")
    return np.minimum(np.maximum(x, -np.inf if low is None else low), np.inf if high is None else high)


def _within(x, low, high):
    return (x >= (-np.inf if low is None else low)) & (x <= (np.inf if high is None else high))


def _flat(name, compute, doc):
    """A step function: flat almost everywhere, so its derivative is 0."""

    def step(x):
        return compute(x)

    step.__name__, step.__doc__ = name, doc + " Its derivative is 0 everywhere, also where it jumps."
    return rule(x=lambda g: np.zeros_like(g))(step)


sign = _flat("sign", _sign, "-1, 0 or 1; 0 for a nan.")
floor = _flat("floor", np.floor, "The next whole number below.")
ceil = _flat("ceil", np.ceil, "The next whole number above.")
round = _flat("round", np.round, "The nearest whole number, halves to the even one.")
trunc = _flat("trunc", np.trunc, "The whole number on the way to 0.")


def _share(g, own, other):
    """g where own is taken, half of it where both are equal; a nan takes both."""
    return masked(g, ~(own <= other)) + masked(g / 2, own == other)


@rule(a=lambda g, a, b: _share(g, a, b), b=lambda g, a, b: _share(g, b, a))
def maximum(a, b):
    """The larger of two, element by element. Equal elements share the gradient."""
    return np.maximum(a, b)


@rule(a=lambda g, a, b: _share(g, b, a), b=lambda g, a, b: _share(g, a, b))
def minimum(a, b):
    """The smaller of two, element by element. Equal elements share the gradient."""
    return np.minimum(a, b)


@rule(a=lambda g, condition: np.where(condition, g, 0), b=lambda g, condition: np.where(condition, 0, g))
def where(condition, a, b):
    """`a` where `condition` is true, `b` elsewhere.

    The side that is not taken gets gradient 0. What computed it may make a nan of that: 0 * inf.
    """
    return np.where(condition, a, b)


@rule(a=lambda g, b, eps: _over(g, b, eps), b=lambda g, b, out, eps: -_over(g * out, b, eps))
def safe_div(a, b, eps=1e-12):
    """a / b, but 0 with derivative 0 where |b| <= eps. In float16 eps is at least 2**-8: 1 / b**2 has to be finite."""
    return _over(a, b, eps)


def _over(a, b, eps):
    return _quotient(a, b, np.abs(b) <= _at_least(2.0**-8, eps, b.dtype))


def _quotient(a, b, near):
    """a / b, and 0 where b is near 0."""
    return np.where(near, 0, a / np.where(near, 1, b))


def _at_least(least, eps, dtype):
    """eps, which may be 0 in float16: not less than the smallest number that has a finite slope there."""
    return max(least, eps) if dtype == np.float16 else eps


@rule(x=lambda g, out: _quotient(g, 2 * out, out <= 0))
def safe_sqrt(x):
    """The square root, but 0 with derivative 0 where x <= 0."""
    return np.sqrt(np.maximum(x, 0))


@rule(x=lambda g, x, eps: _quotient(g, x, x <= _at_least(2.0**-14, eps, x.dtype)))
def safe_log(x, eps=1e-12):
    """The logarithm, but log(eps) with derivative 0 where x <= eps. In float16 eps is at least 2**-14."""
    return np.log(np.maximum(x, _at_least(2.0**-14, eps, x.dtype)))
