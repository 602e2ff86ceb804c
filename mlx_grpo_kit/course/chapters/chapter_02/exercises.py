"""Exercises of notebook 02: scalar autograd."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import inspect
import math

from mlx_grpo_kit.course.compare import Told, same, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.scalar import Value, dot


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


def equal_numbers():
    """(a - b) * (c / b) where a, b and c are all 2"""
    a, b, c = _leaves(2.0, 2.0, 2.0)
    return (a - b) * (c / b)


def minus_itself():
    """(a - a) - a / a"""
    (a,) = _leaves(1.5)
    return (a - a) - a / a


def doubled_thirty_times():
    """a doubled thirty times: b = a + a, c = b + b, and so on"""
    (a,) = _leaves(1.0)
    for _ in range(30):
        a = a + a
    return a


def a_leaf():
    """a"""
    (a,) = _leaves(2.5)
    return a


def many_parents():
    """a * b + b * c + c, as one operation with five parents, where b = a * c"""
    a, c = _leaves(0.5, -2.0)
    b = a * c
    return dot([a, b], [b, c], c)


GRAPHS = (
    (one_product,),
    (twice_doubled,),
    (diamond,),
    (long_way_and_short_way,),
    (equal_numbers,),
    (minus_itself,),
    (doubled_thirty_times,),
    (a_leaf,),
    (many_parents,),
)


BY_HAND = Exercise(
    id="02.1",
    title="Backwards by hand",
    prompt="The same graph with other numbers: `e = a * b`, `d = e + c`, `L = d * f`, at `a = 1`, `b = 4`, `c = "
    "-2`, `f = 3`. Work backwards with a pencil, from `L` to the leaves, and put the slopes of `L` for `(a, b, c, "
    "f)` in a tuple.",
    minutes=6,
    difficulty=2,
    solution=(12.0, 3.0, 3.0, 2.0),
    hints=(
        "First go forwards: e is 4, d is 2, L is 6. Then begin at L = d * f: its slope for d is f = 3, and its "
        "slope for f is d = 2. What does d pass on to e and c?",
        "A sum passes its slope on unchanged: e and c both get 3. In e = a * b, the slope for a is b, multiplied "
        "by the slope that e got.",
        "For a: 4 * 3 = 12. For b: 1 * 3 = 3.",
    ),
    mistakes=slips(
        (12.0, 3.0, 3.0, 2.0),
        r"""
only the last step (2)
+ (4.0, 1.0, 1.0, 2.0)
! The first three are the slopes of d. To get the slopes of L, multiply them by f.
product not swapped (2)
+ (3.0, 12.0, 3.0, 2.0)
! The slopes for a and b are swapped: in a product the slope for one factor is the other.
sum as a product (2)
+ (12.0, 3.0, -6.0, 2.0)
! c is added, so it gets the slope of d unchanged: 3. The size of c does not matter.
c as seen from d (2)
+ (12.0, 3.0, 1.0, 2.0)
! 1 is the slope of d for c. To get the slope of L, multiply it by f.
f by its own size
+ (12.0, 3.0, 3.0, 3.0)
! When f grows by 1, L grows by d: what is d?
the first graph
+ (6.0, -4.0, -2.0, 4.0)
! Those are the slopes for the numbers of the first graph.
""",
    ),
    also_right=r"""
import torch

