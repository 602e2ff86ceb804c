"""Exercises of notebook 06: the gradient clinic."""

from contextlib import nullcontext

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_06.patients import DIAGNOSIS, DISEASES
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips

GRID = np.array([[0.5, -1.0, 2.0], [1.5, -0.3, 0.8]])


def sum_of_cubes(x):
    """sum(x**3)"""
    return float(np.sum(x**3))


def waves(x):
    """sum(sin(x)) * x.flat[0]"""
    return float(np.sum(np.sin(x)) * x.flat[0])


def products_of_rows(x):
    """sum(prod(x, axis=1)), the sum of the products of the rows"""
    return float(np.sum(np.prod(x, axis=1)))


def numeric_gradient(f, x, h=1e-5):
    """The slope of f at x for each element of the array x: floats, an array of x's shape."""
    x = np.array(x, dtype=float)
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] += h
        behind[index] -= h
        gradient[index] = (f(ahead) - f(behind)) / (2 * h)
    return gradient


def _not_of_torch(function, *arguments):
    """The slopes. Later cells subtract them from NumPy arrays, which torch tensors do not allow."""
    slopes = function(*arguments)
    return Told("a torch tensor (later cells need a NumPy array)") if hasattr(slopes, "detach") else slopes


NUMERIC_GRADIENT = Exercise(
    "06.1",
    "A numeric gradient",
    "Write `numeric_gradient(f, x, h=1e-5)`. `f` takes an array of the shape of `x` and returns a number. The "
    "result is an array of the shape of `x` (any shape) with the slope of `f` for each element, measured by "
    "central differences as in chapter 01. Do not change `x`, which may be an array of integers. "
    "`np.ndindex(x.shape)` yields one index after another.",
    minutes=8,
    difficulty=2,
    solution=numeric_gradient,
    hints=(
        "For each index, make two copies of x: move this element by +h in one copy and by -h in the other.",
        "An integer array cannot hold 3.00001: begin with `x = np.array(x, dtype=float)`, and create the result "
        "with `np.zeros(x.shape)`.",
        "Inside the loop: `ahead, behind = x.copy(), x.copy()`, then `ahead[index] += h`, `behind[index] -= h` "
        "and `gradient[index] = (f(ahead) - f(behind)) / (2 * h)`.",
    ),
    cases=(
        (sum_of_cubes, np.array([0.5, -1.0, 2.0])),
        (waves, GRID),
        (products_of_rows, GRID),
        (waves, np.array([[1, 2], [3, -1]])),
        (waves, np.array(0.7)),
        (sum_of_cubes, np.array([0.5, -2.0]), 0.25),
        *drawn(2, lambda rng: (products_of_rows, rng.normal(size=(3, 2, 1)))),
    ),
    mistakes=slips(
        numeric_gradient,
        r'''
@ gradient[index] = (f(ahead) - f(behind)) / (2 * h)
one side
+ gradient[index] = (f(ahead) - f(x)) / h
! Nearly, but the error of a one-sided slope is a hundred thousand times as large: compare f at x + h with f at x - h,
! not with f at x.
divided and multiplied (3)
+ gradient[index] = (f(ahead) - f(behind)) / 2 * h
! Far too small: `/ 2 * h` divides by 2 and then multiplies by h. Put brackets around it, `/ (2 * h)`.
over h (3)
+ gradient[index] = (f(ahead) - f(behind)) / h
! All slopes are twice too large: the distance from x - h to x + h is 2 * h.
flattened
+ gradient[index] = (f(ahead.ravel()) - f(behind.ravel())) / (2 * h)
! `f` got a flattened array. It may need the rows and columns: call it with an array of x's own shape.

all at once
- ahead[index] += h
- behind[index] -= h
+ ahead[...] += h
+ behind[...] -= h
! You moved all elements together, which gives the sum of all slopes. Move one element at a time.
returns too early (3)
- return gradient
+     return gradient
! You measured only the first slope: is the `return` inside the loop?
whole numbers (2)
- x = np.array(x, dtype=float)
+ x = np.array(x)
! This is right for floats. But an integer array silently rounds 1 + h back to 1, so nothing moved.
zeros_like (2)
  """The slope of f at x for each element of the array x: floats, an array of x's shape."""
+ gradient = np.zeros_like(x)
- gradient = np.zeros(x.shape)
! The slopes are cut off to whole numbers: `np.zeros_like(x)` of an integer array is an integer array.
the same array (3)
- ahead, behind = x.copy(), x.copy()
+ ahead, behind = x, x
! All slopes are 0. Did you write `ahead = x`? That only gives x a second name and makes no copy, so ahead and behind
! are the same array.
an h of its own (3)
  x = np.array(x, dtype=float)
+ h = 1e-5
! `h` is an argument: use it instead of 1e-5.
a step that grows with x (3)
  gradient = np.zeros(x.shape)
+ step = h
  for index in np.ndindex(x.shape):
+     h = step * max(1, abs(x[index]))
! Your step is longer where x is larger. For numbers of many sizes that is a good rule, but here `h` is an argument: use
! the given step.
never puts back
- x = np.array(x, dtype=float)
+ x = x if x.dtype == float else x.astype(float)
- ahead, behind = x.copy(), x.copy()
- ahead[index] += h
- behind[index] -= h
- gradient[index] = (f(ahead) - f(behind)) / (2 * h)
+ x[index] += h
+ ahead = f(x)
+ x[index] -= 2 * h
+ gradient[index] = (ahead - f(x)) / (2 * h)
! The element stays moved, so all later slopes are measured at another point, and the caller's x is changed. Work on
! copies.
puts back by computing (2)
- x = np.array(x, dtype=float)
  gradient = np.zeros(x.shape)
  for index in np.ndindex(x.shape):
-     ahead, behind = x.copy(), x.copy()
-     ahead[index] += h
-     behind[index] -= h
-     gradient[index] = (f(ahead) - f(behind)) / (2 * h)
+     x[index] += h
+     ahead = f(x)
+     x[index] -= 2 * h
+     gradient[index] = (ahead - f(x)) / (2 * h)
+     x[index] += h
! If you add h, subtract 2 * h and add h again, you do not always get the old number back: floats keep a rounding error,
! and an integer array cuts 1 - 2 * h down to 0. Work on a float copy.
''',
    ),
    run=_not_of_torch,
    also_right=r"""
# a list
lambda f, x, h=1e-5: numeric_gradient(f, x, h).tolist()
# in one buffer
def in_one_buffer(f, x, h=1e-5):
    moved, gradient = np.array(x, dtype=float), []
    for index in np.ndindex(moved.shape):
        kept = moved[index]
        moved[index] = kept + h
        ahead = f(moved)
        moved[index] = kept - h
        gradient.append((ahead - f(moved)) / (2 * h))
        moved[index] = kept
    return np.reshape(gradient, moved.shape)
""",
    also_wrong=r"""
import torch

# a tensor
lambda f, x, h=1e-5: torch.tensor(numeric_gradient(f, x, h))
! need a NumPy array
""",
)


