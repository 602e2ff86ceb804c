"""Exercises of notebook 06: the gradient clinic."""

from contextlib import nullcontext

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_06.patients import DIAGNOSIS, DISEASES
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake

GRID = np.array([[0.5, -1.0, 2.0], [1.5, -0.3, 0.8]])


def sum_of_cubes(x):
    """sum(x**3)"""
    return float(np.sum(x**3))


def waves(x):
    """sum(sin(x)) * x.flat[0]"""
    return float(np.sum(np.sin(x)) * x.flat[0])


# -- 06.1 -------------------------------------------------------------------------------------------------------------


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


def _one_side(f, x, h=1e-5):
    x = np.array(x, dtype=float)
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ahead = x.copy()
        ahead[index] += h
        gradient[index] = (f(ahead) - f(x)) / h
    return gradient


def _never_puts_back(f, x, h=1e-5):
    x = x if x.dtype == float else x.astype(float)
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        x[index] += h
        ahead = f(x)
        x[index] -= 2 * h
        gradient[index] = (ahead - f(x)) / (2 * h)
    return gradient


def _puts_back_whole_numbers(f, x, h=1e-5):
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        x[index] += h
        ahead = f(x)
        x[index] -= 2 * h
        gradient[index] = (ahead - f(x)) / (2 * h)
        x[index] += h
    return gradient


def _divided_and_multiplied(f, x, h=1e-5):
    return numeric_gradient(f, x, h) * h**2


def _returns_too_early(f, x, h=1e-5):
    gradient, first = np.zeros(np.shape(x)), next(np.ndindex(np.shape(x)))
    gradient[first] = numeric_gradient(f, x, h)[first]
    return gradient


def _all_at_once(f, x, h=1e-5):
    return np.full(np.shape(x), (f(x + h) - f(x - h)) / (2 * h))


def _whole_numbers_stay_whole(f, x, h=1e-5):
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] = ahead[index] + h
        behind[index] = behind[index] - h
        gradient[index] = (f(ahead) - f(behind)) / (2 * h)
    return gradient


def _zeros_like(f, x, h=1e-5):
    gradient = np.zeros_like(x)
    gradient[...] = numeric_gradient(f, x, h)
    return gradient


def _same_array(f, x, h=1e-5):
    return np.zeros(np.shape(x))


def _over_h(f, x, h=1e-5):
    return 2 * numeric_gradient(f, x, h)


def _gradient_and_input(function, f, x):
    gradient = function(f, x)
    return None if gradient is None else {"gradient": np.asarray(gradient), "x afterwards": x}


# -- 06.2 -------------------------------------------------------------------------------------------------------------


def is_close(analytic, numeric, rtol=1e-5, atol=1e-7):
    """Whether all elements of two arrays differ by at most atol + rtol * |numeric|."""
    difference = np.abs(analytic - numeric)
    return bool(np.all(difference <= atol + rtol * np.abs(numeric)))


def _absolute_only(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.all(np.abs(analytic - numeric) <= atol))


def _relative_only(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.all(np.abs(analytic - numeric) <= rtol * np.abs(numeric)))


def _no_abs(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.all(analytic - numeric <= atol + rtol * np.abs(numeric)))


def _any_element(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.any(np.abs(analytic - numeric) <= atol + rtol * np.abs(numeric)))


def _none_too_large(analytic, numeric, rtol=1e-5, atol=1e-7):
    return not np.any(np.abs(analytic - numeric) > atol + rtol * np.abs(numeric))


def _one_verdict_each(analytic, numeric, rtol=1e-5, atol=1e-7):
    return np.abs(analytic - numeric) <= atol + rtol * np.abs(numeric)


def _no_abs_in_the_tolerance(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.all(np.abs(analytic - numeric) <= atol + rtol * numeric))


def _relative_to_analytic(analytic, numeric, rtol=1e-5, atol=1e-7):
    return is_close(numeric, analytic, rtol, atol)


def _own_tolerances(analytic, numeric, rtol=1e-5, atol=1e-7):
    return is_close(analytic, numeric)


def _relative_to_the_largest(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.max(np.abs(analytic - numeric)) <= atol + rtol * np.max(np.abs(numeric)))


def _mean_error(analytic, numeric, rtol=1e-5, atol=1e-7):
    return bool(np.abs(np.mean(analytic - numeric)) <= atol + rtol * np.mean(np.abs(numeric)))