# a tensor
torch.tensor([12.0, 3.0, 3.0, 2.0])
""",
)


def local_derivatives(op, a, b):
    """(slope of the result for a, slope for b) of a op b, where op is "+", "-", "*" or "/"."""
    if op == "+":
        return 1.0, 1.0
    if op == "-":
        return 1.0, -1.0
    if op == "*":
        return b, a
    return 1 / b, -a / b**2


def _rule_or_measurement(function, op, a, b):
    """The slopes, or words if they are right for ordinary numbers and wrong for these."""
    slopes = function(op, a, b)
    is_usual = max(abs(a), abs(b)) < 1e6 and not 0 < abs(b) < 1e-3
    if is_usual or same(slopes, local_derivatives(op, a, b)):
        return slopes
    is_near = same(function(op, 3.0, 2.0), local_derivatives(op, 3.0, 2.0))
    return Told("slopes that are right for ordinary numbers and wrong for these") if is_near else slopes


RULES = Exercise(
    id="02.2",
    title="The rule of each operation",
    prompt="Write `local_derivatives(op, a, b)`: the slopes of `a op b` for `a` and for `b`, as a tuple. `op` is "
    '`"+"`, `"-"`, `"*"` or `"/"`; `a` and `b` are plain numbers. Give the exact slopes, by the rule of '
    "each operation: from here on, we measure nothing.",
    minutes=6,
    difficulty=1,
    solution=local_derivatives,
    hints=(
        "There are four cases, each with its own pair. For + the pair is (1, 1): when a grows by 1, so does the sum.",
        "For * the pair is (b, a). For a / b = a * (1/b) the slope for a is 1 / b; the slope of 1/b for b is -1 / "
        "b**2.",
        "`-` gives (1, -1), `/` gives (1 / b, -a / b**2).",
    ),
    cases=(
        ("+", 2.0, 5.0),
        ("-", 2.0, 5.0),
        ("*", 2.0, 5.0),
        ("/", 3.0, -2.0),
        ("/", -1.0, 4.0),
        ("+", 1e12, 1.0),
        ("*", 3e11, 0.1),
        ("/", 1.0, 2.5e-4),
        ("/", 3e-4, 7.0),
        ("+", 2.0, 0.0),
        ("*", -3.0, 0.0),
        *[case for op in "+-*/" for case in drawn(1, lambda rng, op=op: (op, rng.normal(), rng.normal()))],
    ),
    run=_rule_or_measurement,
    mistakes=slips(
        local_derivatives,
        r"""
@ return b, a
product (2)
+ return a, b
! When a grows by 1, a * b grows by b: the slope for a is b.
size of the factor (2)
+ return b, abs(a)
! When b grows by 1, a * b changes by a, and it falls if a is negative. Do not take abs.

difference (3)
- return 1.0, -1.0
+ return 1.0, 1.0
! When b grows, a - b gets smaller: its slope is -1.

@ return 1 / b, -a / b**2
quotient sign (2)
+ return 1 / b, a / b**2
! When b grows, a / b gets smaller (for positive a and b): the slope for b has a minus sign.
size of the numerator (2)
+ return 1 / b, -abs(a) / b**2
! For a negative a, the quotient rises when b grows. Keep the sign of a; do not take abs.
quotient without brackets (3)
+ return 1 / b, -a / b * b
! `/ b * b` divides by b and then multiplies by it again. Write `b**2`, or use brackets.
quotient without a (2)
+ return 1 / b, -1 / b**2
! The slope of 1 / b is -1 / b**2. The slope of a / b is a times as large.
quotient without a square (2)
+ return 1 / b, -a / b
! The slope of 1 / b is -1 / b**2, with a square.

@ if op == "+":
@     return 1.0, 1.0
@ if op == "-":
@     return 1.0, -1.0
@ if op == "*":
@     return b, a
@ return 1 / b, -a / b**2
all four at every call
+ return {"+": (1.0, 1.0), "-": (1.0, -1.0), "*": (b, a), "/": (1 / b, -a / b**2)}[op]
! Your function computes all four pairs in every call, and the pair of the quotient does not exist if b is 0. Compute
! only the pair for `op`.
measured (2)
+ compute = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}[op]
+ h = 1e-5
+ return (
+     (compute(a + h, b) - compute(a - h, b)) / (2 * h),
+     (compute(a, b + h) - compute(a, b - h)) / (2 * h),
+ )
! A measured slope is wrong when its step is tiny compared with the numbers. The rule of each operation is exact: for a
! * b the slope for a is b, at any size.
""",
    ),
    also_right=r"""
# by the operation's sign
lambda op, a, b: (b, a) if op == "*" else (1 / b, -a / b / b) if op == "/" else (1, int(op + "1"))
""",
    also_wrong=r"""
