"""Exercises of notebook 01: derivatives."""

from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips


def square(x):
    """x * x"""
    return x * x


def cube(x):
    """x**3"""
    return x**3


def product_plus(a, b, c):
    """a * b + c"""
    return a * b + c


def weighted(a, b):
    """3 * a * a + a * b"""
    return 3 * a * a + a * b


def three(x):
    """3 * x"""
    return 3 * x


def two_x(x):
    """2 * x"""
    return 2 * x


def three_x_squared(x):
    """3 * x * x"""
    return 3 * x * x


def always_three(x):
    """3"""
    return 3.0


def one_more(x):
    """x + 1"""
    return x + 1


def always_one(x):
    """1"""
    return 1.0


def _point_and_step(rng):
    return cube, rng.normal(), rng.normal()


def forward_slope(f, x, h):
    """The rise of f from x to x + h, per unit of distance."""
    return (f(x + h) - f(x)) / h


def central_slope(f, x, h):
    """The slope of f between x - h and x + h."""
    return (f(x + h) - f(x - h)) / (2 * h)


TWO_POINTS = Exercise(
    id="01.1",
    title="The slope between two points",
    prompt="Write `forward_slope(f, x, h)`: how much `f` rises between `x` and `x + h`, per unit of distance. For "
    "`f(x) = x * x` at `x = 3` with `h = 0.1` the result is 6.1. A negative `h` steps to the left: with `h = -0.1` "
    "the result is 5.9.",
    minutes=3,
    difficulty=1,
    solution=forward_slope,
    hints=(
        "A slope is a rise divided by a distance. What is the rise of f between x and x + h?",
        "The rise is `f(x + h) - f(x)`. The distance is `h`.",
        "`return (f(x + h) - f(x)) / h`",
    ),
    cases=(
        (square, 3.0, 0.1),
        (square, 3.0, 0.001),
        (cube, 3.0, 0.1),
        (cube, -1.0, 0.5),
        (three, 2.0, -0.25),
        (square, 1.0, 1e-17),
        (square, -0.5, 0.5),
        *drawn(2, _point_and_step),
    ),
    mistakes=slips(
        forward_slope,
        r"""
@ return (f(x + h) - f(x)) / h
rise only (2)
+ return (f(x + h) - f(x))
! That is the rise itself. Divide it by the distance h to get the slope, which does not shrink when h does.
divided by x (2)
+ return (f(x + h) - f(x)) / x
! The distance from x to x + h is h, not x.
brackets (3)
+ return f(x + h) - f(x) / h
! Division binds tighter than minus, so only f(x) is divided by h. Put brackets around the difference.
backwards (2)
+ return (f(x) - f(x + h)) / h
! The sign is the wrong way round: a function that rises to the right has a positive slope, so the later point comes
! first in the difference.
size only (2)
+ return abs((f(x + h) - f(x)) / h)
! A function that falls to the right has a negative slope, so do not take abs.
distance without its sign (2)
+ return (f(x + h) - f(x)) / abs(h)
! With a negative h, both the rise and the distance change sign, so the slope keeps its sign. Divide by h itself, not by
! abs(h).
distance with its rounding error (2)
+ return (f(x + h) - f(x)) / ((x + h) - x)
! (x + h) - x contains the rounding error of x + h. If h is tiny compared with x it is 0, and you divide by 0. Divide by
! h.
the left point (2)
+ return (f(x) - f(x - h)) / h
! That is the slope between x - h and x. The second point is x + h.
central (2)
+ return (f(x + h) - f(x - h)) / (2 * h)
! That is the slope between x - h and x + h. It is more accurate, and it is the next exercise; here, use only x and x +
! h.
""",
    ),
    also_wrong=r"""
# remembers the value at a point
remembered = {}
def remembers_by_the_point(f, x, h):
    remembered.setdefault(x, f(x))
    return (f(x + h) - remembered[x]) / h
""",
)


