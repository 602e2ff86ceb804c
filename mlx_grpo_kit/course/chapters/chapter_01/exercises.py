"""Exercises of notebook 01: derivatives."""

from mlx_grpo_kit.course.exercise import Exercise, Mistake


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


# -- 01.1 -------------------------------------------------------------------------------------------------------------


def forward_slope(f, x, h):
    """How much f rises on the way from x to x + h, per unit of way."""
    return (f(x + h) - f(x)) / h


def _rise_only(f, x, h):
    return f(x + h) - f(x)


def _per_x(f, x, h):
    return (f(x + h) - f(x)) / x


def _missing_brackets(f, x, h):
    return f(x + h) - f(x) / h


def _backwards(f, x, h):
    return (f(x) - f(x + h)) / h


# -- 01.2 -------------------------------------------------------------------------------------------------------------


def central_slope(f, x, h):
    """The slope of f between x - h and x + h."""
    return (f(x + h) - f(x - h)) / (2 * h)


def _central_over_h(f, x, h):
    return (f(x + h) - f(x - h)) / h


def _times_h(f, x, h):
    return (f(x + h) - f(x - h)) / 2 * h


def _backward_slope(f, x, h):
    return (f(x) - f(x - h)) / h


# -- 01.4 -------------------------------------------------------------------------------------------------------------


def partial(f, args, i, h):
    """The slope of f when only args[i] moves; args is a list and stays as it is."""
    ahead, behind = list(args), list(args)
    ahead[i] += h
    behind[i] -= h
    return (f(*ahead) - f(*behind)) / (2 * h)


def _all_move(f, args, i, h):
    return (f(*[a + h for a in args]) - f(*[a - h for a in args])) / (2 * h)


def _one_list(f, args, i, h):
    ahead, behind = args, args
    ahead[i] += h
    behind[i] -= h
    return (f(*ahead) - f(*behind)) / (2 * h)


def _moves_the_list(f, args, i, h):
    before = f(*args)
    args[i] += h
    return (f(*args) - before) / h


def _moves_and_returns(f, args, i, h):
    args[i] += h
    ahead = f(*args)
    args[i] -= 2 * h
    return (ahead - f(*args)) / (2 * h)


def _forward_partial(f, args, i, h):
    ahead = list(args)
    ahead[i] += h
    return (f(*ahead) - f(*args)) / h


def _slope_and_list(function, f, args, i, h):
    """The slope, and the list afterwards: whoever asks for a slope does not expect their numbers to change."""
    slope = function(f, args, i, h)
    return slope if slope is None else (slope, args)


# -- 01.5 -------------------------------------------------------------------------------------------------------------


def chain_slope(df, g, dg, x):
    """The slope of f(g(x)) at x, from the slope functions df and dg and from g."""
    return df(g(x)) * dg(x)


def _df_at_x(df, g, dg, x):
    return df(x) * dg(x)


def _outer_only(df, g, dg, x):
    return df(g(x))


def _sum_of_slopes(df, g, dg, x):
    return df(g(x)) + dg(x)