# slopes never divided by zero
lambda op, a, b: (1 / (b + 1e-8), -a / (b**2 + 1e-8)) if op == "/" else local_derivatives(op, a, b)
""",
)


def topological_order(root):
    """A list of all values in the graph of root: each once, after its parents."""
    order, seen = [], set()

    def visit(value):
        if value not in seen:
            seen.add(value)
            for parent in value.parents:
                visit(parent)
            order.append(value)

    visit(root)
    return order


def _collects_for_good(root, order=[], seen=set()):  # noqa: B006 (that is the mistake)
    if root not in seen:
        seen.add(root)
        for parent in root.parents:
            _collects_for_good(parent, order, seen)
        order.append(root)
    return order


def _every_path(root):
    order = []
    for parent in root.parents:
        order += [value for value in _every_path(parent) if not any(value is other for other in order)]
    return [*order, root]


def _judge_order(function, build):
    """Describe an order in words, because several are right. Call the answer twice, because it must not keep state."""
    earlier = build()
    function(earlier)
    root = build()
    wanted = topological_order(root)
    marks = _marks(wanted)
    first, second = (_verdict(function(root), wanted, topological_order(earlier)) for _ in range(2))
    if _marks(wanted) != marks:
        return Told("an order, but the numbers, names or parents of the values have changed")
    if first != second:
        return Told(f"{first} at the first call, and {second} at the second")
    return first


def _marks(values):
    return [(each.data, each.grad, each.label, each.op, each.parents, each.derivatives) for each in values]


def _verdict(order, wanted, earlier):
    if inspect.isgenerator(order):
        return Told("a generator, which can be read only once (make a list of it: `list(...)`)")
    if not isinstance(order, (list, tuple)):
        return order if order is None else Told(f"a {type(order).__name__}, not a list")
    if any(value is each for value in order for each in earlier):
        return Told("a list that still holds the values of another graph")
    strangers = [value for value in order if not any(value is each for each in wanted)]
    if strangers:
        return Told(f"a list with a {type(strangers[0]).__name__} in it that `root` was not computed from")
    if len(order) != len(set(order)):
        return Told("a list with a value in it twice")
    missing = [value for value in wanted if value not in set(order)]
    if missing and all(value.data in [other.data for other in order] for value in missing):
        return Told("a list in which one value replaces another with the same number")
    if missing:
        kinds = {"the root" if each is wanted[-1] else "a result" if each.parents else "a leaf" for each in missing}
        return Told(f"a list without {' and '.join(sorted(kinds))}")
    place = {value: index for index, value in enumerate(order)}
    if any(place[parent] > place[value] for value in wanted for parent in value.parents):
        return Told("a list with a value before its parent")
    return Told("each value once, after its parents")


ORDER = Exercise(
    id="02.3",
    title="An order that works",
    prompt="Write `topological_order(root)`: a list of all values that `root` was computed from, and `root` "
    "itself. Each value appears once, after all of its parents (`value.parents`). Several orders are right. Visit "
    "each value once, not once per path, and do not change the values.",
    minutes=10,
    difficulty=3,
    solution=topological_order,
    hints=(
        "Write a function inside, `visit(value)`, that visits the parents first and then appends the value to the "
        "list. A value used twice is visited twice: what do you have to remember?",
        "Keep a set of the visited values. If a value is in the set, `visit` does nothing. Otherwise it adds the "
        "value to the set, visits each of `value.parents`, and only then appends the value to the list.",
        "`def visit(value):`\n`    if value not in seen:`\n`        seen.add(value)`\n"
        "`        for parent in value.parents: visit(parent)`\n`        order.append(value)`",
    ),
    cases=GRAPHS,
    run=_judge_order,
    work=20,
    mistakes=(
        *slips(
            topological_order,
            r"""
itself first (2)
- seen.add(value)
+ seen.add(value); order.append(value)
- order.append(value)
! The value goes into the list before its parents do. Append it after the loop over the parents.
reversed (2)
- seen.add(value)
+ seen.add(value); order.append(value)
-     visit(parent)
- order.append(value)
+     visit(parent)
- return order
+ return order[::-1]
! It is not enough to reverse the order of a walk from the root: a value that a short path reaches early ends up after a
! value made from it.
no memory (2)
- if value not in seen:
+ if True:
! Remember in a set which values you have visited. Without the set, a graph of 50 doublings has a million billion paths
! to walk.