BOTH_SIDES = Exercise(
    id="01.2",
    title="Look to both sides",
    prompt="Write `central_slope(f, x, h)`: the slope between `x - h` and `x + h`. For a parabola it is exact: "
    "`central_slope(square, 3, 0.1)` is 6.",
    minutes=3,
    difficulty=1,
    solution=central_slope,
    hints=(
        "Which two points do you compare now, and how far are they apart?",
        "The rise is `f(x + h) - f(x - h)`. The distance from x - h to x + h is `2 * h`.",
        "`return (f(x + h) - f(x - h)) / (2 * h)`",
    ),
    cases=(
        (square, 3.0, 0.1),
        (cube, 2.0, 0.5),
        (cube, -1.0, 0.01),
        (three, 2.0, -0.25),
        (three, 2.0, 1e-6),
        (square, 1.0, 1e-17),
        (square, -0.5, 0.5),
        *drawn(2, _point_and_step),
    ),
    mistakes=slips(
        central_slope,
        r"""
@ return (f(x + h) - f(x - h)) / (2 * h)
a guard against 0 (2)
+ return (f(x + h) - f(x - h)) / (2 * h + 1e-8)
! There is no need to guard against h = 0 here, and the added 1e-8 makes the slope wrong when h is small too. Divide by
! 2 * h.
size only (2)
+ return abs((f(x + h) - f(x - h)) / (2 * h))
! Where f falls to the right, its slope is negative. Keep the sign; do not take abs.
backwards (2)
+ return (f(x - h) - f(x + h)) / (2 * h)
! The sign is the wrong way round: the point to the right comes first in the difference.
size of the rise (2)
+ return abs(f(x + h) - f(x - h)) / (2 * h)
! A fall is a negative rise, so keep the sign of the difference; do not take abs.
half a step (2)
+ return (f(x + h / 2) - f(x - h / 2)) / h
! That is the slope between x - h / 2 and x + h / 2. Here each point is a whole h away from x.
over h (2)
+ return (f(x + h) - f(x - h)) / h
! Every slope comes out twice as large as it is: the points are 2 * h apart.
times h (3)
+ return (f(x + h) - f(x - h)) / 2 * h
! `/ 2 * h` divides by 2 and then multiplies by h. Put brackets around `2 * h`.
forward
+ return (f(x + h) - f(x)) / h
! That compares x + h with x itself. The left point is x - h.
backward
+ return (f(x) - f(x - h)) / h
! That compares x with x - h. The right point is x + h.
distance without its sign (2)
+ return (f(x + h) - f(x - h)) / abs(2 * h)
! With a negative h the rise changes sign, so the distance must change sign too; do not take abs.
distance with its rounding error (2)
+ return (f(x + h) - f(x - h)) / ((x + h) - (x - h))
! (x + h) - (x - h) is 0 if h is tiny compared with x, and then you divide by 0. Divide by 2 * h.
""",
    ),
    explain="The errors of the two sides cancel: if you halve h, the error falls to a quarter, not to a half.",
    also_right=r"""
# the mean of both sides
lambda f, x, h: 0.5 * ((f(x + h) - f(x)) / h + (f(x) - f(x - h)) / h)
""",
)


BY_EYE = Exercise(
    id="01.3",
    title="Three slopes by eye",
    prompt="`L = a * b + c` at `a = 2`, `b = -3`, `c = 10`. By how much does `L` change per unit of `a`, per unit "
    "of `b`, and per unit of `c`? Put the three numbers in a tuple `(for a, for b, for c)`. You need no code: "
    "think, or nudge each number by 0.01 with pencil and paper.",
    minutes=3,
    difficulty=1,
    solution=(-3.0, 2.0, 1.0),
    hints=(
        "Let a grow from 2 to 3 and leave b and c alone. What was L before, and what is it after?",
        "L goes from 4 to 1: the slope for a is -3, which is b. Look at b in the same way; c is the easy one.",
    ),
    mistakes=slips(
        (-3.0, 2.0, 1.0),
        r"""
the numbers themselves
+ (2.0, -3.0, 10.0)
! Those are the values of a, b and c. The exercise asks how fast L changes when each of them grows.
swapped (2)
+ (2.0, -3.0, 1.0)
! Almost: when a grows by 1, a * b grows by b. The first two are swapped.
c by its size (2)
+ (-3.0, 2.0, 10.0)
! The first two are right. When c grows by 1, by how much does a * b + c grow? The size of c does not matter.
sign (2)
+ (3.0, 2.0, 1.0)
! When a grows, a * b becomes more negative, because b is -3: that slope has a minus sign.
c is constant (2)
+ (-3.0, 2.0, 0.0)
! c is one of the knobs here: when it grows by 1, so does L.
results
+ (1.0, 6.0, 5.0)
! Those are the new values of L. By how much did L change from 4?
for a nudge
+ (-0.03, 0.02, 0.01)
! That is how far L moves when each number moves by 0.01. Per unit, L moves a hundred times as far.
results of a nudge
+ (3.97, 4.02, 4.01)
! Those are the new values of L. By how much did it change from 4, and how much is that per unit?
""",
    ),
    explain="In a product, the slope for one factor is the other factor; in a sum, each slope is 1. Chapter 02 "
    "builds on these two rules.",
    also_right=r"""
import numpy as np

# an array
np.array([-3.0, 2.0, 1.0])
""",
)