def is_close(analytic, numeric, rtol=1e-5, atol=1e-7):
    """True if all elements of two arrays differ by at most atol + rtol * |numeric|, else False."""
    difference = np.abs(analytic - numeric)
    return bool(np.all(difference <= atol + rtol * np.abs(numeric)))


def _a_bool(function, *arguments):
    verdict = function(*arguments)
    is_one = getattr(verdict, "shape", None) == () and verdict.dtype.kind == "b"
    return bool(verdict) if is_one else verdict


def _nearly_alike(rng):
    numeric = rng.normal(size=(2, 2)) * rng.choice([1e-4, 1.0, 1e4], size=(2, 2))
    return numeric + rng.choice([1e-9, 1e-7, 1e-5]) * rng.normal(size=(2, 2)), numeric


CLOSE = Exercise(
    "06.2",
    "How close is close?",
    "Write `is_close(analytic, numeric, rtol=1e-5, atol=1e-7)`: True when *every* element differs by at most `atol "
    "+ rtol * |numeric|`, else False. A nan is not close to anything, not even to another nan.",
    minutes=5,
    difficulty=1,
    solution=is_close,
    hints=(
        "`np.abs(analytic - numeric)` is the difference, an array. The tolerance is one too.",
        "`np.all(difference <= tolerance)`. Every comparison with nan is False. That is exactly what we need, if "
        "you test whether all differences are small enough and not whether any is too large.",
    ),
    cases=(
        (np.array([1.0, 2.0]), np.array([1.0, 2.000001])),
        (np.array([1e6, 0.5]), np.array([1e6 + 1.0, 0.5])),
        (np.array([1e-9, 1.0]), np.array([0.0, 1.0])),
        (np.array([1.0, 1.01]), np.array([1.0, 1.0])),
        (np.array([1.0, -3.0]), np.array([1.0, 3.0])),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0])),
        (np.array([np.nan, 2.0]), np.array([np.nan, 2.0])),
        (np.array([1.1, 1.9]), np.array([1.0, 2.0])),
        (np.array([-20000.1, 2.0]), np.array([-20000.0, 2.0])),
        (np.array([0.011, 1e4]), np.array([0.01, 1e4])),
        (np.array([0.01 + 1.5e-7]), np.array([0.01])),
        (np.array([1.0]), np.array([1.25]), 0.22, 0.0),
        (np.array([1.25]), np.array([1.0]), 0.22, 0.0),
        (np.array([0.0, 2.5]), np.array([0.0, 2.0]), 0.25, 0.0),
        (np.array([1.0 + 1e-9]), np.array([1.0]), 1e-12, 0.0),
        *drawn(6, _nearly_alike),
    ),
    mistakes=slips(
        is_close,
        r"""
@ return bool(np.all(difference <= atol + rtol * np.abs(numeric)))
absolute only
+ return bool(np.all(difference <= atol))
! A difference of 1 in a million is rounding. Without `rtol * |numeric|` large gradients fail.
relative only
+ return bool(np.all(difference <= rtol * np.abs(numeric)))
! Only 0 is relatively close to 0. `atol` is for slopes that should be 0.
no abs in the tolerance
+ return bool(np.all(difference <= atol + rtol * numeric))
! `rtol * numeric` is negative where numeric is negative: use its absolute value in the tolerance.
one verdict each (2)
+ return ((difference <= atol + rtol * np.abs(numeric)))
! That is one verdict for each element. Only if all are True is the answer True.
relative to the other
+ return bool(np.all(difference <= atol + rtol * np.abs(analytic)))
! `rtol` is a share of `numeric`, the measured gradient.
tolerances of its own
+ return bool(np.all(difference <= 1e-7 + 1e-5 * np.abs(numeric)))
! `rtol` and `atol` are arguments: use them instead of the numbers 1e-5 and 1e-7.
relative to the largest (2)
+ return bool(np.all(np.max(difference) <= atol + rtol * np.max(np.abs(numeric))))
! Each element has its own tolerance. A large neighbour does not excuse an error.
the larger of the two
+ return bool(np.all(difference <= np.maximum(atol, rtol * np.abs(numeric))))
! Add the two tolerances. An element may use both: its difference need not be within either one alone.
less than
+ return bool(np.all(difference < atol + rtol * np.abs(numeric)))
! "At most" allows the tolerance itself, `<=`: two zeros differ by 0, and a tolerance of 0 is enough for them.
any (2)
+ return bool(np.any(difference <= atol + rtol * np.abs(numeric)))
! One element that agrees is not enough: all have to agree.
nan passes (2)
+ return bool(not np.any(difference > atol + rtol * np.abs(numeric)))
! A nan passed! `nan > tolerance` is False, so no difference is too large. Test instead whether all are small enough.

@ difference = np.abs(analytic - numeric)
no abs
+ difference = analytic - numeric
! A large negative difference is below any tolerance too: take its absolute value.
in float32
+ difference = np.abs(np.float32(analytic) - np.float32(numeric))
! 1 and 1.000000001 are the same number in float32. Compare them as they are, in float64.

errors cancel (2)
- difference = np.abs(analytic - numeric)
- return bool(np.all(difference <= atol + rtol * np.abs(numeric)))
+ difference = np.abs(np.mean(analytic - numeric))
+ return bool(np.all(difference <= atol + rtol * np.mean(np.abs(numeric))))
! In a mean, errors of +0.1 and -0.1 cancel. Compare every element.
nan equals nan (2)
- difference = np.abs(analytic - numeric)
- return bool(np.all(difference <= atol + rtol * np.abs(numeric)))
+ return np.allclose(analytic, numeric, rtol, atol, equal_nan=True)
! Two nans passed as equal. If both gradients are nan, they do not agree: leave out `equal_nan`.
""",
    ),
    run=_a_bool,
    explain="NumPy has this function: np.allclose(analytic, numeric, rtol, atol). The order matters a little, "
    "because rtol is multiplied by the second array.",
    also_right=r"""
# by NumPy
lambda a, n, rtol=1e-5, atol=1e-7: np.allclose(a, n, rtol, atol)
# an array of one truth value
lambda a, n, rtol=1e-5, atol=1e-7: np.array(np.allclose(a, n, rtol, atol))
""",
    also_wrong=r"""
# a number
lambda a, n, rtol=1e-5, atol=1e-7: 1.0
! gave 1, expected True
# within one of two
- return bool(np.all(difference <= atol + rtol * np.abs(numeric)))
+ return bool(np.all((difference <= atol) | (difference <= rtol * np.abs(numeric))))
! An element may use both
""",
)