@ return order
no root
+ return order[:-1]
! root itself belongs to the list, at its end.
no leaves
+ return [value for value in order if value.parents]
! The leaves belong to the list too: we want their gradients most of all.
an extra value
+ return [*order, Value(1.0)]
! Nothing else belongs in the list: it ends with root.
a generator
+ yield from order
! The backward pass begins at the end of the order, so the order has to be a list.

@ if value not in seen:
@     seen.add(value)
by number (2)
+ if value.data not in seen:
+     seen.add(value.data)
! Your function treats two different values with the same number as one. Remember the Values themselves, not their
! numbers: two Values are equal only if they are one and the same.
an attribute of its own (2)
+ if not hasattr(value, 'visited'):
+     value.visited = True
! A Value does not accept attributes of your own. Remember the visited values in a set.

marks in the values (2)
- order, seen = [], set()
+ order = []
- if value not in seen:
-     seen.add(value)
+ if value.grad == 0.0:
+     value.grad = 1.0
! Remember the visited values in a set of your own. The backward pass needs the grads at 0, and the pictures need the
! labels.
remembers for good (2)
- def topological_order(root):
+ def topological_order(root, seen=set()):  # noqa: B006 (that is the mistake)
- order, seen = [], set()
+ order = []
! The set of visited values outlives the call, so in the next call all values count as visited. Create it inside the
! function. (A default such as `seen=set()` is created once, not in each call.)
""",
        ),
        Mistake(
            "every path",
            _every_path,
            "Each value is in the list once, but you have walked along every path to it: two to the power of 30 "
            "paths for 30 doublings. Before you walk on from a value, check whether you have visited it.",
            hint=2,
        ),
        Mistake(
            "collects for good",
            _collects_for_good,
            "The list outlives the call: it still holds the values of another graph. Create it inside the "
            "function. (A default such as `order=[]` is created once, not in each call.)",
            hint=2,
        ),
    ),
    also_right=r"""
# as a tuple
lambda root: tuple(topological_order(root))
""",
    also_wrong=r"""
# no root without parents
lambda root: topological_order(root) if root.parents else []
! a list without the root
# the outer parents alone
- order, seen = [], set()
+ order = []
- if value not in seen:
-     seen.add(value)
-     for parent in value.parents:
+ if not any(value is each for each in order):
+     for parent in (*value.parents[:1], *value.parents[1:][-1:]):
! a list without a result
# makes sets of the parents
def order_of_sets(root):
    order = topological_order(root)
    for value in order:
        value.parents = tuple(set(value.parents))
    return order
! names or parents of the values
# once for good
VISITED = set()
def once_for_good(root):
    order = []
    if root not in VISITED:
        VISITED.add(root)
        for parent in root.parents:
            order += once_for_good(parent)
        order.append(root)
    return order