def _a_bool(function, *arguments):
    verdict = function(*arguments)
    is_one = getattr(verdict, "shape", None) == () and verdict.dtype.kind == "b"
    return bool(verdict) if is_one else verdict


# -- 06.3 -------------------------------------------------------------------------------------------------------------


def complex_slope(f, x, h=1e-20):
    """The slope of f at x, a number or an array, from one call with a complex number."""
    return np.imag(f(x + 1j * h)) / h


def _real_part(f, x, h=1e-20):
    return np.real(f(x + 1j * h)) / h


def _not_divided(f, x, h=1e-20):
    return np.imag(f(x + 1j * h))


def _length(f, x, h=1e-20):
    return np.abs(f(x + 1j * h)) / h


def _real_step(f, x, h=1e-20):
    return np.imag(f(x + h)) / h


def _central(f, x, h=1e-5):
    return (f(x + h) - f(x - h)) / (2 * h)


def cube(x):
    """x**3"""
    return x**3


def wavy(x):
    """exp(x) * sin(x)"""
    return np.exp(x) * np.sin(x)


def far_up(x):
    """1e9 + x**3"""
    return 1e9 + x**3


# -- 06.4 -------------------------------------------------------------------------------------------------------------


def my_gradcheck(fn, x):
    """Whether the gradient that backward finds at the array x is the slope of fn."""
    leaf = T.Tensor(x, requires_grad=True)
    out = fn(leaf)
    weights = np.random.default_rng(0).normal(size=out.shape)
    out.backward(weights)

    def weighted_sum(array):
        return np.sum(fn(T.Tensor(array)).data * weights)

    return is_close(leaf.grad, numeric_gradient(weighted_sum, x))


def _compare(fn, x, by_backward, in_sum, close=is_close):
    leaf = T.Tensor(x, requires_grad=True)
    by_backward(fn(leaf))
    return close(leaf.grad, numeric_gradient(lambda array: in_sum(fn(T.Tensor(array)).data), x))


def _plain_sum(fn, x):
    return _compare(fn, x, lambda out: out.backward(np.ones(out.shape)), np.sum)


def _weights_of(shape):
    return np.random.default_rng(0).normal(size=shape)


def _weighted_by_the_engine(fn, x):
    return _compare(
        fn,
        x,
        lambda out: T.sum(T.mul(out, _weights_of(out.shape))).backward(),
        lambda out: np.sum(out * _weights_of(out.shape)),
    )


def _two_weightings(fn, x):
    return _compare(
        fn,
        x,
        lambda out: out.backward(_weights_of(out.shape)),
        lambda out: np.sum(out * np.random.default_rng(1).normal(size=out.shape)),
    )


def _generous(fn, x):
    return _compare(
        fn,
        x,
        lambda out: out.backward(_weights_of(out.shape)),
        lambda out: np.sum(out * _weights_of(out.shape)),
        lambda a, n: np.allclose(a, n, 0.05, 1e-3),
    )


def _never_backward(fn, x):
    def weighted(array):
        return np.sum(fn(T.Tensor(array)).data * _weights_of(fn(T.Tensor(array)).shape))

    return is_close(numeric_gradient(weighted, x, 1e-5), numeric_gradient(weighted, x, 1e-4), 1e-3, 1e-3)


def _without_data(fn, x):
    return _compare(
        fn,
        x,
        lambda out: out.backward(_weights_of(out.shape)),
        lambda out: np.sum(T.Tensor(out) * _weights_of(out.shape)),
    )


def _not_summed(fn, x):
    return _compare(fn, x, lambda out: out.backward(_weights_of(out.shape)), lambda out: out * _weights_of(out.shape))


def _patient(operation, words, breaking=nullcontext):
    """A function to be checked. While it is, `breaking` replaces the rule of the operation."""

    def fn(x):
        return operation(x)

    fn.__name__, fn.__doc__, fn.breaking = operation.__name__, words, breaking
    return fn


def _double(x):
    return T.mul(x, np.array([[2.0, -1.0, 0.5], [1.0, 3.0, -0.5]]))