def complex_slope(f, x, h=1e-20):
    """The slope of f at x, a number or an array, from one call with a complex number."""
    return np.imag(f(x + 1j * h)) / h


def cube(x):
    """x**3"""
    return x**3


def wavy(x):
    """exp(x) * sin(x)"""
    return np.exp(x) * np.sin(x)


def far_up(x):
    """1e9 + x**3"""
    return 1e9 + x**3


COMPLEX_STEP = Exercise(
    "06.3",
    "The complex step",
    "Write `complex_slope(f, x, h=1e-20)`: the imaginary part of `f(x + ih)`, divided by `h`. In Python, `i` is "
    "`1j`; `np.imag` works on numbers and on arrays.",
    minutes=4,
    difficulty=1,
    solution=complex_slope,
    hints=("Evaluate f at `x + 1j * h`.", "`np.imag(f(x + 1j * h)) / h`. That is all."),
    cases=(
        (cube, 2.0),
        (wavy, np.array([0.5, -1.0, 2.0])),
        (far_up, 2.0),
        (cube, 2.0, 0.1),
        *drawn(2, lambda rng: (wavy, rng.normal(size=(2, 2)))),
    ),
    mistakes=slips(
        complex_slope,
        r"""
@ return np.imag(f(x + 1j * h)) / h
real (2)
+ return np.real(f(x + 1j * h)) / h
! That is the real part: the value of f, not its slope.
not divided (2)
+ return np.imag(f(x + 1j * h))
! That is far too small, because it is still multiplied by h: divide by h.
abs (2)
+ return np.abs(f(x + 1j * h)) / h
! The length of a complex number includes the value. The slope is only in the imaginary part.
real step
+ return np.imag(f(x + h)) / h
! Take the step sideways, off the real line: `1j * h`.
central
+ return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
! That is a central difference. It works for the first two functions, but in 1e9 + x**3 it loses the digits that it
! needs.
an h of its own
+ return np.imag(f(x + 1j * 1e-20)) / 1e-20
! `h` is an argument: use it instead of 1e-20.
""",
    ),
    explain="There is no subtraction, so you lose no digits, and h can be as small as you like.",
    also_right=r"""
# by complex
lambda f, x, h=1e-20: f(x + complex(0, h)).imag / h
""",
)