! outlives the call
# along every path
- order, seen = [], set()
+ order = []
- if value not in seen:
-     seen.add(value)
-     for parent in value.parents:
-         visit(parent)
+ for parent in value.parents:
+     visit(parent)
+ if not any(value is other for other in order):
! along every path
""",
)


def backward(order):
    """Fill in .grad of every value. order: all values of a graph, parents first; grads are 0."""
    order[-1].grad = 1.0
    for value in reversed(order):
        for parent, derivative in zip(value.parents, value.derivatives):
            parent.grad += derivative * value.grad


class _Unfinished(Value):
    """A Value without a backward pass."""

    __slots__ = ()

    def backward(self):
        raise NotImplementedError("these numbers have no backward() of their own: you are writing it")


def _gradients(function, build):
    """The grad of every value, by label or position in the order; of a long graph, only the leaves and the result."""
    copies = {}
    for value in topological_order(build()):
        parents = tuple(copies[parent] for parent in value.parents)
        copies[value] = _Unfinished(
            value.data, op=value.op, parents=parents, derivatives=value.derivatives, label=value.label
        )
    order = list(copies.values())
    returned = function(list(order))
    if inspect.isgenerator(returned):
        return Told("a generator, which has not started to run (your function contains a `yield`)")
    if returned is not None and not any(value.grad for value in order):
        return Told(f"a {type(returned).__name__}, and no grad filled in: write into the `.grad` of the values")
    names = [value.label or f"{value.op} at position {place}" for place, value in enumerate(order)]
    names[-1] = "the result"
    return {
        name: value.grad for name, value in zip(names, order) if value.label or value is order[-1] or len(order) < 10
    }


def _along_every_path(order):
    def hand_on(value, share):
        value.grad += share
        for parent, derivative in zip(value.parents, value.derivatives):
            hand_on(parent, share * derivative)

    hand_on(order[-1], 1.0)


BACKWARD = Exercise(
    id="02.4",
    title="The backward pass",
    prompt="Write `backward(order)`. `order` holds all values of a graph, parents first, so the result is "
    "`order[-1]`; every `grad` is 0. Fill in the grads: the grad of the result is 1. Each value passes its grad on "
    "to its `parents` once, multiplied by the number at the same position in its `derivatives`. The function "
    "returns nothing.",
    minutes=8,
    difficulty=2,
    solution=backward,
    hints=(
        "There are two steps: give the result its grad, then go through the values from the end of the list to its "
        "beginning, `reversed(order)`.",
        "For one value: `for parent, derivative in zip(value.parents, value.derivatives):`. What is added to "
        "`parent.grad`?",
        "`parent.grad += derivative * value.grad`",
    ),
    cases=GRAPHS,
    run=_gradients,
    in_place=True,
    work=20,
    mistakes=(
        Mistake(
            "every path",
            _along_every_path,
            "The numbers would be right, but you follow every path from the result to the leaves. Go through "
            "`order` once, from its end: when you reach a value, its grad is complete.",
        ),
        *slips(
            backward,
            r"""
@ parent.grad += derivative * value.grad
overwrites (3)
+ parent.grad = derivative * value.grad
! A value that is used in two places gets a share from each. `=` overwrites the first share; add instead.
leaves only (2)
+ parent.grad += 0.0 if parent.parents else derivative * value.grad
! The values in between need their grads too, because they pass them on.
derivatives alone (3)
+ parent.grad += derivative
! The local derivative alone says how the next value changes, not how the result changes: multiply it by `value.grad`.
no derivatives (3)
+ parent.grad += value.grad
! Multiply the gradient by the derivative at the same position. Only a sum passes it on unchanged.
values in place of derivatives (2)
+ parent.grad += parent.data * value.grad
! Multiply the grad by the local derivative, not by the parent's number.

no start
- order[-1].grad = 1.0
! All grads stay 0, because the first one is 0 too. How fast does the result change when the result changes?

@ order[-1].grad = 1.0
the first of the list
+ order[0].grad = 1.0
! The result, whose grad starts at 1, is the last value of the given list: `order[-1]`.
every grad starts at 1
+ for value in order:
+     value.grad = 1.0
! Only the grad of the result starts at 1; all other grads start at 0.

@ for value in reversed(order):
from the leaves
+ for value in order:
! The gradient starts at the result, which is the last value of the list: go through the list backwards.
the result passes nothing on (2)
+ for value in reversed(order[:-1]):
! The result has its 1, but its parents receive nothing. Does the loop begin with the result itself, and do you add the
! value's own grad with `+=`, not its parent's grad (which is still 0)?

a dictionary of parents (2)
- for parent, derivative in zip(value.parents, value.derivatives):
+ for parent, derivative in dict(zip(value.parents, value.derivatives)).items():
! A dictionary holds each parent once: in a + a both parents are the same value, so one share is lost.
the first place of a parent (2)
- for parent, derivative in zip(value.parents, value.derivatives):
-     parent.grad += derivative * value.grad
+ for parent in value.parents:
+     parent.grad += value.derivatives[list(value.parents).index(parent)] * value.grad
! `index` finds the first parent that is equal: in a - a both parents are the same, and each position has a derivative
! of its own. Loop over parents and derivatives together, with zip.
""",
        ),
    ),
    also_right=r"""