_double.__name__ = "mul"
HEALTHY_TANH = _patient(T.tanh, "tanh(x), whose rule is right")
HEALTHY_SOFTMAX = _patient(T.softmax, "softmax(x), whose rule is right")
SICK_TANH = _patient(
    T.tanh,
    "tanh(x), whose gradient is 1% too large",
    lambda: T.replaced_gradient("tanh", x=lambda g, out: 1.01 * g * (1 - out * out)),
)
SICK_SOFTMAX = _patient(
    T.softmax,
    "softmax(x), whose gradient is twice as large as it should be",
    lambda: T.replaced_gradient(
        "softmax", x=lambda g, out, axis: 2 * out * (g - np.sum(g * out, axis=axis, keepdims=True))
    ),
)
SICK_MUL = _patient(
    _double,
    "x * constant, while the rule of mul has the wrong sign",
    lambda: T.replaced_gradient("mul", a=lambda g, b: -g * b),
)


def _examined(function, fn, x):
    with fn.breaking():
        return _a_bool(function, fn, x)


# -- 06.5 -------------------------------------------------------------------------------------------------------------


def two_slopes(f, gradient, x, direction, h=1e-5):
    """(what the gradient says, what f says): the slope of f at x along a direction."""
    claimed = np.sum(gradient * direction)
    measured = (f(x + h * direction) - f(x - h * direction)) / (2 * h)
    return claimed, measured


def _mean_claim(f, gradient, x, direction, h=1e-5):
    return np.mean(gradient * direction), two_slopes(f, gradient, x, direction, h)[1]


def _claim_without_direction(f, gradient, x, direction, h=1e-5):
    return np.sum(gradient), two_slopes(f, gradient, x, direction, h)[1]


def _unit_length(f, gradient, x, direction, h=1e-5):
    claimed, measured = two_slopes(f, gradient, x, direction, h)
    return claimed, measured / np.linalg.norm(direction)


def _step_not_direction(f, gradient, x, direction, h=1e-5):
    return np.sum(gradient * direction), (f(x + h) - f(x - h)) / (2 * h)


def _measured_over_h(f, gradient, x, direction, h=1e-5):
    claimed, measured = two_slopes(f, gradient, x, direction, h)
    return claimed, 2 * measured


def _divided_and_multiplied_too(f, gradient, x, direction, h=1e-5):
    claimed, measured = two_slopes(f, gradient, x, direction, h)
    return claimed, measured * h**2


def _forward_alone(f, gradient, x, direction, h=1e-5):
    return np.sum(gradient * direction), (f(x + h * direction) - f(x)) / h


def _claim_not_summed(f, gradient, x, direction, h=1e-5):
    return gradient * direction, two_slopes(f, gradient, x, direction, h)[1]


def _a_pair(function, *arguments):
    """Two numbers in an array are a pair too."""
    slopes = function(*arguments)
    return tuple(slopes) if isinstance(slopes, np.ndarray) and slopes.ndim == 1 else slopes


def _the_other_way_round(f, gradient, x, direction, h=1e-5):
    return two_slopes(f, gradient, x, direction, h)[::-1]


SIGNS = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
NEARLY = 3 * GRID**2 * np.array([[1.0, 1.0, 1.0], [1.0, 1.5, 1.0]])


# -- 06.6 -------------------------------------------------------------------------------------------------------------


def culprits(differs, numbers):
    """The wrong ones in a list; differs(part) is True if a part of it holds at least one."""
    if len(numbers) == 0 or not differs(numbers):
        return []
    if len(numbers) == 1:
        return numbers
    half = len(numbers) // 2
    return culprits(differs, numbers[:half]) + culprits(differs, numbers[half:])


def _one_by_one(differs, numbers):
    return [number for number in numbers if differs([number])]


def _first_half_only(differs, numbers):
    if len(numbers) <= 1:
        return numbers if differs(numbers) else []
    half = len(numbers) // 2
    return _first_half_only(differs, numbers[:half] if differs(numbers[:half]) else numbers[half:])


def _middle_lost(differs, numbers):
    if len(numbers) == 0 or not differs(numbers):
        return []
    if len(numbers) == 1:
        return numbers
    half = len(numbers) // 2
    return _middle_lost(differs, numbers[:half]) + _middle_lost(differs, numbers[half + 1 :])


def _never_ends(differs, numbers):
    if not differs(numbers):
        return []
    half = len(numbers) // 2
    return _never_ends(differs, numbers[:half]) + _never_ends(differs, numbers[half:])


def _all_or_nothing(differs, numbers):
    return numbers if differs(numbers) else []