EXERCISES = (
    Exercise(
        "01.1",
        "The slope between two points",
        "Write `forward_slope(f, x, h)`: how much `f` rises between `x` and "
        "`x + h`, for each unit of way. For `f(x) = x * x` at `x = 3` with `h = 0.1` that is 6.1.",
        3,
        1,
        forward_slope,
        hints=(
            "A slope is a rise divided by a way. What is the rise of f between x and x + h?",
            "The rise is `f(x + h) - f(x)`. The way is `h`.",
            "`return (f(x + h) - f(x)) / h`",
        ),
        cases=((square, 3.0, 0.1), (square, 3.0, 0.001), (cube, -1.0, 0.5), (three, 2.0, 0.25)),
        mistakes=(
            Mistake(
                "rise only",
                _rise_only,
                "That is the rise itself. Divided by the way h it becomes a slope, which does not shrink when h does.",
                2,
            ),
            Mistake("divided by x", _per_x, "The way from x to x + h is h long, not x.", 2),
            Mistake(
                "brackets",
                _missing_brackets,
                "Division binds tighter than minus, so only f(x) is divided by h. Put brackets around the difference.",
                3,
            ),
            Mistake(
                "backwards",
                _backwards,
                "The sign is the wrong way round: a function that rises to the right has "
                "a positive slope, so the later point comes first in the difference.",
                2,
            ),
            Mistake(
                "central",
                central_slope,
                "That looks to both sides of x. It is better, and the next exercise; here only x and x + h count.",
                2,
            ),
        ),
    ),
    Exercise(
        "01.2",
        "Look to both sides",
        "Write `central_slope(f, x, h)`: the slope between `x - h` and `x + h`. For a "
        "parabola it is exact: `central_slope(square, 3, 0.1)` is 6.",
        3,
        1,
        central_slope,
        hints=(
            "Which two points do you compare now, and how far are they apart?",
            "The rise is `f(x + h) - f(x - h)`. From x - h to x + h the way is `2 * h`.",
            "`return (f(x + h) - f(x - h)) / (2 * h)`",
        ),
        cases=((square, 3.0, 0.1), (cube, 2.0, 0.5), (cube, -1.0, 0.01), (three, 2.0, 0.25)),
        mistakes=(
            Mistake(
                "over h",
                _central_over_h,
                "Every slope comes out twice as large as it is: the two points are 2 * h apart.",
                2,
            ),
            Mistake(
                "times h", _times_h, "`/ 2 * h` divides by 2 and then multiplies by h. Put brackets around `2 * h`.", 3
            ),
            Mistake("forward", forward_slope, "That compares x + h with x itself. The left point is x - h.", 1),
            Mistake("backward", _backward_slope, "That compares x with x - h. The right point is x + h.", 1),
        ),
        explain="The errors of the two sides cancel: halve h and the error becomes a quarter, not a half.",
    ),
    Exercise(
        "01.3",
        "Three slopes by eye",
        "`L = a * b + c` at `a = 2`, `b = -3`, `c = 10`. By how much does `L` change "
        "for each unit that `a` grows, for each unit of `b`, and for each unit of `c`? Put the three numbers in a "
        "tuple `(for a, for b, for c)`. No code needed: think, or nudge each number by 0.01 with a pencil.",
        3,
        1,
        (-3.0, 2.0, 1.0),
        hints=(
            "Let a grow from 2 to 3 and leave the others alone. What was L before, and what is it after?",
            "L goes from 4 to 1: the slope for a is -3, which is b. Look at b in the same way; c is the easy one.",
        ),
        mistakes=(
            Mistake(
                "the numbers themselves",
                (2.0, -3.0, 10.0),
                "Those are the numbers. What is asked for is how fast L changes when each of them grows.",
                1,
            ),
            Mistake(
                "swapped",
                (2.0, -3.0, 1.0),
                "Almost: when a grows by 1, a * b grows by b. The first two are swapped.",
                2,
            ),
            Mistake(
                "c by its size",
                (-3.0, 2.0, 10.0),
                "The first two are right. When c grows by 1, by how much does "
                "a * b + c grow? The size of c does not matter.",
                2,
            ),
            Mistake(
                "sign",
                (3.0, 2.0, 1.0),
                "When a grows, a * b becomes more negative, because b is -3: that slope has a minus sign.",
                2,
            ),
        ),
        explain="In a product the slope for one factor is the other factor; in a sum each slope is 1. Chapter 02 is "
        "built on these two.",
    ),
    Exercise(
        "01.4",
        "One number of several",
        "Write `partial(f, args, i, h)`: the slope of `f(*args)` when only `args[i]` "
        "moves, looking to both sides as in 01.2. `args` is a list, and it has to be the same list of numbers "
        "afterwards.",
        6,
        2,
        partial,
        hints=(
            "Make two copies of the list, `list(args)`; in each move one number.",
            "`ahead = list(args)`, then `ahead[i] += h`; the same with `behind` and `-= h`. `f(*ahead)` calls f "
            "with the numbers of the list as arguments.",
            "`return (f(*ahead) - f(*behind)) / (2 * h)`",
        ),
        cases=(
            (product_plus, [2.0, -3.0, 10.0], 0, 0.01),
            (product_plus, [2.0, -3.0, 10.0], 1, 0.01),
            (product_plus, [2.0, -3.0, 10.0], 2, 0.5),
            (weighted, [1.5, 4.0], 0, 0.25),
        ),
        mistakes=(
            Mistake(
                "all move",
                _all_move,
                "All the numbers move at once, so their slopes come out added up. Only args[i] may move.",
                1,
            ),
            Mistake(
                "one list",
                _one_list,
                "The slope is always 0, because `ahead = args` makes no copy: both names "
                "are the same list. `list(args)` is a copy.",
                1,
            ),
            Mistake(
                "changes the list",
                _moves_the_list,
                "And the list has changed: `args[i] += h` writes into the caller's list. Work on copies.",
                1,
            ),
            Mistake(
                "leaves the list moved",
                _moves_and_returns,
                "The slope is right, but the list has changed: "
                "`args[i] += h` writes into the caller's list. Work on copies.",
                1,
            ),
            Mistake("forward", _forward_partial, "That looks ahead only. Compare args[i] + h with args[i] - h.", 2),
        ),
        run=_slope_and_list,
    ),
    Exercise(
        "01.5",
        "The chain rule",
        "`f` is applied to the result of `g`. You know `g`, its slope function `dg`, and the "
        "slope function `df` of `f`. Write `chain_slope(df, g, dg, x)`: the slope of `f(g(x))` at `x`. With "
        "`g(x) = 3 * x` and `f(u) = u * u` at `x = 2` it is 36.",
        5,
        2,
        chain_slope,
        hints=(
            "If x moves a little, by how much does g(x) move? And if g(x) moves that much, how much does f move?",
            "The two factors multiply: g passes on dg(x) of the movement, f passes on its own slope of that. At "
            "which point is f's slope taken: at x, or at what f gets to see?",
            "`return df(g(x)) * dg(x)`",
        ),
        cases=(
            (two_x, three, always_three, 2.0),
            (three_x_squared, square, two_x, 1.5),
            (two_x, cube, three_x_squared, -0.5),
        ),
        mistakes=(
            Mistake("df at x", _df_at_x, "f never sees x: it sees g(x), so its slope has to be taken there.", 2),
            Mistake(
                "outer only",
                _outer_only,
                "That is f's slope in terms of g(x). How far g(x) moves when x does, dg(x), is still missing.",
                1,
            ),
            Mistake(
                "sum",
                _sum_of_slopes,
                "The slopes do not add: if g triples a movement and f doubles what it gets, "
                "the movement grows six times.",
                1,
            ),
        ),
        explain="That is all backpropagation does, one operation after the other.",
    ),
)