def my_gradcheck(fn, x):
    """True if the gradient from backward at the array x is the slope of fn, else False."""
    leaf = T.Tensor(x, requires_grad=True)
    out = fn(leaf)
    weights = np.random.default_rng(0).normal(size=out.shape)
    out.backward(weights)

    def weighted_sum(array):
        return np.sum(fn(T.Tensor(array)).data * weights)

    return is_close(leaf.grad, numeric_gradient(weighted_sum, x))


def _patient(operation, words, breaking=nullcontext):
    """A function to be checked. During the check, `breaking` replaces the rule of the operation."""

    def fn(x):
        return operation(x)

    fn.__name__, fn.__doc__, fn.breaking = operation.__name__, words, breaking
    return fn


def _double(x):
    return T.mul(x, np.array([[2.0, -1.0, 0.5], [1.0, 3.0, -0.5]]))


def _layer(x):
    return T.matmul(x, np.array([[0.5, -1.0], [2.0, 0.3], [-0.7, 1.2]]))


def _down(x):
    return T.softmax(x, axis=0)


def _wrong_at(place):
    """tanh with a gradient that is 1% too large for one element of GRID."""
    factor = np.ones_like(GRID)
    factor[place] = 1.01
    return _patient(
        T.tanh,
        f"tanh(x), whose gradient is 1% too large only at {list(place)}",
        lambda: T.replaced_gradient("tanh", x=lambda g, out: factor * g * (1 - out * out)),
    )


_double.__name__, _layer.__name__, _down.__name__ = "mul", "layer", "softmax"
HEALTHY = (
    _patient(T.tanh, "tanh(x), whose rule is right"),
    _patient(T.softmax, "softmax(x), whose rule is right"),
    _patient(_layer, "x @ w, with 2 outputs for each row of 3 numbers, whose rule is right"),
)
SICK = (
    _patient(
        T.tanh,
        "tanh(x), whose gradient is 1% too large",
        lambda: T.replaced_gradient("tanh", x=lambda g, out: 1.01 * g * (1 - out * out)),
    ),
    _patient(
        T.tanh,
        "tanh(x), whose gradient has the wrong sign",
        lambda: T.replaced_gradient("tanh", x=lambda g, out: -g * (1 - out * out)),
    ),
    _patient(
        T.softmax,
        "softmax(x), whose gradient is twice as large as it should be",
        lambda: T.replaced_gradient(
            "softmax", x=lambda g, out, axis: 2 * out * (g - np.sum(g * out, axis=axis, keepdims=True))
        ),
    ),
    _patient(
        _double,
        "x * constant, while the rule of mul has the wrong sign",
        lambda: T.replaced_gradient("mul", a=lambda g, b: -g * b),
    ),
    _patient(
        _layer,
        "x @ w, with 2 outputs for each row of 3 numbers, whose gradient is 1% too large",
        lambda: T.replaced_gradient("matmul", a=lambda g, b: 1.01 * g @ b.T),
    ),
    _patient(
        _down,
        "softmax(x, axis=0), column by column, whose gradient is twice as large as it should be",
        lambda: T.replaced_gradient(
            "softmax", x=lambda g, out, axis: 2 * out * (g - np.sum(g * out, axis=axis, keepdims=True))
        ),
    ),
    _patient(
        T.tanh,
        "tanh(x), whose gradient is in reverse order",
        lambda: T.replaced_gradient("tanh", x=lambda g, out: np.flip(g * (1 - out * out))),
    ),
    *map(_wrong_at, np.ndindex(GRID.shape)),
)