def _with_a_bill(function, wrong, count):
    asked = []

    def differs(part):
        asked.append(len(part))
        return any(number in wrong for number in part)

    found = function(differs, list(range(count)))
    if found is None:
        return None
    try:
        found = sorted(int(number) for number in found)
    except (TypeError, ValueError):
        return Told(f"{show(found)}, which is not a list of numbers")
    return {"culprits": found, "asked more than 100 times": len(asked) > 100}


# -- 06.7 -------------------------------------------------------------------------------------------------------------


def _one_wrong():
    """An answer in which one patient has another disease, for each patient and disease."""
    for position, right in enumerate(DIAGNOSIS):
        for letter, look in DISEASES.items():
            if letter != right:
                yield Mistake(
                    f"patient {position + 1} is {letter}",
                    DIAGNOSIS[:position] + letter + DIAGNOSIS[position + 1 :],
                    f"Three of the four are right. Look again at patient {position + 1}, whom you called "
                    f"{letter}. {look}",
                    2,
                )


EXERCISES = (
    Exercise(
        "06.1",
        "A numeric gradient",
        "Write `numeric_gradient(f, x, h=1e-5)`. `f` takes an array and gives a number. "
        "The result is an array of the shape of `x` (any shape) with the slope of `f` for each element, measured to "
        "both sides as in chapter 01. `x` has to be the same afterwards, and may hold whole numbers. "
        "`np.ndindex(x.shape)` gives one index after the other.",
        8,
        2,
        numeric_gradient,
        hints=(
            "For each index make two copies of x, one with this element moved by +h and one by -h.",
            "An integer array cannot hold 3.00001: begin with `x = np.array(x, dtype=float)`, and make the result "
            "with `np.zeros(x.shape)`.",
            "Inside the loop: `ahead, behind = x.copy(), x.copy()`, then `ahead[index] += h`, `behind[index] -= h` "
            "and `gradient[index] = (f(ahead) - f(behind)) / (2 * h)`.",
        ),
        cases=(
            (sum_of_cubes, np.array([0.5, -1.0, 2.0])),
            (waves, GRID),
            (waves, np.array([[1, 2], [3, -1]])),
            (waves, np.array(0.7)),
        ),
        mistakes=(
            Mistake(
                "one side",
                _one_side,
                "Near, but the error of one side is a hundred thousand times that of two: "
                "compare f ahead with f behind, not with f here.",
                1,
            ),
            Mistake(
                "never puts back",
                _never_puts_back,
                "The element stays moved, so all later slopes belong to "
                "another place, and the caller's x is changed. Work on copies.",
                1,
            ),
            Mistake(
                "all at once",
                _all_at_once,
                "All elements moved together, which gives the sum of all slopes. Move one element at a time.",
                1,
            ),
            Mistake(
                "puts back whole numbers",
                _puts_back_whole_numbers,
                "Right for floats. An integer array cuts 1 - "
                "2 * h down to 0, and what was there does not come back. Work on a copy that holds floats.",
                2,
            ),
            Mistake(
                "divided and multiplied",
                _divided_and_multiplied,
                "Far too small: `/ 2 * h` divides by 2 and then multiplies by h. Put brackets around it, `/ (2 * h)`.",
                3,
            ),
            Mistake(
                "returns too early",
                _returns_too_early,
                "Only the first slope was measured: is the `return` inside the loop?",
                3,
            ),
            Mistake(
                "whole numbers",
                _whole_numbers_stay_whole,
                "Right for floats. An integer array rounds 1 + h back to 1 without a word, so nothing moved.",
                2,
            ),
            Mistake(
                "zeros_like",
                _zeros_like,
                "The slopes are cut off to whole numbers: `np.zeros_like(x)` of an integer array is an integer array.",
                2,
            ),
            Mistake(
                "the same array",
                _same_array,
                "All slopes are 0: `ahead = x` gives x a second name and makes no "
                "copy, so ahead and behind are the same array.",
                3,
            ),
            Mistake("over h", _over_h, "All slopes are twice too large: from x - h to x + h it is 2 * h.", 3),
        ),
        run=_gradient_and_input,
    ),
    Exercise(
        "06.2",
        "How close is close?",
        "Write `is_close(analytic, numeric, rtol=1e-5, atol=1e-7)`: True when *every* "
        "element differs by at most `atol + rtol * |numeric|`, else False. An element that is nan is close to nothing.",
        5,
        1,
        is_close,
        hints=(
            "`np.abs(analytic - numeric)` is the difference, an array. The tolerance is one too.",
            "`np.all(difference <= tolerance)`. Every comparison with nan is False, which is just what we need, if "
            "you ask whether all are small enough and not whether any is too large.",
        ),
        cases=(
            (np.array([1.0, 2.0]), np.array([1.0, 2.000001])),
            (np.array([1e6, 0.5]), np.array([1e6 + 1.0, 0.5])),
            (np.array([1e-9, 1.0]), np.array([0.0, 1.0])),
            (np.array([1.0, 1.01]), np.array([1.0, 1.0])),
            (np.array([1.0, -3.0]), np.array([1.0, 3.0])),
            (np.array([1.0, np.nan]), np.array([1.0, 2.0])),
            (np.array([1.1, 1.9]), np.array([1.0, 2.0])),
            (np.array([-20000.1, 2.0]), np.array([-20000.0, 2.0])),
            (np.array([0.011, 1e4]), np.array([0.01, 1e4])),
            (np.array([1.0]), np.array([1.25]), 0.22, 0.0),
            (np.array([1.25]), np.array([1.0]), 0.22, 0.0),
        ),
        mistakes=(
            Mistake(
                "absolute only",
                _absolute_only,
                "A difference of 1 in a million is rounding. Without `rtol * |numeric|` large gradients fail.",
                1,
            ),
            Mistake(
                "relative only",
                _relative_only,
                "No number but 0 is relatively close to 0. `atol` is for slopes that should be 0.",
                1,
            ),
            Mistake(
                "no abs", _no_abs, "-3 is a lot less than 3, and so is the difference: take its absolute value.", 1
            ),
            Mistake(
                "no abs in the tolerance",
                _no_abs_in_the_tolerance,
                "`rtol * numeric` is negative where numeric is: the tolerance needs its absolute value too.",
                1,
            ),
            Mistake(
                "one verdict each",
                _one_verdict_each,
                "That is one verdict for each element. Only if all are True is the answer True.",
                2,
            ),
            Mistake(
                "relative to the other",
                _relative_to_analytic,
                "`rtol` is a share of `numeric`, the one that was measured.",
                1,
            ),
            Mistake(
                "tolerances of its own",
                _own_tolerances,
                "`rtol` and `atol` are arguments: use them instead of the numbers 1e-5 and 1e-7.",
                1,
            ),
            Mistake(
                "relative to the largest",
                _relative_to_the_largest,
                "Each element has a tolerance of its own. A large neighbour does not excuse an error.",
                2,
            ),
            Mistake("any", _any_element, "One element that agrees is not enough: all have to.", 2),
            Mistake(
                "nan passes",
                _none_too_large,
                "A nan passed! `nan > tolerance` is False, so none is too large. "
                "Ask instead whether all are small enough.",
                2,
            ),
            Mistake(
                "errors cancel",
                _mean_error,
                "In the mean an error of +0.1 and one of -0.1 cancel. Look at every element.",
                2,
            ),
        ),
        run=_a_bool,
        explain="NumPy has it: np.allclose(analytic, numeric, rtol, atol). The order matters a little, since rtol is "
        "multiplied by the second.",
    ),
    Exercise(
        "06.3",
        "The complex step",
        "Write `complex_slope(f, x, h=1e-20)`: the imaginary part of `f(x + ih)`, over "
        "`h`. In Python i is written `1j`; `np.imag` works on numbers and on arrays.",
        4,
        1,
        complex_slope,
        hints=("The point to go to is `x + 1j * h`.", "`np.imag(f(x + 1j * h)) / h`. That is all."),
        cases=((cube, 2.0), (wavy, np.array([0.5, -1.0, 2.0])), (far_up, 2.0), (cube, 2.0, 1e-3)),
        mistakes=(
            Mistake("real", _real_part, "That is the real part: the value of f, not its slope.", 2),
            Mistake("not divided", _not_divided, "So small: it is still multiplied by h.", 2),
            Mistake(
                "abs",
                _length,
                "The length of a complex number mixes the value in. The slope is in the imaginary part alone.",
                2,
            ),
            Mistake("real step", _real_step, "The step has to go sideways, off the real line: `1j * h`.", 1),
            Mistake(
                "central",
                _central,
                "That is a central difference. It works for the first two, but 1e9 + x**3 "
                "swallows the digits that it needs.",
                1,
            ),
        ),
        explain="No difference is taken, so no digits are lost and h may be as small as you like.",
    ),
    Exercise(
        "06.4",
        "Your own gradcheck",
        "Write `my_gradcheck(fn, x)`. `fn` takes a Tensor and gives a Tensor of any "
        "shape; `x` is an array. Run `fn` on a Tensor that requires a gradient; give each output a random weight, an "
        "array `weights`; and start backward with them: `out.backward(weights)`. Measure the same with "
        "`numeric_gradient`: the slope of `np.sum(fn(...).data * weights)`. Return what `is_close` says of the two.",
        12,
        3,
        my_gradcheck,
        hints=(
            "The first half: `leaf = T.Tensor(x, requires_grad=True)`, `out = fn(leaf)`, weights, "
            "`out.backward(weights)`; the gradient is then in `leaf.grad`.",
            "`weights = np.random.default_rng(0).normal(size=out.shape)`, made once and used for both halves.",
            "The second half needs a function from an array to a number: `def weighted_sum(array): return "
            "np.sum(fn(T.Tensor(array)).data * weights)`. Give it to `numeric_gradient` with x.",
            "`return is_close(leaf.grad, numeric_gradient(weighted_sum, x))`",
        ),
        cases=(
            (HEALTHY_TANH, GRID),
            (HEALTHY_SOFTMAX, GRID),
            (SICK_TANH, GRID),
            (SICK_SOFTMAX, GRID),
            (SICK_MUL, GRID),
        ),
        mistakes=(
            Mistake(
                "plain sum",
                _plain_sum,
                "A plain sum of the outputs is blind here: each row of a softmax sums to "
                "1 whatever x is, so the gradient of the sum is 0, and twice 0 is 0 too. Give each output a "
                "weight of its own.",
                2,
            ),
            Mistake(
                "weights by the engine",
                _weighted_by_the_engine,
                "The weights were multiplied by T.mul, which is "
                "the very rule that is broken here: two wrong signs make a right one. A checker must not lean on "
                "what it checks. Start with the weights instead: `out.backward(weights)`.",
                1,
            ),
            Mistake(
                "two weightings",
                _two_weightings,
                "Even the healthy ones fail. Both halves need the same weights: "
                "draw them once, and use them in `out.backward(weights)` and in the sum that is measured.",
                2,
            ),
            Mistake(
                "generous",
                _generous,
                "An error of 1% got through. Differences in float64 are good to about ten "
                "digits, so there is no reason to be that generous: `is_close` as it is.",
                4,
            ),
            Mistake(
                "without .data",
                _without_data,
                "`numeric_gradient` needs numbers. `fn` gives a Tensor, so take "
                "its array before you go on: `fn(T.Tensor(array)).data`.",
                3,
            ),
            Mistake(
                "not summed",
                _not_summed,
                "`numeric_gradient` wants a function that gives one number, and got "
                "one that gives an array: weight the outputs and sum them.",
                3,
            ),
            Mistake(
                "never backward",
                _never_backward,
                "Everything passes, since the values are compared with "
                "themselves. Where is backward's gradient, `leaf.grad`?",
                1,
            ),
        ),
        run=_examined,
    ),
    Exercise(
        "06.5",
        "All elements in one go",
        "Write `two_slopes(f, gradient, x, direction, h=1e-5)`: move all of `x` "
        "along `direction`, an array of its shape, and return a tuple of two slopes: what `gradient` says (the sum of "
        "`gradient * direction`), and what `f` says (a central difference between `x + h * direction` and `x - h * "
        "direction`).",
        5,
        2,
        two_slopes,
        hints=(
            "Each element of the gradient says how much f rises for one unit of that element; a step along the "
            "direction has `direction[i]` units of element i.",
            "`claimed = np.sum(gradient * direction)`; `measured = (f(x + h * direction) - f(x - h * direction)) / "
            "(2 * h)`.",
        ),
        cases=(
            (sum_of_cubes, 3 * GRID**2, GRID, SIGNS),
            (sum_of_cubes, NEARLY, GRID, SIGNS),
            (sum_of_cubes, 3 * GRID**2, GRID, np.ones_like(GRID)),
        ),
        mistakes=(
            Mistake(
                "mean",
                _mean_claim,
                "What the gradient says is a sum over all elements, not a mean: all of them move at once.",
                1,
            ),
            Mistake(
                "no direction",
                _claim_without_direction,
                "The direction belongs into the first slope too: an element that goes down counts with a minus.",
                1,
            ),
            Mistake(
                "unit length",
                _unit_length,
                "The second is measured per unit of length, the first is not. Leave the direction as long as it is.",
                2,
            ),
            Mistake(
                "step without direction",
                _step_not_direction,
                "The second slope moves all elements up. Move them along the direction: x + h * direction.",
                2,
            ),
            Mistake(
                "over h", _measured_over_h, "The second slope is twice too large: from behind to ahead it is 2 * h.", 2
            ),
            Mistake(
                "divided and multiplied",
                _divided_and_multiplied_too,
                "The second slope is far too small: `/ 2 * "
                "h` divides by 2 and then multiplies by h. It takes brackets, `/ (2 * h)`.",
                2,
            ),
            Mistake(
                "one side",
                _forward_alone,
                "The second slope looks to one side only, which is a good deal less exact.",
                2,
            ),
            Mistake(
                "not summed",
                _claim_not_summed,
                "What the gradient says has to be one number: the sum over all elements.",
                2,
            ),
            Mistake(
                "swapped",
                _the_other_way_round,
                "The two are swapped: first what the gradient says, then what f says.",
                2,
            ),
        ),
        run=_a_pair,
    ),
    Exercise(
        "06.6",
        "Find the culprits",
        "Write `culprits(differs, numbers)`. `numbers` is a list of element numbers, and "
        "`differs(part)` is True if a list holds at least one wrong element, which costs two runs of the function. "
        "Return the list of all wrong ones, and ask at most 100 times for 1,000 numbers: halve.",
        8,
        3,
        culprits,
        hints=(
            "Ask about the whole list. If it is clean, the answer is `[]`. If not, ask about its halves.",
            "A function may call itself: `culprits(differs, left) + culprits(differs, right)`, where left and right "
            "are `numbers[:half]` and `numbers[half:]`.",
            "It has to end somewhere: a list of one number that differs is itself the answer. And an empty list has "
            "no culprits.",
        ),
        cases=(({137}, 1000), ({3, 500, 999}, 1000), (set(), 1000), ({0}, 1), ({4, 5}, 7)),
        mistakes=(
            Mistake(
                "one by one",
                _one_by_one,
                "All found, but at the full price. If a list is clean as a whole, none "
                "of its elements needs to be asked about.",
                1,
            ),
            Mistake(
                "one half",
                _first_half_only,
                "It stops at the first one. When one half has a culprit, the other may have one too.",
                2,
            ),
            Mistake(
                "the middle is lost",
                _middle_lost,
                "The halves are `numbers[:half]` and `numbers[half:]`; with "
                "`half + 1` the element in the middle is in neither.",
                2,
            ),
            Mistake(
                "never ends",
                _never_ends,
                "It never comes to an end: half of a list of one number is that list again, and an empty one.",
                3,
            ),
            Mistake(
                "all or nothing",
                _all_or_nothing,
                "That is the whole list: somebody in it is guilty, but not everybody. Go on with its halves.",
                1,
            ),
        ),
        run=_with_a_bill,
    ),
    Exercise(
        "06.7",
        "Four patients",
        "Which disease has each of the four patients above? Put their letters into a "
        'string, such as `"ABCD"`. A: a wrong sign. B: a constant factor. C: transposed. D: `=` where `+=` belongs. '
        "E: a mean over the row is missing. F: lets something through that should be stopped. G: healthy. A letter may "
        "occur twice, or never.",
        6,
        2,
        DIAGNOSIS,
        hints=(
            "Begin with the lowest row, the differences. Which pattern do they make: in rows, about the diagonal, "
            "only where the values say 0? And how large are they?",
            " ".join(f"{letter}: {look}" for letter, look in list(DISEASES.items())[2:5]),
            " ".join(f"{letter}: {look}" for letter, look in list(DISEASES.items())[5:]),
        ),
        mistakes=tuple(_one_wrong()),
        explain="1 is clip, which let everything through. 2 is layer_norm without the mean of g. 3 is tanh of a "
        "product, in good health. 4 is a matrix product whose gradient was transposed.",
    ),
)
