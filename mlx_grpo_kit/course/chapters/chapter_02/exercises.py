"""Exercises of notebook 02: scalar autograd."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import math

from mlx_grpo_kit.course.exercise import Exercise, Mistake
from mlx_grpo_kit.scalar import Value


def _leaves(*numbers):
    return [Value(number, label=name) for number, name in zip(numbers, "abcdef", strict=False)]


def one_product():
    """a * b"""
    a, b = _leaves(2.0, -3.0)
    return a * b


def twice_doubled():
    """b + b where b = a + a"""
    (a,) = _leaves(3.0)
    b = a + a
    return b + b


def diamond():
    """(c + a) * (c - b) where c = a * b"""
    a, b = _leaves(0.5, -1.5)
    c = a * b
    return (c + a) * (c - b)


def long_way_and_short_way():
    """e * c + a where c = a * b and e = tanh(c) + a"""
    a, b = _leaves(2.0, 0.7)
    c = a * b
    d = c.tanh()
    e = d + a
    return e * c + a


# -- 02.2 -------------------------------------------------------------------------------------------------------------


def local_derivatives(op, a, b):
    """(slope of the result for a, slope for b) of a op b, where op is "+", "-", "*" or "/"."""
    if op == "+":
        return 1.0, 1.0
    if op == "-":
        return 1.0, -1.0
    if op == "*":
        return b, a
    return 1 / b, -a / b**2


def _product_not_swapped(op, a, b):
    return (a, b) if op == "*" else local_derivatives(op, a, b)


def _quotient_without_minus(op, a, b):
    return (1 / b, a / b**2) if op == "/" else local_derivatives(op, a, b)


def _quotient_without_brackets(op, a, b):
    return (1 / b, -a / b * b) if op == "/" else local_derivatives(op, a, b)


def _difference_like_sum(op, a, b):
    return (1.0, 1.0) if op == "-" else local_derivatives(op, a, b)


def _quotient_as_ones(op, a, b):
    return (1 / b, -1 / b**2) if op == "/" else local_derivatives(op, a, b)


# -- 02.3 -------------------------------------------------------------------------------------------------------------


def topological_order(root):
    """All values of the graph of root in a list: each once, and after its parents."""
    order, seen = [], set()

    def visit(value):
        if value not in seen:
            seen.add(value)
            for parent in value.parents:
                visit(parent)
            order.append(value)

    visit(root)
    return order


def _itself_first(root):
    order, seen = [], set()

    def visit(value):
        if value not in seen:
            seen.add(value)
            order.append(value)
            for parent in value.parents:
                visit(parent)

    visit(root)
    return order


def _reversed_preorder(root):
    return _itself_first(root)[::-1]


def _again_and_again(root):
    order = []

    def visit(value):
        for parent in value.parents:
            visit(parent)
        order.append(value)

    visit(root)
    return order


def _without_the_root(root):
    return topological_order(root)[:-1]


def _leaves_left_out(root):
    return [value for value in topological_order(root) if value.parents]


def _judge_order(function, build):
    """An order in words, because more than one is right."""
    root = build()
    order = function(root)
    if not isinstance(order, list):
        return order
    wanted = topological_order(root)
    if len(order) != len(set(order)):
        return "a list with a value in it twice"
    missing = [value for value in wanted if value not in set(order)]
    if missing:
        kinds = {"the root" if value is root else "a leaf" if not value.parents else "a result" for value in missing}
        return f"a list without {' and '.join(sorted(kinds))}"
    place = {value: index for index, value in enumerate(order)}
    if any(place[parent] > place[value] for value in wanted for parent in value.parents):
        return "a list with a value before its parent"
    return "each value once, after its parents"


# -- 02.4 -------------------------------------------------------------------------------------------------------------


def backward(order):
    """Fill in .grad of every value. order: all values of a graph, parents first; grads are 0."""
    order[-1].grad = 1.0
    for value in reversed(order):
        for parent, derivative in zip(value.parents, value.derivatives):
            parent.grad += derivative * value.grad


def _overwrites(order):
    order[-1].grad = 1.0
    for value in reversed(order):
        for parent, derivative in zip(value.parents, value.derivatives):
            parent.grad = derivative * value.grad


def _no_start(order):
    for value in reversed(order):
        for parent, derivative in zip(value.parents, value.derivatives):
            parent.grad += derivative * value.grad


def _from_the_leaves(order):
    order[-1].grad = 1.0
    for value in order:
        for parent, derivative in zip(value.parents, value.derivatives):
            parent.grad += derivative * value.grad


def _derivatives_alone(order):
    order[-1].grad = 1.0
    for value in reversed(order):
        for parent, derivative in zip(value.parents, value.derivatives):
            parent.grad += derivative


def _leaf_gradients(function, build):
    root = build()
    order = topological_order(root)
    function(order)
    return {value.label: value.grad for value in order if value.label}


# -- 02.5 -------------------------------------------------------------------------------------------------------------


def softplus(x):
    """log(1 + e**x) of a Value, as one new Value."""
    return Value(
        math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(1 / (1 + math.exp(-x.data)),)
    )


def _without_parents(x):
    return Value(math.log(1 + math.exp(x.data)))


def _mirrored(x):
    return Value(math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(1 / (1 + math.exp(x.data)),))


def _without_inner(x):
    return Value(math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(math.exp(x.data),))


def _number_and_gradient(function, number):
    x = Value(number)
    result = function(x)
    if not isinstance(result, Value):
        return result
    if not isinstance(result.parents, tuple) or not isinstance(result.derivatives, tuple):
        return "a Value whose parents or derivatives are not a tuple; a tuple of one has a comma: (x,)"
    result.backward()
    return {"data": result.data, "gradient of x": x.grad}


EXERCISES = (
    Exercise(
        "02.1",
        "Backwards by hand",
        "The same graph with other numbers: `e = a * b`, `d = e + c`, `L = d * f`, at `a "
        "= 1`, `b = 4`, `c = -2`, `f = 3`. Go backwards with a pencil, from `L` to the leaves, and put the slopes of "
        "`L` for `(a, b, c, f)` in a tuple.",
        6,
        2,
        (12.0, 3.0, 3.0, 2.0),
        hints=(
            "First forwards: e is 4, d is 2, L is 6. Then begin at L = d * f: its slope for d is f = 3, for f it is "
            "d = 2. What does d hand on to e and c?",
            "A sum hands its slope on unchanged: e and c both get 3. In e = a * b the slope for a is b, times what "
            "e got.",
            "For a: 4 * 3 = 12. For b: 1 * 3 = 3.",
        ),
        mistakes=(
            Mistake(
                "only the last step",
                (4.0, 1.0, 1.0, 2.0),
                "The first three are the slopes of d. On the way to L they are still multiplied by f.",
                2,
            ),
            Mistake(
                "product not swapped",
                (3.0, 12.0, 3.0, 2.0),
                "The slopes for a and b are swapped: in a product the slope for one factor is the other.",
                2,
            ),
            Mistake(
                "sum as a product",
                (12.0, 3.0, -6.0, 2.0),
                "c is added, so it gets the slope of d as it is, 3, whatever its own size.",
                2,
            ),
            Mistake("f by its own size", (12.0, 3.0, 3.0, 3.0), "When f grows by 1, L grows by d: what is d?", 1),
        ),
    ),
    Exercise(
        "02.2",
        "The rule of each operation",
        "Write `local_derivatives(op, a, b)`: the slopes of `a op b` for `a` and "
        'for `b`, as a tuple. `op` is `"+"`, `"-"`, `"*"` or `"/"`; `a` and `b` are plain numbers.',
        6,
        1,
        local_derivatives,
        hints=(
            "Four cases, each with its own pair. For + it is (1, 1): when a grows by 1, so does the sum.",
            "For * it is (b, a). For a / b = a * (1/b) the slope for a is 1 / b; the slope of 1/b for b is -1 / b**2.",
            "`-` gives (1, -1), `/` gives (1 / b, -a / b**2).",
        ),
        cases=(("+", 2.0, 5.0), ("-", 2.0, 5.0), ("*", 2.0, 5.0), ("/", 3.0, -2.0), ("/", 1.0, 4.0)),
        mistakes=(
            Mistake("product", _product_not_swapped, "When a grows by 1, a * b grows by b: the slope for a is b.", 2),
            Mistake("difference", _difference_like_sum, "When b grows, a - b gets smaller: its slope is -1.", 3),
            Mistake(
                "quotient sign",
                _quotient_without_minus,
                "When b grows, a / b gets smaller (for positive a and b): the slope for b has a minus sign.",
                2,
            ),
            Mistake(
                "quotient without brackets",
                _quotient_without_brackets,
                "`/ b * b` divides by b and then multiplies by it again. Write `b**2`, or brackets.",
                3,
            ),
            Mistake(
                "quotient without a",
                _quotient_as_ones,
                "The slope of 1 / b is -1 / b**2; that of a / b is a times as large.",
                2,
            ),
        ),
    ),
    Exercise(
        "02.3",
        "An order that works",
        "Write `topological_order(root)`: a list of all values that `root` was computed "
        "from, and `root` itself. Each is in it once, and after all of its parents (`value.parents`). Several orders "
        "are right.",
        10,
        3,
        topological_order,
        hints=(
            "Write a function inside, `visit(value)`, that visits the parents first and then appends the value to "
            "the list. A value used twice is visited twice: what has to be remembered?",
            "Keep a set of the values seen. `visit` does nothing for a value in it. Otherwise: add it to the set, "
            "visit each of `value.parents`, and only then append it to the list.",
            "`def visit(value):`\n`    if value not in seen:`\n`        seen.add(value)`\n"
            "`        for parent in value.parents: visit(parent)`\n`        order.append(value)`",
        ),
        cases=((one_product,), (twice_doubled,), (diamond,), (long_way_and_short_way,)),
        mistakes=(
            Mistake(
                "itself first",
                _itself_first,
                "The value goes into the list before its parents do. Append it after the loop over the parents.",
                2,
            ),
            Mistake(
                "reversed",
                _reversed_preorder,
                "Turning the list of a walk from the root around is not enough: a "
                "value that is reached early, on a short way, ends up after something made from it.",
                2,
            ),
            Mistake(
                "no memory",
                _again_and_again,
                "Remember in a set which values you have seen. Without it a graph "
                "of 50 doublings would be walked along a million billion paths.",
                2,
            ),
            Mistake("no root", _without_the_root, "root itself belongs to the list, at its end.", 1),
            Mistake(
                "no leaves", _leaves_left_out, "The leaves belong to it too: they are what the gradients are for.", 1
            ),
        ),
        run=_judge_order,
    ),
    Exercise(
        "02.4",
        "The backward pass",
        "Write `backward(order)`. `order` holds all values of a graph, parents first, so "
        "the result is `order[-1]`; every `grad` is 0. Fill in the grads: the result's is 1, and each value hands its "
        "own on to its `parents`, times the number at the same place in its `derivatives`. It returns nothing.",
        8,
        2,
        backward,
        hints=(
            "Two things to do: give the result its grad, then go through the values from the end of the list to its "
            "beginning, `reversed(order)`.",
            "For one value: `for parent, derivative in zip(value.parents, value.derivatives):`. What is added to "
            "`parent.grad`?",
            "`parent.grad += derivative * value.grad`",
        ),
        cases=((one_product,), (twice_doubled,), (diamond,), (long_way_and_short_way,)),
        mistakes=(
            Mistake(
                "overwrites",
                _overwrites,
                "A value that is used in two places gets a share from each. `=` forgets the first; add instead.",
                3,
            ),
            Mistake(
                "no start",
                _no_start,
                "All grads stay 0, because the first one is 0 too. How fast does the result "
                "change when the result changes?",
                1,
            ),
            Mistake(
                "from the leaves",
                _from_the_leaves,
                "The gradient starts at the result, which is the last in the list: go through it backwards.",
                1,
            ),
            Mistake(
                "derivatives alone",
                _derivatives_alone,
                "The local derivative alone says how the next value "
                "changes, not the result: multiply it by `value.grad`.",
                3,
            ),
        ),
        run=_leaf_gradients,
    ),
    Exercise(
        "02.5",
        "An operation of your own",
        "`Value` has no softplus, `log(1 + e**x)`, a smooth relu. Write "
        "`softplus(x)` for a Value `x`. Its slope is the sigmoid, `1 / (1 + e**-x)`. Return "
        '`Value(data, op="softplus", parents=..., derivatives=...)`, with tuples of one for the last two; `math.exp` '
        "and `math.log` work on `x.data`.",
        8,
        2,
        softplus,
        hints=(
            "The data is `math.log(1 + math.exp(x.data))`. The only parent is x, so `parents` is `(x,)`.",
            "The derivative is the sigmoid of x.data: `1 / (1 + math.exp(-x.data))`. Mind the minus sign, and the "
            "comma of a tuple of one.",
        ),
        cases=((0.0,), (2.0,), (-3.0,)),
        mistakes=(
            Mistake(
                "no parents",
                _without_parents,
                "The number is right, but the result does not know x: `(x,)` belongs into its parents.",
                1,
            ),
            Mistake(
                "mirrored",
                _mirrored,
                "The derivative is that of -x: 1 / (1 + e**-x) has a minus sign in the exponent.",
                2,
            ),
            Mistake(
                "without the logarithm",
                _without_inner,
                "That is the slope of 1 + e**x. The logarithm around it divides it by 1 + e**x.",
                2,
            ),
        ),
        run=_number_and_gradient,
        explain="softplus(x) = (1 + x.exp()).log() has the same gradient, from three values instead of one.",
    ),
)
