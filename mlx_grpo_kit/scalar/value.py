"""`Value`: a number that remembers how it was computed, and how much each number before it influenced it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence

from mlx_grpo_kit.scalar.graph import topological_order


class Value:
    """One number, the numbers it was computed from, and its derivative with respect to each of those.

        a, b = Value(2.0, "a"), Value(-3.0, "b")
        c = a * b + a**2        # arithmetic computes, and remembers
        c.backward()            # a.grad is now dc/da = b + 2a = 1.0, b.grad is dc/db = a = 2.0

    Where a function has a kink the derivative is torch's: 0 for relu and abs at 0, shared equally by equal values in
    max and min. Operations without a result (1 / 0, the logarithm of -1, the square root of -1) raise an error.

    Attributes:
        data: the number, a float.
        grad: d(the value whose backward() was called) / d(this value); 0.0 before.
        label: a name for pictures and messages, if you give one.
        op: the operation this value is the result of; "" for one that you made yourself, a leaf.
        parents: the values it was computed from.
        derivatives: d(this value) / d(parent), one number for each parent.

    An operation of your own is Value(result, op="cube", parents=(x,), derivatives=(3 * x.data**2,)). micrograd's names
    `_prev`, `_op` and `_backward` can be read.
    """

    __slots__ = ("data", "derivatives", "grad", "label", "op", "parents")

    def __init__(
        self,
        data: float,
        label: str = "",
        *others: object,
        op: str = "",
        parents: Sequence[Value] = (),
        derivatives: Sequence[float] = (),
    ):
        if label and (others or type(label) is not str):
            raise TypeError(
                f"Value(data, label): label is {label!r:.60}; expected text, and nothing positional after it. Where "
                'micrograd has Value(t, (x,), "tanh") write Value(t, op="tanh", parents=(x,), derivatives=(1 - t*t,)).'
            )
        if parents is not derivatives and len(parents) != len(derivatives):  # both are () for a leaf
            raise ValueError(
                f"Value({op=}): {len(parents)} parents and {len(derivatives)} derivatives; expected d(result) / "
                "d(parent) for each parent, in their order."
            )
        self.data = data if type(data) is float else as_float(data)
        self.grad = 0.0
        self.label, self.op, self.parents, self.derivatives = label, op, parents, derivatives

    def __add__(self, other):
        other = as_value(other)
        return _result(self.data + other.data, "+", (self, other), (1.0, 1.0))

    def __mul__(self, other):
        other = as_value(other)
        return _result(self.data * other.data, "*", (self, other), (other.data, self.data))

    def __pow__(self, other):
        exponent = other.data if isinstance(other, Value) else as_float(other)
        power, slope = _power(self, exponent), _slope_in_base(self.data, exponent)
        if not isinstance(other, Value):
            return _result(power, f"**{exponent:g}", (self,), (slope,))
        slopes = slope, _slope_in_exponent(self.data, exponent, power)
        return _result(power, "**", (self, other), slopes)

    def tanh(self):
        """The hyperbolic tangent, between -1 and 1."""
        t = math.tanh(self.data)
        return _result(t, "tanh", (self,), (1.0 - t * t,))

    def relu(self):
        """The value itself where it is positive, 0 elsewhere."""
        slope = 0.0 if self.data <= 0 else 1.0  # 1 at nan, as in torch
        return _result(0.0 if self.data < 0 else self.data, "relu", (self,), (slope,))

    def backward(self) -> None:
        """Add d(self) / d(leaf) to the `grad` of every leaf that self was computed from: reverse-mode differentiation.

        A value passes its gradient on to its parents, times the derivative with respect to each (the chain rule). It
        does so only after everything computed from it has passed on its own gradient, hence the topological order.
        Another call adds to the leaves again, as in torch; the values in between start from 0 each time.
        """
        order = topological_order(self)
        for node in order:
            if node.parents:
                node.grad = 0.0
        self.grad += 1.0  # d(self) / d(self)
        for node in reversed(order):
            grad = node.grad
            for parent, derivative in zip(node.parents, node.derivatives):  # noqa: B905 (strict costs a tenth here)
                parent.grad += derivative * grad

    # The other operations.

    def __sub__(self, other):
        other = as_value(other)
        return _result(self.data - other.data, "-", (self, other), (1.0, -1.0))

    def __neg__(self):
        return _result(-self.data, "neg", (self,), (-1.0,))

    def __truediv__(self, other):
        other = as_value(other)
        if other.data == 0:
            raise ZeroDivisionError(
                f"{self!r} / {other!r}: nothing can be divided by zero, so there is no derivative "
                "either. Where the divisor may reach 0, add a small positive number to it."
            )
        quotient = self.data / other.data
        return _result(quotient, "/", (self, other), (1.0 / other.data, -quotient / other.data))

    def exp(self):
        """e**self. Raises OverflowError above 709.78, where the result is beyond the largest float."""
        try:
            power = math.exp(self.data)
        except OverflowError:
            raise OverflowError(
                f"exp of {self!r} is larger than the largest float (exp overflows at 709.78). Subtract "
                "something before exp, or use tanh or sigmoid, which do not overflow."
            ) from None
        return _result(power, "exp", (self,), (power,))

    def log(self):
        """The natural logarithm. Raises ValueError unless self > 0."""
        if self.data <= 0:
            raise ValueError(
                f"log of {self!r}: the logarithm is defined above 0 only. Where the argument may reach 0, "
                "add a small positive number to it."
            )
        return _result(math.log(self.data), "log", (self,), (1.0 / self.data,))

    def sigmoid(self):
        """1 / (1 + e**-self), between 0 and 1, without an overflow on either side."""
        small = math.exp(-abs(self.data))
        s = 1.0 / (1.0 + small) if self.data >= 0 else small / (1.0 + small)
        return _result(s, "sigmoid", (self,), (s * (1.0 - s),))

    def __abs__(self):
        return _result(abs(self.data), "abs", (self,), (float((self.data > 0) - (self.data < 0)),))

    def max(self, other):
        """The larger of two; its derivative goes to it, half to each if they are equal. The max of a nan is nan."""
        other = as_value(other)
        a, b = self.data, other.data
        return _result(b if a < b or b != b else a, "max", (self, other), (_share(a, b), _share(b, a)))

    def min(self, other):
        """The smaller of two; its derivative goes to it, half to each if they are equal. The min of a nan is nan."""
        other = as_value(other)
        a, b = self.data, other.data
        return _result(b if a > b or b != b else a, "min", (self, other), (_share(b, a), _share(a, b)))

    def __radd__(self, other):
        return as_value(other) + self

    def __rsub__(self, other):
        return as_value(other) - self

    def __rmul__(self, other):
        return as_value(other) * self

    def __rtruediv__(self, other):
        return as_value(other) / self

    def __rpow__(self, other):
        return as_value(other) ** self

    # Values are ordered by their numbers. Two values are equal only if they are one, as in micrograd, so that `in` does
    # not take a node of the graph for another with the same number. A value equals a plain number if its number does.

    def __lt__(self, other):
        return self.data < as_value(other).data

    def __le__(self, other):
        return self.data <= as_value(other).data

    def __gt__(self, other):
        return self.data > as_value(other).data

    def __ge__(self, other):
        return self.data >= as_value(other).data

    def __eq__(self, other):
        return self is other if isinstance(other, Value) else self.data == other

    __hash__ = object.__hash__

    def __float__(self):
        raise TypeError(
            f"{self!r} was about to become a plain float, which forgets its graph. Use the Value's own "
            "exp, log, tanh ... instead of those of math and NumPy, or .data if you only want the number."
        )

    # micrograd's names, for reading only: the graph is in `parents`, the chain rule in `derivatives`.

    @property
    def _prev(self) -> set[Value]:
        return set(self.parents)

    @property
    def _op(self) -> str:
        return self.op

    @property
    def _backward(self) -> Callable[[], None]:
        """Pass the gradient on to the parents, as `backward` does for each value in turn."""

        def hand_on() -> None:
            for parent, derivative in zip(self.parents, self.derivatives, strict=True):
                parent.grad += derivative * self.grad

        return hand_on

    @_backward.setter
    def _backward(self, function: object) -> None:
        raise AttributeError(
            "a Value has no _backward of your own. Give its derivatives: Value(t, op='tanh', parents=(x,), "
            "derivatives=(1 - t * t,))."
        )

    def __format__(self, spec):
        return format(self.data, spec) if spec else repr(self)

    def __repr__(self):
        name = f", label={self.label!r}" if self.label else ""
        return f"Value(data={self.data:.6g}, grad={self.grad:.6g}{name})"


def dot(weights: Sequence[Value], inputs: Sequence[Value | float], bias: Value | float = 0.0) -> Value:
    """w1 * x1 + w2 * x2 + ... + bias as one value, with 2n + 1 parents.

    Written with + and * it is 2n values. Both give the same gradients; the cost of an engine is its number of values.

    Raises:
        ValueError: there is not one input for each weight.
    """
    weights, inputs, bias = [as_value(w) for w in weights], [as_value(x) for x in inputs], as_value(bias)
    if len(weights) != len(inputs):
        raise ValueError(
            f"dot(weights, inputs): {len(weights)} weights for {len(inputs)} inputs; expected one for each."
        )
    w, x = [weight.data for weight in weights], [value.data for value in inputs]
    return _result(sum(map(float.__mul__, w, x), bias.data), "dot", (*weights, *inputs, bias), (*x, *w, 1.0))


def _result(data: float, op: str, parents: Sequence[Value], derivatives: Sequence[float]) -> Value:
    """The result of an operation: Value(data, op=op, parents=parents, derivatives=derivatives), in half the time."""
    value = _new(Value)
    value.data = data if type(data) is float else as_float(data)
    value.grad, value.label, value.op, value.parents, value.derivatives = 0.0, "", op, parents, derivatives
    return value


_new = object.__new__


def as_value(number: Value | float) -> Value:
    """A Value unchanged; a number as a new leaf. Raises TypeError for anything else."""
    return number if isinstance(number, Value) else Value(number)


def as_float(number: float) -> float:
    """Any real number (of Python, NumPy, or an array of no dimensions) as a Python float, which is the fastest.

    Raises:
        TypeError: for anything else.
    """
    real = isinstance(number, numbers.Real)
    if not real and (getattr(number, "shape", None) != () or isinstance(number, numbers.Complex)):
        shape = getattr(number, "shape", None)
        what = type(number).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise TypeError(
            f"a Value holds one real number; got {what}: {number!r:.60}. For several numbers make a list "
            "of Values: [Value(x) for x in numbers]. In an operation, put the array on the left: array * value."
        )
    return float(number)


def _share(larger: float, other: float) -> float:
    """The derivative of the maximum of two numbers with respect to the first: 1 beside a nan, as in torch."""
    return 0.5 if larger == other else float(not larger <= other)


def _power(base: Value, exponent: float) -> float:
    if base.data == 0 and exponent < 0:
        raise ZeroDivisionError(
            f"{base!r} ** {exponent:g} divides by zero. Where the base may reach 0, add a small positive number to it."
        )
    if base.data < 0 and not exponent.is_integer():
        raise ValueError(
            f"{base!r} ** {exponent:g} is a complex number, and a Value holds a real one. A negative base "
            "takes whole exponents only; abs(base) makes it positive."
        )
    try:
        return base.data**exponent
    except OverflowError:
        raise OverflowError(f"{base!r} ** {exponent:g} is larger than the largest float, 1.8e308.") from None


def _slope_in_base(base: float, exponent: float) -> float:
    """d base**exponent / d base = exponent * base**(exponent - 1), infinite where that is beyond the floats."""
    if exponent == 0:
        return 0.0
    try:
        return exponent * base ** (exponent - 1)
    except (OverflowError, ZeroDivisionError):
        return exponent * (-math.inf if base < 0 and (exponent - 1) % 2 else math.inf)


def _slope_in_exponent(base: float, exponent: float, power: float) -> float:
    """d base**exponent / d exponent = power * log(base); nan for a negative base, whose powers are mostly complex."""
    if base == 0:
        return 0.0
    return power * math.log(base) if base > 0 else math.nan