def _examined(function, fn, x):
    with fn.breaking():
        return _a_bool(function, fn, x)


OWN_GRADCHECK = Exercise(
    "06.4",
    "Your own gradcheck",
    "Write `my_gradcheck(fn, x)`. `fn` takes a Tensor and returns a Tensor of any shape; `x` is an array. Run `fn` "
    "on a Tensor that requires a gradient. Give each output a random weight, in an array `weights`, and start the "
    "backward pass with these weights: `out.backward(weights)`. Measure the same gradient with `numeric_gradient`: "
    "the slope of `np.sum(fn(...).data * weights)`. Return the result of `is_close` for the two gradients.",
    minutes=12,
    difficulty=3,
    solution=my_gradcheck,
    hints=(
        "The first half: `leaf = T.Tensor(x, requires_grad=True)`, `out = fn(leaf)`, then the weights, then "
        "`out.backward(weights)`. The gradient is now in `leaf.grad`.",
        "`weights = np.random.default_rng(0).normal(size=out.shape)`. Draw them once, and use them for both halves.",
        "The second half needs a function from an array to a number: `def weighted_sum(array): return "
        "np.sum(fn(T.Tensor(array)).data * weights)`. Pass it to `numeric_gradient` with x.",
        "`return is_close(leaf.grad, numeric_gradient(weighted_sum, x))`",
    ),
    cases=tuple((fn, GRID) for fn in (*HEALTHY, *SICK)),
    mistakes=slips(
        my_gradcheck,
        r"""
@ weights = np.random.default_rng(0).normal(size=out.shape)
plain sum (2)
+ weights = np.ones(out.shape)
! A plain sum of the outputs is blind here: each row of a softmax sums to 1 for every x, so the gradient of the sum is
! 0, and twice 0 is 0 too. Give each output its own weight.
one weight for a column (2)
+ weights = np.random.default_rng(0).normal(size=out.shape[-1:]) * np.ones(out.shape)
! Outputs with equal weights can hide errors that cancel, as in a softmax over the columns. Each output needs its own
! weight: `size=out.shape`.
zeros among the weights (2)
+ weights = np.random.default_rng(0).integers(0, 2, size=out.shape)
! Some errors got through: a weight of 0 ignores its output. Draw weights that are hardly ever near 0, such as normally
! distributed ones.
weights of x's shape (2)
+ weights = np.random.default_rng(0).normal(size=x.shape)
! You weight the outputs, so the weights need the shape of `out`, which can differ from the shape of x.

weights by the engine
- out.backward(weights)
+ T.sum(T.mul(out, weights)).backward()
! Your checker passed a broken rule of mul. `out * weights` is an operation of the engine too, and here it is the broken
! one: two wrong signs make a right one. A checker must not rely on what it checks. Start with the weights instead:
! `out.backward(weights)`.

@ return np.sum(fn(T.Tensor(array)).data * weights)
two weightings (2)
+ return np.sum(fn(T.Tensor(array)).data * np.random.default_rng(1).normal(size=out.shape))
! Even the healthy rules fail. Both halves need the same weights: draw them once, and use them in
! `out.backward(weights)` and in the measured sum.
without .data (3)
+ return np.sum(fn(T.Tensor(array)) * weights)
! `numeric_gradient` needs numbers. `fn` returns a Tensor, so use its array: `fn(T.Tensor(array)).data`.
not summed (3)
+ return fn(T.Tensor(array)).data * weights
! `numeric_gradient` needs a function that returns one number, but yours returns an array: weight the outputs and add
! them up.

@ return is_close(leaf.grad, numeric_gradient(weighted_sum, x))
generous (4)
+ return is_close(leaf.grad, numeric_gradient(weighted_sum, x), 0.05, 1e-3)
! An error of 1% got through. Central differences in float64 are right to about ten digits, so there is no reason to be
! that generous: use `is_close` with its own tolerances.
sizes alone (4)
+ return is_close(abs(leaf.grad), abs(numeric_gradient(weighted_sum, x)))
! A gradient with the wrong sign got through: compare the numbers, not their sizes.
positions ignored (4)
+ return is_close(np.sort(leaf.grad, axis=None), np.sort(numeric_gradient(weighted_sum, x), axis=None))
! The right numbers at the wrong positions got through: compare element by element.

never backward
- leaf = T.Tensor(x, requires_grad=True)
- out = fn(leaf)
- weights = np.random.default_rng(0).normal(size=out.shape)
- out.backward(weights)
+ weights = np.random.default_rng(0).normal(size=fn(T.Tensor(x)).shape)
- return is_close(leaf.grad, numeric_gradient(weighted_sum, x))
+ return is_close(numeric_gradient(weighted_sum, x, 1e-5), numeric_gradient(weighted_sum, x, 1e-4), 1e-3, 1e-3)
! Everything passes, because you compare the measured slopes with themselves. Where is the gradient from backward,
! `leaf.grad`?
""",
    ),
    run=_examined,
    also_right=r"""
# uniform weights
- weights = np.random.default_rng(0).normal(size=out.shape)
+ weights = np.random.default_rng(5).uniform(1, 2, out.shape)
# by NumPy's allclose
- weights = np.random.default_rng(0).normal(size=out.shape)
+ weights = np.random.default_rng(5).normal(size=out.shape)
- return is_close(leaf.grad, numeric_gradient(weighted_sum, x))
+ return np.allclose(leaf.grad, numeric_gradient(weighted_sum, x))
""",
    also_wrong=r"""
# weighted with a star
- weights = np.random.default_rng(0).normal(size=out.shape)
- out.backward(weights)
+ weights = np.random.default_rng(3).uniform(1, 2, out.shape)
+ (out * weights).sum().backward()
! `out * weights` is an operation of the engine too
# other weights, one for a column
- weights = np.random.default_rng(0).normal(size=out.shape)
+ weights = np.random.default_rng(5).normal(size=out.shape[-1:]) * np.ones(out.shape)
! Outputs with equal weights can hide errors
""",
)