# empties the list
- for value in reversed(order):
+ while order:
+     value = order.pop()
""",
    also_wrong=r"""
# nothing for a single value
lambda order: backward(order) if len(order) > 1 else None
# the grad of the parent
- parent.grad += derivative * value.grad
+ parent.grad += derivative * parent.grad
! the value's own grad
# with the kits backward
lambda order: order[-1].backward()
! you are writing it
""",
)


def softplus(x):
    """log(1 + e**x) of a Value, as one new Value."""
    slope = 1 / (1 + math.exp(-x.data))
    return Value(math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(slope,))


def _number_and_gradient(function, number):
    function(Value(number))  # so that an answer that keeps state shows it
    x = Value(number)
    result = function(x)
    if not isinstance(result, Value):
        return result if result is None else Told(f"{show(result)}, which is not a Value")
    if not isinstance(result.parents, tuple) or not isinstance(result.derivatives, tuple):
        return Told("a Value whose parents or derivatives are not a tuple; a tuple of length one needs a comma: (x,)")
    if any(isinstance(each, Value) for each in result.derivatives):
        return Told("a Value whose derivative is a Value, not a plain number (compute it from x.data)")
    if len(result.parents) != len(result.derivatives):
        return Told(f"a Value with {len(result.parents)} parents and {len(result.derivatives)} derivatives")
    if not all(isinstance(parent, Value) for parent in result.parents):
        return Told("a Value whose parent is a plain number, not x itself")
    if len(result.parents) == 1 and not result.parents[0].parents and result.parents[0] is not x:
        return Told("a Value whose parent is not the given x but another Value")
    if result.parents and not (len(result.parents) == 1 and result.parents[0] is x):
        return Told("a Value with parents other than x")
    if result.parents and not result.op:
        return Told("a Value without an `op`, which the pictures need as its name")
    result.backward()
    return {"data": result.data, "gradient of x": x.grad}


OWN_OPERATION = Exercise(
    id="02.5",
    title="An operation of your own",
    prompt="`Value` lacks softplus, a smooth relu: `log(1 + e**x)`. Write `softplus(x)` for a Value `x`, as one "
    "operation whose only parent is `x`. The slope of softplus is the sigmoid, `1 / (1 + e**-x)`. Return `Value(data, "
    'op="softplus", parents=..., derivatives=...)`, where `parents` and `derivatives` are tuples of length one; '
    "`math.exp` and `math.log` work on `x.data`.",
    minutes=8,
    difficulty=2,
    solution=softplus,
    hints=(
        "The data is `math.log(1 + math.exp(x.data))`. The only parent is x, so `parents` is `(x,)`.",
        "The derivative is the sigmoid of x.data: `1 / (1 + math.exp(-x.data))`. Mind the minus sign, and the "
        "comma in a tuple of length one.",
    ),
    cases=((0.0,), (2.0,), (-3.0,), *drawn(2, lambda rng: (rng.normal(),))),
    run=_number_and_gradient,
    mistakes=slips(
        softplus,
        r"""
@ return Value(math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(slope,))
no parents
+ return Value(math.log(1 + math.exp(x.data)))
! The number is right, but the result does not know x: its parents must be `(x,)`.
by position
+ return Value(math.log(1 + math.exp(x.data)), "softplus", (x,), (slope,))
! Pass the arguments after the number by name: `op=`, `parents=`, `derivatives=`.
slope of the sigmoid (2)
+ return Value(math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(slope * (1 - slope),))
! That is the slope of the sigmoid. The slope of softplus is the sigmoid itself.

@ slope = 1 / (1 + math.exp(-x.data))
mirrored (2)
+ slope = 1 / (1 + math.exp(x.data))
! That is the derivative at -x: 1 / (1 + e**-x) has a minus sign in the exponent.
slope at the result (2)
+ slope = 1 / (1 + math.exp(-math.log(1 + math.exp(x.data))))
! Take the sigmoid at the input, x.data, not at the output.
without the logarithm (2)
+ slope = math.exp(x.data)
! That is the slope of 1 + e**x. The logarithm around it divides that slope by 1 + e**x.