def partial(f, args, i, h):
    """The slope of f when only args[i] moves; the list args is not changed."""
    ahead, behind = list(args), list(args)
    ahead[i] += h
    behind[i] -= h
    return (f(*ahead) - f(*behind)) / (2 * h)


ONE_OF_SEVERAL = Exercise(
    id="01.4",
    title="One number of several",
    prompt="Write `partial(f, args, i, h)`: the slope of `f(*args)` when only `args[i]` moves, by a central "
    "difference as in 01.2. `args` is a list, and it must be unchanged afterwards.",
    minutes=6,
    difficulty=2,
    solution=partial,
    hints=(
        "Make two copies of the list with `list(args)`, and change one number in each.",
        "`ahead = list(args)`, then `ahead[i] += h`; do the same with `behind` and `-= h`. `f(*ahead)` calls f with "
        "the numbers of the list as arguments.",
        "`return (f(*ahead) - f(*behind)) / (2 * h)`",
    ),
    cases=(
        (product_plus, [2.0, -3.0, 10.0], 0, 0.01),
        (product_plus, [2.0, -3.0, 10.0], 1, 0.01),
        (product_plus, [2, -3, 10], 2, 0.25),
        (weighted, [1.5, 4.0], 0, 0.25),
        (weighted, [4.0, 4.0], 1, 0.25),
        (cube, [-2.0], 0, -0.5),
        *drawn(3, lambda rng: (product_plus, rng.normal(size=3).tolist(), int(rng.integers(3)), rng.normal())),
    ),
    mistakes=slips(
        partial,
        r'''
@ ahead[i] += h
@ behind[i] -= h
all move
+ ahead = [a + h for a in args]
+ behind = [a - h for a in args]
! All the numbers move at once, so you get the sum of their slopes. Only args[i] may move.
the first equal number
+ ahead[args.index(args[i])] += h
+ behind[args.index(args[i])] -= h
! `index` finds the first number equal to args[i], which may be at another position. Use the position i.
numbers that look alike
+ ahead = [a + h if a == args[i] else a for a in args]
+ behind = [a - h if a == args[i] else a for a in args]
! If two of the numbers are equal, both have moved. Choose by the position in the list, not by the value.

@ ahead, behind = list(args), list(args)
one list
+ ahead, behind = args, args
! The slope is always 0, because `ahead = args` makes no copy: both names refer to the same list. `list(args)` makes a
! copy.
one copy
+ ahead = behind = list(args)
! The slope is always 0: `ahead` and `behind` are two names for the same copy. Each needs a copy of its own.

@ return (f(*ahead) - f(*behind)) / (2 * h)
over h (3)
+ return (f(*ahead) - f(*behind)) / h
! Every slope comes out twice as large as it is: the points are 2 * h apart.
no star (2)
+ return (f(ahead) - f(behind)) / (2 * h)
! f takes several numbers, not a list of them: the star in `f(*ahead)` passes them one by one.

forward (2)
- behind[i] -= h
- return (f(*ahead) - f(*behind)) / (2 * h)
+ return (f(*ahead) - f(*behind)) / h
! That looks to one side only. Compare args[i] + h with args[i] - h.
whole numbers
- def partial(f, args, i, h):
-     """The slope of f when only args[i] moves; the list args is not changed."""
-     ahead, behind = list(args), list(args)
+ import numpy as np
+
+ def partial(f, args, i, h):
+     """The slope of f when only args[i] moves; the list args is not changed."""
+     ahead, behind = np.array(args), np.array(args)
! A NumPy array of integers stays an array of integers, so you cannot add a fraction h to it. Use `list(args)` or
! `np.array(args, dtype=float)`.

@ ahead, behind = list(args), list(args)
@ ahead[i] += h
@ behind[i] -= h
@ return (f(*ahead) - f(*behind)) / (2 * h)
changes the list
+ before = f(*args)
+ args[i] += h
+ return (f(*args) - before) / h
! That looks to one side only, and it changes the caller's list: `args[i] += h` writes into it. Work on copies.
leaves the list moved
+ args[i] += h
+ ahead = f(*args)
+ args[i] -= 2 * h
+ return (ahead - f(*args)) / (2 * h)
! `args[i] += h` writes into the caller's list, and the list stays changed. Work on copies.
moves it back
+ args[i] += h
+ ahead = f(*args)
+ args[i] -= 2 * h
+ behind = f(*args)
+ args[i] += h
+ return (ahead - behind) / (2 * h)
! Moving back does not always restore the number: x + h - 2 * h + h may differ from x by a rounding error. Work on
! copies.
''',
    ),
    also_right=r"""
# by another exercise
lambda f, args, i, h: central_slope(lambda x: f(*args[:i], x, *args[i + 1 :]), args[i], h)
""",
)