def two_slopes(f, gradient, x, direction, h=1e-5):
    """(from the gradient, from f): the slope of f at x along a direction."""
    claimed = np.sum(gradient * direction)
    measured = (f(x + h * direction) - f(x - h * direction)) / (2 * h)
    return claimed, measured


def _a_pair(function, f, *arguments):
    """Return the two slopes (an array of two numbers is a pair too), unless the answer ran f more than twice."""
    runs = []

    def counted(x):
        runs.append(1)
        return f(x)

    slopes = function(counted, *arguments)
    if len(runs) > 2:
        return Told(f"an answer after {len(runs)} runs of f, but two are enough")
    return tuple(slopes) if isinstance(slopes, np.ndarray) and slopes.ndim == 1 else slopes


SIGNS = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
NEARLY = 3 * GRID**2 * np.array([[1.0, 1.0, 1.0], [1.0, 1.5, 1.0]])

ALL_IN_ONE_GO = Exercise(
    "06.5",
    "All elements in one go",
    "Write `two_slopes(f, gradient, x, direction, h=1e-5)`: move all of `x` along `direction`, an array of its "
    "shape, and return a tuple of two slopes: the slope from `gradient` (the sum of `gradient * direction`), and "
    "the slope from `f` (a central difference between `x + h * direction` and `x - h * direction`).",
    minutes=5,
    difficulty=2,
    solution=two_slopes,
    hints=(
        "Each element of the gradient says how much f rises per unit of that element; a step along the direction "
        "moves element i by `direction[i]` units.",
        "`claimed = np.sum(gradient * direction)`; `measured = (f(x + h * direction) - f(x - h * direction)) / "
        "(2 * h)`.",
    ),
    cases=(
        (sum_of_cubes, 3 * GRID**2, GRID, SIGNS),
        (sum_of_cubes, NEARLY, GRID, SIGNS),
        (sum_of_cubes, 3 * GRID**2, GRID, np.ones_like(GRID)),
        (sum_of_cubes, 3 * GRID**2, GRID, np.array([[0.0, 2.5, 0.0], [-0.5, 0.0, 1.0]])),
        (sum_of_cubes, 3 * GRID**2, GRID, np.ones_like(GRID), 0.25),
        *drawn(2, lambda rng: (waves, rng.normal(size=4), rng.normal(size=4), rng.normal(size=4))),
    ),
    mistakes=slips(
        two_slopes,
        r'''
@ claimed = np.sum(gradient * direction)
mean
+ claimed = np.mean(gradient * direction)
! The slope from the gradient is a sum over all elements, not a mean: all of them move at once.
no direction
+ claimed = np.sum(gradient)
! Use the direction in the first slope too: an element that moves down counts with a minus sign.
not summed (2)
+ claimed = gradient * direction
! The slope from the gradient has to be one number: the sum over all elements.

@ measured = (f(x + h * direction) - f(x - h * direction)) / (2 * h)
unit length (2)
+ measured = (f(x + h * direction) - f(x - h * direction)) / (2 * h) / np.linalg.norm(direction)
! You measured the second slope per unit of length, but not the first. Do not change the norm of the direction.
step without direction (2)
+ measured = (f(x + h) - f(x - h)) / (2 * h)
! The second slope moves all elements up. Move them along the direction: x + h * direction.
over h (2)
+ measured = (f(x + h * direction) - f(x - h * direction)) / h
! The second slope is twice too large: the distance between the two points is 2 * h.
divided and multiplied (2)
+ measured = (f(x + h * direction) - f(x - h * direction)) / 2 * h
! The second slope is far too small: `/ 2 * h` divides by 2 and then multiplies by h. Use brackets, `/ (2 * h)`.
one side (2)
+ measured = (f(x + h * direction) - f(x)) / h
! Your second slope is one-sided, which is much less accurate.

both of unit length (2)
  """(from the gradient, from f): the slope of f at x along a direction."""
+ direction = direction / np.linalg.norm(direction)
! Both slopes are per unit of length. Do not change the norm of the direction.
signs alone (2)
- claimed = np.sum(gradient * direction)
- measured = (f(x + h * direction) - f(x - h * direction)) / (2 * h)
+ claimed = np.sum(gradient * np.sign(direction))
+ measured = (f(x + h * np.sign(direction)) - f(x - h * np.sign(direction))) / (2 * h)
! A direction can contain more than signs: an element may move half as far as another, or not at all. Use `direction`
! unchanged.
an h of its own (2)
  """(from the gradient, from f): the slope of f at x along a direction."""
+ h = 1e-5
! `h` is an argument: use it instead of 1e-5.
swapped (2)
- return claimed, measured
+ return measured, claimed
! The two are swapped: return first the slope from the gradient, then the slope from f.
''',
    ),
    run=_a_pair,
    also_right=r"""
# an array
lambda f, gradient, x, direction, h=1e-5: np.array(two_slopes(f, gradient, x, direction, h))
""",
    also_wrong=r"""
# the whole gradient
lambda f, gradient, x, d, h=1e-5: (np.sum(gradient * d), np.sum(numeric_gradient(f, x, h) * d))
! an answer after 12 runs of f, but two are enough
# slopes that move x
def slopes_that_move_x(f, gradient, x, direction, h=1e-5):
    x += h * direction
    ahead = f(x)
    x -= 2 * h * direction
    return np.sum(gradient * direction), (ahead - f(x)) / (2 * h)
! new numbers in what it was given
""",
)