of several values
- slope = 1 / (1 + math.exp(-x.data))
- return Value(math.log(1 + math.exp(x.data)), op="softplus", parents=(x,), derivatives=(slope,))
+ return (1 + x.exp()).log()
! The gradient is right, but it comes from three operations that the kit already has. Write one new operation instead:
! compute its number and its slope from x.data, and make x its only parent.
""",
    ),
    explain="softplus(x) = (1 + x.exp()).log() has the same gradient, from three operations instead of one.",
    also_wrong=r"""
# one value for each number
REMEMBERED_VALUES = {}
def one_value_for_each_number(x):
    return REMEMBERED_VALUES.setdefault(x.data, softplus(x))
! whose parent is not the given x but another Value
# without a name
def without_a_name(x):
    full = softplus(x)
    return Value(full.data, parents=full.parents, derivatives=full.derivatives)
! a Value without an `op`
""",
)


class Num:
    """A number that remembers how it was made, and can go backwards."""

    def __init__(self, data, op="", parents=(), derivatives=(), label=""):
        self.data, self.grad = float(data), 0.0
        self.op, self.parents, self.derivatives, self.label = op, parents, derivatives, label

    def combine(self, op, data, other):
        """The result of self op other, which remembers both."""
        return Num(data, op, (self, other), local_derivatives(op, self.data, other.data))

    def __add__(self, other):
        other = other if isinstance(other, Num) else Num(other)
        return self.combine("+", self.data + other.data, other)

    def __radd__(self, other):
        return self + other

    def __mul__(self, other):
        other = other if isinstance(other, Num) else Num(other)
        return self.combine("*", self.data * other.data, other)

    def __rmul__(self, other):
        return self * other

    def __sub__(self, other):
        other = other if isinstance(other, Num) else Num(other)
        return self.combine("-", self.data - other.data, other)

    def tanh(self):
        t = math.tanh(self.data)
        return Num(t, "tanh", (self,), (1 - t * t,))

    def backward(self):
        order = topological_order(self)
        for num in order:
            if num.parents:  # a leaf keeps its grad; the grads of results start from 0
                num.grad = 0.0
        backward(order)


def sum_and_product(a, b):
    """a * b + a"""
    return a * b + a


def with_plain_numbers(a, b):
    """2 * a + (b + 1) * -0.5 + (3 + b)"""
    return 2 * a + (b + 1) * -0.5 + (3 + b)


def plain_numbers_first(a, b):
    """sum([a, b, a])"""
    return sum([a, b, a])


def less_plain_numbers(a, b):
    """(a - 1) * (b - 0.5)"""
    return (a - 1) * (b - 0.5)


def two_results_alike(a, b):
    """(a + b) * (a * b)"""
    return (a + b) * (a * b)


def used_at_two_depths(a, b):
    """(c - a).tanh() * c - b where c = a * b"""
    c = a * b
    c.label = "c"
    return (c - a).tanh() * c - b


def _use_engine(make, program, numbers, calls):
    """The result and some gradients after calls of backward: of the result, the leaves, and a named step."""
    leaves = [make(number, label=name) for number, name in zip(numbers, "ab")]
    result = program(*leaves)
    if type(result) is not type(leaves[0]):
        return Told(f"a {type(result).__name__}, not a {type(leaves[0]).__name__}")
    if len(result.parents) != len(result.derivatives):
        return Told(f"a result with {len(result.parents)} parents and {len(result.derivatives)} derivatives")
    if [leaf.label for leaf in leaves] != list("ab"[: len(leaves)]):
        return Told("a Num that has lost its label")
    for _ in range(calls):
        result.backward()
    named = {num.label: num.grad for num in topological_order(result) if num.label}
    return {
        "result": result.data,
        **{f"gradient of {name}": named[name] for name in sorted(named)},
        "its own": result.grad,
    }


ENGINE = Exercise(
    id="02.6",
    title="Your own engine",
    prompt="Let `Num` grow up. Write the whole class: `+`, `-` and `*` with a Num or a plain number on the right, "
    "`+` and `*` also with a plain number on the left (Python calls `__radd__` for `1 + num`), `tanh()` with the "
    "slope `1 - tanh**2`, and `backward()`. Every call of `backward()` adds to the grad of the leaves; the grads "
    "of the results in between start from 0 in each call. Use your `local_derivatives`, `topological_order` and "
    "`backward`, and add methods of your own where they help.",
    minutes=20,
    difficulty=3,
    solution=Num,
    hints=(
        "Begin with the first version of Num above, and extend it one method at a time. In `__add__`, first turn a "
        "plain number into a leaf: `other = other if isinstance(other, Num) else Num(other)`. `__radd__` can "
        "simply `return self + other`.",
        '`tanh` has one parent: `t = math.tanh(self.data)`, then `Num(t, "tanh", (self,), (1 - t * t,))`.',
        "`backward` makes an order with `topological_order(self)`, sets the grad of every Num in it that has "
        "parents to 0.0, and passes the order to your function `backward(order)`.",
    ),
    cases=(
        (sum_and_product, (2.0, -3.0), 1),
        (with_plain_numbers, (0.5, 4.0), 1),
        (less_plain_numbers, (3.0, 2.0), 1),
        (plain_numbers_first, (1.5, 1.5), 1),
        (two_results_alike, (2.0, 2.0), 1),
        (used_at_two_depths, (0.5, -2.0), 1),
        (used_at_two_depths, (0.3, 0.7), 3),
        *drawn(2, lambda rng: (used_at_two_depths, tuple(rng.normal(size=2).tolist()), 2)),
    ),
    run=_use_engine,
    mistakes=slips(
        Num,
        r"""