def chain_slope(df, g, dg, x):
    """The slope of f(g(x)) at x, from the slope functions df and dg and from g."""
    return df(g(x)) * dg(x)


CHAIN = Exercise(
    id="01.5",
    title="The chain rule",
    prompt="`f` is applied to the result of `g`. You are given `g`, its slope function `dg`, and `df`, the slope "
    "function of `f`. Write `chain_slope(df, g, dg, x)`: the slope of `f(g(x))` at `x`. With `g(x) = 3 * x` and "
    "`f(u) = u * u` at `x = 2` it is 36.",
    minutes=5,
    difficulty=2,
    solution=chain_slope,
    hints=(
        "If x moves a little, by how much does g(x) move? And if g(x) moves that much, how much does f move?",
        "The two factors multiply: g scales the movement by dg(x), and f scales the result by its own slope. At "
        "which point is f's slope taken: at x, or at the input that f receives?",
        "`return df(g(x)) * dg(x)`",
    ),
    cases=(
        (two_x, three, always_three, 2.0),
        (three_x_squared, square, two_x, 1.5),
        (two_x, cube, three_x_squared, 1.5),
        (two_x, cube, three_x_squared, -0.5),
        (two_x, one_more, always_one, 0.0),
        (two_x, square, two_x, 1e9),
        *drawn(2, lambda rng: (two_x, cube, three_x_squared, rng.normal())),
    ),
    mistakes=slips(
        chain_slope,
        r"""
@ return df(g(x)) * dg(x)
df at x (2)
+ return df(x) * dg(x)
! f never receives x. It receives g(x), so take its slope there.
outer only
+ return df(g(x))
! That is the slope of f for a movement of g(x). Multiply it by dg(x), which says how far g(x) moves when x moves.
sum
+ return df(g(x)) + dg(x)
! The slopes do not add. If g triples a movement and f doubles its input, the movement becomes six times as large.
g in place of its slope (2)
+ return df(g(x)) * g(x)
! g(x) is the value of g. How far that value moves when x moves is dg(x).
measured (2)
+ return df(g(x)) * (g(x + 1e-6) - g(x - 1e-6)) / 2e-6
! A measured slope of g is wrong when the step is tiny compared with a large x. Use dg, which is exact.
dg at g(x) (2)
+ return df(g(x)) * dg(g(x))
! g receives x itself, so take its slope at x. Only f receives g(x).
df of dg (2)
+ return df(dg(x))
! f receives g(x), not the slope of g. Take df at g(x), then multiply by dg(x).
""",
    ),
    explain="Backpropagation does nothing else, one operation after another.",
    also_wrong=r"""
# remembers the inner point
remembered = {}
def remembers_the_inner_point(df, g, dg, x):
    return df(remembered.setdefault(("g", x), g(x))) * dg(x)
# 0 where x is 0
lambda df, g, dg, x: df(g(x)) * dg(x) if x else 0.0
""",
)