def culprits(differs, numbers):
    """The wrong numbers in a list; differs(part) is True if a part of it contains at least one."""
    if len(numbers) == 0 or not differs(numbers):
        return []
    if len(numbers) == 1:
        return numbers
    half = len(numbers) // 2
    return culprits(differs, numbers[:half]) + culprits(differs, numbers[half:])


def _with_a_bill(function, wrong, numbers):
    asked = []

    def differs(part):
        asked.append(len(part))
        return any(number in wrong for number in part)

    found = function(differs, numbers)
    if found is None:
        return None
    try:
        found = sorted(int(number) for number in found)
    except (TypeError, ValueError):
        return Told(f"{show(found)}, which is not a list of numbers")
    return {"culprits": found, "more than 100 calls of differs": len(asked) > 100}


def _a_few_wrong(rng):
    numbers = sorted(map(int, rng.choice(5000, size=rng.integers(2, 60), replace=False)))
    return set(map(int, rng.choice(numbers, size=2))), numbers


CULPRITS = Exercise(
    "06.6",
    "Find the culprits",
    "Write `culprits(differs, numbers)`. `numbers` is a list of element numbers, and `differs(part)` is True if "
    "the list `part` contains at least one wrong element. Each call costs two runs of the function. Return the "
    "list of all wrong numbers. Work by halving: for 1,000 numbers, 100 calls are the limit.",
    minutes=8,
    difficulty=3,
    solution=culprits,
    hints=(
        "First check the whole list. If it is clean, return `[]`. If not, check its halves.",
        "A function may call itself: `culprits(differs, left) + culprits(differs, right)`, where left and right "
        "are `numbers[:half]` and `numbers[half:]`.",
        "The recursion has to end: if a list of one number differs, it is the answer. And an empty list has no "
        "culprits.",
    ),
    cases=(
        ({137}, list(range(1000))),
        ({3, 500, 999}, list(range(1000))),
        (set(), list(range(1000))),
        ({0}, [0]),
        (set(), [5]),
        ({4, 5}, list(range(7))),
        ({20, 21}, [17, 18, 20, 21, 30]),
        *drawn(3, _a_few_wrong),
    ),
    mistakes=(
        *slips(
            culprits,
            r"""
the middle is lost (2)
- return culprits(differs, numbers[:half]) + culprits(differs, numbers[half:])
+ return culprits(differs, numbers[:half]) + culprits(differs, numbers[half + 1 :])
! The halves are `numbers[:half]` and `numbers[half:]`; with `half + 1`, neither contains the element in the middle.
never ends (3)
- if len(numbers) == 0 or not differs(numbers):
+ if not differs(numbers):
- if len(numbers) == 1:
+ if False:
! The recursion never ends: the halves of a list of one number are that list again and an empty list.
all or nothing
- if len(numbers) == 1:
+ if True:
! That is the whole list: some of its numbers are guilty, but not all. Continue with its halves.
one half (2)
- if len(numbers) == 0 or not differs(numbers):
-     return []
- if len(numbers) == 1:
-     return numbers
+ if len(numbers) <= 1:
+     return numbers if differs(numbers) else []
- return culprits(differs, numbers[:half]) + culprits(differs, numbers[half:])
+ return culprits(differs, numbers[:half] if differs(numbers[:half]) else numbers[half:])
! Your search stops at the first culprit. If one half has a culprit, the other may have one too.
guilty without a check (3)
- if len(numbers) == 0 or not differs(numbers):
-     return []
- if len(numbers) == 1:
+ if len(numbers) <= 1:
- return culprits(differs, numbers[:half]) + culprits(differs, numbers[half:])
+ guilty = [part for part in (numbers[:half], numbers[half:]) if differs(part)]
+ return [each for part in guilty for each in culprits(differs, part)]
! You returned a single clean number as guilty, without checking it. Check it before you return it.
""",
        ),
        Mistake(
            "one by one",
            lambda differs, numbers: [number for number in numbers if differs([number])],
            "You found all of them, but at the full price. If a whole list is clean, you need not check its elements.",
        ),
        Mistake(
            "places for numbers",
            lambda differs, numbers: [numbers.index(each) for each in culprits(differs, numbers)],
            "Those are positions in the list. Return the numbers at these positions: the list need not begin with 0.",
        ),
    ),
    run=_with_a_bill,
    also_right=r"""
# as a generator
def as_a_generator(differs, numbers):
    yield from culprits(differs, numbers)
# a set
lambda differs, numbers: set(culprits(differs, numbers))
""",
    also_wrong=r"""
# the places
lambda differs, numbers: [i for i, number in enumerate(numbers) if differs([number])]
! more than 100 calls of differs: True
# the number itself
lambda differs, numbers: [[137]]
! gave [[137]], which is not a list of numbers
""",
)