Nums only
- other = other if isinstance(other, Num) else Num(other)
+ pass
- other = other if isinstance(other, Num) else Num(other)
+ pass
- other = other if isinstance(other, Num) else Num(other)
+ pass
! A plain number has no `.data`. Turn it into a leaf before you compute: `Num(other)`.
minus takes Nums only
  def __sub__(self, other):
-     other = other if isinstance(other, Num) else Num(other)
! `num - 1` needs the same step as `num + 1`: turn the plain number into a leaf before you compute.
nothing on the left
- def __radd__(self, other):
+ def radd(self, other):
- def __rmul__(self, other):
+ def rmul(self, other):
! A plain number on the left does not know Num, so Python asks the Num on the right: `__radd__` for `1 + num`,
! `__rmul__` for `2 * num`.
the Num itself on the left of a plain number
- return self + other
+ return self
! `sum` begins with 0 + num, which is num. But the number on the left is not always 0, so `__radd__` has to add it.
slope of tanh (2)
- return Num(t, "tanh", (self,), (1 - t * t,))
+ return Num(t, "tanh", (self,), (1 - self.data * self.data,))
! The slope of tanh is 1 minus the square of the result, not of the input.
no reset (3)
- num.grad = 0.0
+ pass
! The first call is right and the second is wrong: the results in between still hold the gradients of the first call and
! pass them on again. Set those gradients to 0 before each backward pass.
reset after the walk (3)
  order = topological_order(self)
+ backward(order)
- backward(order)
! Set the grads of the results to 0 before the backward pass, not after it: users want these gradients too, and the
! picture shows them.
leaves are reset too (3)
- if num.parents:  # a leaf keeps its grad; the grads of results start from 0
+ if True:  # a leaf keeps its grad; the grads of results start from 0
! The second call has to add to the grads of the leaves. Only the grads of the results in between start from 0.
minus like plus
- return self.combine("-", self.data - other.data, other)
+ return self.combine("+", self.data - other.data, other)
! Your difference has the slopes of a sum. But when the right number grows, the difference gets smaller.
""",
    ),
    explain="That is micrograd, and with more operations it is the kit's `Value`.",
    also_wrong=r"""
# adds in place
  def __add__(self, other):
-     other = other if isinstance(other, Num) else Num(other)
+     if not isinstance(other, Num):
+         self.data += other
+         return self
# equal numbers are one
  order = topological_order(self)
+ results = {n.data: n for n in order if n.parents}
+ order = [n for n in order if not n.parents or n is results[n.data]]
""",
)