def _one_wrong():
    """All answers in which one patient has a wrong disease."""
    for position, right in enumerate(DIAGNOSIS):
        for letter, look in DISEASES.items():
            if letter != right:
                yield Mistake(
                    f"patient {position + 1} is {letter}",
                    DIAGNOSIS[:position] + letter + DIAGNOSIS[position + 1 :],
                    f"Three of the four are right. Look again at patient {position + 1}, which you called "
                    f"{letter}. {look}",
                    hint=2,
                )


FOUR_PATIENTS = Exercise(
    "06.7",
    "Four patients",
    'Which disease does each of the four patients above have? Put the letters into a string, such as `"ABCD"`. '
    "A: a wrong sign. B: a constant factor. C: transposed. D: `=` where `+=` belongs. E: a mean over the row is "
    "missing. F: a gradient passes where it should be stopped. G: healthy. A letter may occur more than once, or "
    "never.",
    minutes=6,
    difficulty=2,
    solution=DIAGNOSIS,
    hints=(
        "Begin with the lowest row, the differences. What is their pattern: by rows, around the diagonal, only "
        "where the measured gradient is 0? And how large are they?",
        " ".join(f"{letter}: {look}" for letter, look in list(DISEASES.items())[2:5]),
        " ".join(f"{letter}: {look}" for letter, look in list(DISEASES.items())[5:]),
    ),
    mistakes=tuple(_one_wrong()),
    explain="Patient 1 is clip, which lets everything through. Patient 2 is layer_norm without the mean of g. "
    "Patient 3 is tanh of a product, and it is healthy. Patient 4 is a matrix product with a transposed gradient.",
    also_right=r"""
import numpy as np

# with commas
"f, e, g, c"
# an array
np.array(list("FEGC"))
""",
    also_wrong=r"""
# two of four
"FECG"
! 2 of the 4 are right.
# three letters
"FEG"
! is not a string of 4 letters
""",
)
