"""Exercises of notebook 05: the operations."""

from __future__ import annotations

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake
from mlx_grpo_kit.tensor.rules.rule import Rule

NINF = -np.inf


def _quietly(function, *arguments):
    """Division by zero and overflows are the subject here: NumPy need not warn."""
    with np.errstate(all="ignore"):
        return function(*arguments)


def _array(numbers):
    return np.array(numbers, dtype=float)


# -- 05.1 -------------------------------------------------------------------------------------------------------------


def silu(x):
    """x * sigmoid(x) of a Tensor, as one Function."""

    class Silu(T.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            ctx.s = 1 / (1 + np.exp(-x))
            return x * ctx.s

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))

    return Silu.apply(x)


def _silu_with(backward):
    """silu with another backward: (s, x, grad) -> gradient."""

    def silu(x):
        class Silu(T.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.x, ctx.s = x, 1 / (1 + np.exp(-x))
                return x * ctx.s

            @staticmethod
            def backward(ctx, grad):
                return backward(ctx.s, ctx.x, grad)

        return Silu.apply(x)

    return silu


def _silu_of_the_kit(x):
    return x * T.sigmoid(x)


def _changing_grad(s, x, grad):
    grad *= s * (1 + x * (1 - s))
    return grad


def _silu_without_history(x):
    return T.Tensor(x.data / (1 + np.exp(-x.data)))


def _as_function(function, numbers):
    """The result and the gradient that its own Function hands back for the gradients 1, 10, 100 ..."""
    x = T.Tensor(numbers, requires_grad=True)
    out = function(x)
    if not isinstance(out, T.Tensor):
        return out if out is None else Told(f"{show(out)}, which is no Tensor. Return Silu.apply(x)")
    if out.grad_fn is None:
        return Told("a Tensor without history")
    made_by = out.grad_fn.function
    if issubclass(made_by, Rule) and made_by.compute.__module__.startswith("mlx_grpo_kit."):
        return Told(f"the result of the kit's own {made_by.__name__}")
    g = 10.0 ** np.arange(len(numbers))
    given = g.copy()
    out.backward(given)
    if not np.array_equal(given, g):
        return Told("a backward that changes its `grad`")
    return {"result": out.data.tolist(), f"gradient of x for grad = {g.tolist()}": x.grad.tolist()}


# -- 05.2 -------------------------------------------------------------------------------------------------------------


def max_backward(g, x):
    """The gradient of x [R, C], from the gradient g [R] of the largest of each row. Ties share."""
    wins = x == x.max(axis=1, keepdims=True)
    share = wins / wins.sum(axis=1, keepdims=True)
    return g[:, None] * share


def _all_to_every_tie(g, x):
    return g[:, None] * (x == x.max(axis=1, keepdims=True))


def _all_to_the_first(g, x):
    out = np.zeros_like(x)
    out[np.arange(len(x)), x.argmax(axis=1)] = g
    return out


def _g_along_the_columns(g, x):
    wins = x == x.max(axis=1, keepdims=True)
    return g * wins / wins.sum(axis=1, keepdims=True)


def _ties_of_the_whole_table(g, x):
    wins = x == x.max()
    return g[:, None] * wins / wins.sum()


def _without_keepdims(g, x):
    wins = x == x.max(axis=1)
    return g[:, None] * wins / wins.sum(axis=1)


def _winners_alone(g, x):
    wins = x == x.max(axis=1, keepdims=True)
    return wins / wins.sum(axis=1, keepdims=True)


# -- 05.3 -------------------------------------------------------------------------------------------------------------


def softmax_backward(g, p):
    """The gradient of the logits, from the gradient g of p = softmax(logits). All are [R, C]."""
    mean = (g * p).sum(axis=1, keepdims=True)
    return p * (g - mean)


def _diagonal_alone(g, p):
    return g * p * (1 - p)


def _mean_of_the_table(g, p):
    return p * (g - (g * p).sum())


def _plain_mean(g, p):
    return p * (g - g.mean(axis=1, keepdims=True))


def _mean_in_a_row(g, p):
    return p * (g - (g * p).sum(axis=1))


def _of_the_log(g, p):
    return g - p * g.sum(axis=1, keepdims=True)


def _without_p(g, p):
    return g - (g * p).sum(axis=1, keepdims=True)


# -- 05.4 -------------------------------------------------------------------------------------------------------------


def logsumexp(x):
    """log(sum(exp(x))) of each row of x [R, C]: an array [R]. Right for numbers of any size."""
    largest = x.max(axis=1)
    return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))


def _overflows(x):
    return np.log(np.exp(x).sum(axis=1))


def _not_put_back(x):
    return np.log(np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1))


def _largest_of_all(x):
    return x.max() + np.log(np.exp(x - x.max()).sum(axis=1))


def _largest_in_a_row(x):
    return x.max(axis=1) + np.log(np.exp(x - x.max(axis=1)).sum(axis=1))


def _down_the_columns(x):
    return logsumexp(x.T)


def _mean_taken_out(x):
    mean = x.mean(axis=1)
    return mean + np.log(np.exp(x - mean[:, None]).sum(axis=1))


def _a_column(x):
    return logsumexp(x)[:, None]


def _largest_alone(x):
    return x.max(axis=1)


# -- 05.5 -------------------------------------------------------------------------------------------------------------


def cross_entropy_backward(logits, targets):
    """The gradient of the mean cross-entropy: [N, C]. targets [N]: columns of the right answers."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    slope = powers / powers.sum(axis=1, keepdims=True)
    slope[np.arange(len(targets)), targets] -= 1
    return slope / len(targets)


def _not_the_mean(logits, targets):
    return cross_entropy_backward(logits, targets) * len(targets)


def _mean_over_everything(logits, targets):
    return cross_entropy_backward(logits, targets) / logits.shape[1]


def _without_the_right_answer(logits, targets):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) / len(targets)


def _turned_around(logits, targets):
    return -cross_entropy_backward(logits, targets)


def _columns_of_the_targets(logits, targets):
    """slope[:, targets] -= 1 takes 1 off in every row."""
    slope = _without_the_right_answer(logits, targets) * len(targets)
    slope[:, targets] -= 1
    return slope / len(targets)


def _only_the_right_answers(logits, targets):
    return cross_entropy_backward(logits, targets) * (np.arange(logits.shape[1]) == targets[:, None])


def _unstable_softmax(logits, targets):
    slope = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slope[np.arange(len(targets)), targets] -= 1
    return slope / len(targets)


# -- 05.6 -------------------------------------------------------------------------------------------------------------


def root_or_zero(x):
    """sqrt(x) where x > 0, else 0, of a Tensor; its gradient is 0 where x is not positive."""
    safe = T.where(x > 0, x, 1.0)
    return T.where(x > 0, T.sqrt(safe), 0.0)


def _where_outside_alone(x):
    return T.where(x > 0, T.sqrt(x), 0.0)


def _where_inside_alone(x):
    return T.sqrt(T.where(x > 0, x, 1.0))


def _a_little_more(x):
    return T.sqrt(T.maximum(x, 0.0) + 1e-8)


def _cut_off_from_the_graph(x):
    return T.Tensor(np.where(x.data > 0, np.sqrt(np.maximum(x.data, 0)), 0), requires_grad=True)


def _maximum_inside(x):
    return T.sqrt(T.maximum(x, 0.0))


def _value_and_gradient(function, numbers):
    x = T.Tensor(numbers, requires_grad=True)
    with np.errstate(all="ignore"):
        out = function(x)
        if not isinstance(out, T.Tensor):
            return {"result": out.tolist(), "gradient": None} if isinstance(out, np.ndarray) else out
        if out.requires_grad:
            out.sum().backward()
    return {"result": out.data.tolist(), "gradient": None if x.grad is None else x.grad.tolist()}


# -- 05.7 -------------------------------------------------------------------------------------------------------------


def pow_backward(g, base, exponent):
    """(gradient of base, gradient of exponent) for out = base ** exponent. Arrays of one shape."""
    out = base**exponent
    for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
    is_hole = (base == 0) & (exponent >= 0)
    for_exponent = np.where(is_hole, 0, g * out * np.log(base))
    return for_base, for_exponent


def _formulas_alone(g, base, exponent):
    return g * exponent * base ** (exponent - 1), g * base**exponent * np.log(base)


def _one_hole_left(g, base, exponent):
    return pow_backward(g, base, exponent)[0], g * base**exponent * np.log(base)


def _other_hole_left(g, base, exponent):
    return g * exponent * base ** (exponent - 1), pow_backward(g, base, exponent)[1]


def _swapped(g, base, exponent):
    return pow_backward(g, base, exponent)[::-1]


def _without_g(g, base, exponent):
    return pow_backward(np.ones_like(g), base, exponent)


def _positive_exponents_alone(g, base, exponent):
    hole = (base == 0) & (exponent > 0)
    return pow_backward(g, base, exponent)[0], np.where(hole, 0, g * base**exponent * np.log(base))


def _every_zero_base(g, base, exponent):
    return pow_backward(g, base, exponent)[0], np.where(base == 0, 0, g * base**exponent * np.log(base))


def _nan_to_num(g, base, exponent):
    return tuple(np.where(np.isnan(slope), 0, slope) for slope in _formulas_alone(g, base, exponent))


def _log_of_the_exponent(g, base, exponent):
    return pow_backward(g, base, exponent)[0], g * base**exponent * np.log(exponent)


EXERCISES = (
    Exercise(
        "05.1",
        "silu, as a Function",
        "silu is the activation inside of every Qwen3: `x * sigmoid(x)`. With `s = 1 / "
        "(1 + e**-x)` its slope is `s * (1 + x * (1 - s))`. Write `silu(x)` for a Tensor `x`: inside of it a class "
        "`Silu(T.Function)` with a `forward` and a `backward`, as in `Square` above, and at the end `return "
        "Silu.apply(x)`.",
        6,
        1,
        silu,
        hints=(
            "Both methods work with NumPy arrays: `np.exp(-x)`, not `T.exp`. `forward` returns `x * s`. What does "
            "`backward` need again later? That goes to `ctx`.",
            "`ctx.x = x` and `ctx.s = 1 / (1 + np.exp(-x))` in forward; in backward the slope is made of `ctx.s` "
            "and `ctx.x`. And which number comes in from above?",
            "`return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))`",
        ),
        cases=(([0.0, 2.0, -3.0],), ([1.0, -1.0],)),
        mistakes=(
            Mistake(
                "slope alone",
                _silu_with(lambda s, x, grad: s * (1 + x * (1 - s))),
                "That is silu's own slope. "
                "The loss lies behind it: multiply by `grad`, which says how much each element of the result "
                "matters there.",
                3,
            ),
            Mistake(
                "product rule",
                _silu_with(lambda s, x, grad: grad * s),
                "x appears twice in x * sigmoid(x), and both count: the sigmoid moves too.",
                2,
            ),
            Mistake(
                "only the sigmoid's slope",
                _silu_with(lambda s, x, grad: grad * s * (1 - s)),
                "That is the slope of the sigmoid. silu is x times as large, and x itself moves.",
                2,
            ),
            Mistake(
                "made of the kit's operations",
                _silu_of_the_kit,
                "The numbers are right, but the engine put "
                "them together out of two rules of the kit. Write a Function of your own, `class "
                "Silu(T.Function)`, with a backward.",
                1,
            ),
            Mistake(
                "grad changed in place",
                _silu_with(_changing_grad),
                "The numbers are right, but `grad *= ...` "
                "writes into an array that other operations may have been given too: each of them would find your "
                "numbers in it. Make a new one, `grad * ...`.",
                3,
            ),
            Mistake(
                "without history",
                _silu_without_history,
                "`T.Tensor(array)` starts a new life without a past. "
                "`Silu.apply(x)` computes the result and records where it came from.",
                1,
            ),
        ),
        run=lambda function, numbers: _quietly(_as_function, function, numbers),
        explain="The kit's own silu stands in rules/elementwise.py. It saves x alone and computes s a second time in "
        "backward: time against memory, a choice every rule has to make.",
    ),
    Exercise(
        "05.2",
        "The largest, and its ties",
        "`out = x.max(axis=1)` takes the largest of each row. Write "
        "`max_backward(g, x)`: the gradient of x, an array [R, C], from the gradient `g` [R] of the result. Equal "
        "largest numbers share evenly, as in `torch.amax`.",
        8,
        2,
        max_backward,
        hints=(
            "Where are the winners? `x == x.max(axis=1, keepdims=True)` is an array of True and False, of x's shape.",
            "Divide it by the number of winners of each row: `wins.sum(axis=1, keepdims=True)`. Now each row sums "
            "to 1.",
            "`g` has one number for each row; to stand beside the rows it has to be a column, `g[:, None]`.",
        ),
        cases=(
            (_array([1, 10]), _array([[1, 3, 2], [5, 4, 0]])),
            (_array([1, 10, 100]), _array([[2, 1, 2], [0, 4, 1], [3, 3, 3]])),
            (_array([6, -1]), _array([[7, 7], [-2, -1]])),
        ),
        mistakes=(
            Mistake(
                "all to every tie",
                _all_to_every_tie,
                "With two equal winners twice as much goes out as came in. "
                "Raise both by 1 and the maximum rises by 1, not by 2: they have to share.",
                2,
            ),
            Mistake(
                "all to the first",
                _all_to_the_first,
                "That is argmax's answer, the first of equals takes all: "
                "torch.max(x, 1) does it so, torch.amax and this kit share.",
                1,
            ),
            Mistake(
                "g along the columns",
                _g_along_the_columns,
                "`g` has one number for each row, and without "
                "`[:, None]` NumPy lays it along the columns. A square x does not even complain.",
                3,
            ),
            Mistake(
                "without keepdims",
                _without_keepdims,
                "Without `keepdims=True` the largest numbers, one for each row, are laid along the columns.",
                1,
            ),
            Mistake(
                "ties of the whole table",
                _ties_of_the_whole_table,
                "Each row has a winner of its own: take the maximum and the count with `axis=1, keepdims=True`.",
                1,
            ),
            Mistake("without g", _winners_alone, "That is who wins. How much each winner gets is decided by `g`.", 3),
        ),
        run=lambda function, g, x: _quietly(function, g, x),
    ),
    Exercise(
        "05.3",
        "Softmax without its Jacobian",
        "Write `softmax_backward(g, p)`: the gradient of the logits, where `p` "
        "[R, C] is softmax of them, row by row, and `g` [R, C] the gradient of `p`. No Jacobian, no loop: a line or "
        "two, from `p_i * (g_i - sum over j of g_j p_j)`.",
        6,
        2,
        softmax_backward,
        hints=(
            "In each row there is one number to compute first: the mean of g, weighted with p. It is a sum along "
            "the row, `axis=1`.",
            "Keep the axis, so that the mean can be taken off each element of its row: `(g * p).sum(axis=1, "
            "keepdims=True)`.",
            "`p * (g - mean)`",
        ),
        cases=(
            (_array([[1, 0, 0]]), _array([[0.5, 0.3, 0.2]])),
            (_array([[1, 2, 4], [0, -1, 1]]), _array([[0.25, 0.25, 0.5], [0.1, 0.7, 0.2]])),
            (_array([[2, 2], [3, -1]]), _array([[0.9, 0.1], [0.5, 0.5]])),
        ),
        mistakes=(
            Mistake(
                "the diagonal alone",
                _diagonal_alone,
                "That is the rule of the sigmoid: each logit and its own "
                "probability. In a softmax all compete; when one logit rises, every other probability falls.",
                1,
            ),
            Mistake(
                "mean of the table",
                _mean_of_the_table,
                "The sum ran over the whole table. Each row is a softmax of its own: `axis=1, keepdims=True`.",
                2,
            ),
            Mistake(
                "mean in a row",
                _mean_in_a_row,
                "The means are one for each row, and without `keepdims=True` they are laid along the columns.",
                2,
            ),
            Mistake("plain mean", _plain_mean, "The mean has to be weighted with p: sum of g * p, not g.mean().", 1),
            Mistake(
                "of the logarithm",
                _of_the_log,
                "That is the rule of log_softmax, where the 1 / p of the logarithm has cancelled the p in front.",
                3,
            ),
            Mistake(
                "without p in front",
                _without_p,
                "The distance from the mean is right. A logit moves the result in proportion to its p: multiply.",
                3,
            ),
        ),
        run=lambda function, g, p: _quietly(function, g, p),
        explain="It needs the result p and not the logits, so p is what the kit's rule saves.",
    ),
    Exercise(
        "05.4",
        "A logarithm that does not overflow",
        "Write `logsumexp(x)`: `log(sum(exp(x)))` of each row of the "
        "array `x` [R, C], as an array [R]. It has to be right for rows such as `[1000, 1000]` and `[-1000, -1000]` "
        "in the same table.",
        6,
        2,
        logsumexp,
        hints=(
            "Take the largest m of the row out first: sum of e**x = e**m times the sum of e**(x - m). What is the "
            "logarithm of that?",
            "`m + log(sum(exp(x - m)))`: no exponent is above 0, and at least one is 0, so the sum is between 1 "
            "and C. Each row has its own m.",
            "`m = x.max(axis=1)`; to take it off the rows write `m[:, None]`, to add it to the sums `m`.",
        ),
        cases=(
            (_array([[0, 0], [1, 2]]),),
            (_array([[1000, 1000, 999]]),),
            (_array([[1000, 999], [-1000, -1001]]),),
            (_array([[1000, -1000, 0], [0, 1, 2]]),),
        ),
        mistakes=(
            Mistake(
                "overflow",
                _overflows,
                "e**1000 is beyond the largest float, so it becomes inf (and e**-1000 "
                "becomes 0, whose logarithm is -inf).",
                1,
            ),
            Mistake(
                "not put back",
                _not_put_back,
                "What was taken out has to be put back: the logarithm of e**m is m. Add it.",
                2,
            ),
            Mistake(
                "one m for all rows",
                _largest_of_all,
                "The largest of the whole table is far above the second "
                "row, whose sum then rounds to 0. Each row needs its own.",
                3,
            ),
            Mistake(
                "largest in a row",
                _largest_in_a_row,
                "`x - m` lays the m, one for each row, along the columns: "
                "stand them up with `m[:, None]`, or with `keepdims=True`.",
                3,
            ),
            Mistake(
                "down the columns", _down_the_columns, "That goes down the columns. Along each row it is `axis=1`.", 3
            ),
            Mistake(
                "mean taken out",
                _mean_taken_out,
                "Taking out the mean is not enough: in a row such as [1000, "
                "-1000, 0] the largest is still 1000 above it, and overflows.",
                1,
            ),
            Mistake(
                "a column",
                _a_column,
                "The numbers are right, the shape is not: [R] was asked for, so the kept axis has to go.",
                3,
            ),
            Mistake(
                "the largest alone",
                _largest_alone,
                "Near, but the others in the row count too: two equal numbers add log(2).",
                2,
            ),
        ),
        run=_quietly,
    ),
    Exercise(
        "05.5",
        "The gradient that trains classifiers",
        "Write `cross_entropy_backward(logits, targets)`: the gradient "
        "of the **mean** over N rows of `-log(softmax(logits)[target])`, for `logits` [N, C]. `targets` [N] are "
        "integers, the column of each row's right answer. Logits may be as large as 1000.",
        8,
        2,
        cross_entropy_backward,
        hints=(
            "Two steps: the probabilities of each row (take its largest logit out first), then a 1 off at each "
            "right answer.",
            "To reach one element of each row: `slope[np.arange(len(targets)), targets] -= 1`.",
            "The loss is a mean over N rows, so a row's share is one N-th: `/ len(targets)`.",
        ),
        cases=(
            (_array([[2, 1, 0]]), np.array([0])),
            (_array([[0, 1, -1], [2, 0, 0.5]]), np.array([2, 0])),
            (_array([[1000, 0], [0, 1], [3, 3]]), np.array([1, 1, 0])),
        ),
        mistakes=(
            Mistake(
                "not the mean",
                _not_the_mean,
                "That is the gradient of the sum over the rows. The mean's is N "
                "times smaller; without it, twice the batch means twice the step.",
                3,
            ),
            Mistake(
                "mean over everything",
                _mean_over_everything,
                "The mean goes over the N rows, and not over all N times C numbers.",
                3,
            ),
            Mistake(
                "right answer forgotten",
                _without_the_right_answer,
                "Those are the probabilities. In each row the "
                "right answer is still missing: a 1 comes off there, or nothing would ever be pushed up.",
                2,
            ),
            Mistake(
                "turned around",
                _turned_around,
                "The sign is turned around: the loss falls when the right logit "
                "rises, so its gradient is negative, p - 1.",
                1,
            ),
            Mistake(
                "the right answers alone",
                _only_the_right_answers,
                "The right answers are pulled up as they "
                "should be. The other logits have a gradient too, their p: they are pushed down.",
                1,
            ),
            Mistake(
                "the columns of all targets",
                _columns_of_the_targets,
                "`[:, targets]` means these columns in *every* row. Name the rows too: `np.arange(len(targets))`.",
                2,
            ),
            Mistake(
                "overflow",
                _unstable_softmax,
                "A logit of 1000 overflows: inf / inf is nan. Take the largest of the row out before exp.",
                1,
            ),
        ),
        run=_quietly,
    ),
    Exercise(
        "05.6",
        "Two wheres",
        "Repair it: write `root_or_zero(x)` for a Tensor `x`, the root where `x > 0` and 0 "
        "elsewhere, with gradient 0 where x is not positive. Use `T.where` and `T.sqrt`, and add nothing to x.",
        5,
        2,
        root_or_zero,
        hints=(
            "The nan is born in sqrt's backward at 0, whatever happens to it later. So sqrt must never see a 0: "
            "what could it see there instead?",
            "Two wheres: one *before* the root puts a harmless number in the place of all that is not positive, "
            "one after it puts the 0 there.",
            "`safe = T.where(x > 0, x, 1.0)`, and then `T.where(x > 0, T.sqrt(safe), 0.0)`.",
        ),
        cases=(([4.0, 0.0, 1.0],), ([0.25, -1.0],)),
        mistakes=(
            Mistake(
                "the outer where alone",
                _where_outside_alone,
                "The where hands the gradient 0 to the root it did "
                "not take, and the root multiplies it by its slope, which is not finite: 0 * inf is nan.",
                1,
            ),
            Mistake(
                "the inner where alone",
                _where_inside_alone,
                "The gradient is healthy now. The result is the root "
                "of the harmless number, though: a second where has to put the 0 there.",
                2,
            ),
            Mistake(
                "a little more",
                _a_little_more,
                "Adding something inside the root moves every result: the root of "
                "0 + 1e-8 is 1e-4. (And it is a habit of many programs.)",
                2,
            ),
            Mistake(
                "maximum inside",
                _maximum_inside,
                "The root still sees a 0, where its slope is infinite, and "
                "maximum shares a tie: half of infinity arrives.",
                1,
            ),
            Mistake(
                "cut off",
                _cut_off_from_the_graph,
                "The result does not know that it came from x (a NumPy array, "
                "a new Tensor and `detach` all forget), so x gets no gradient at all. Stay with T.where and "
                "T.sqrt.",
                2,
            ),
        ),
        run=_value_and_gradient,
        explain="T.safe_sqrt does it in one rule. And look again at where's own rule: np.where(condition, g, 0) is a "
        "filter, so the inner where stops a nan where a multiplication by 0 would not.",
    ),
    Exercise(
        "05.7",
        "A power, with both gradients",
        "`out = base ** exponent`, arrays of one shape. Write "
        "`pow_backward(g, base, exponent)`: the gradients of both, as a tuple. By formula they are `exponent * "
        "base**(exponent - 1)` and `out * log(base)`, each times g. Two holes need a decision, the same as torch's: "
        "the gradient of the base is 0 where the exponent is 0, and the gradient of the exponent is 0 where the base "
        "is 0 and the exponent is not negative.",
        10,
        3,
        pow_backward,
        hints=(
            "Write the two formulas first, with `np.log`. Then look at base 0: 0 * 0**-1 is 0 * inf, and 0 * log(0) "
            "is 0 * -inf. Both are nan.",
            "`np.where(condition, 0, formula)` fills a hole. In NumPy that is enough: nobody differentiates it "
            "again. The first condition is `exponent == 0`.",
            "The second is `(base == 0) & (exponent >= 0)`. Leave all other infs and nans as they are: 0 ** -1 "
            "really is infinitely steep.",
        ),
        cases=(
            (_array([1, 10, 100]), _array([2, 3, 0.5]), _array([3, -1, 0.5])),
            (_array([1, 1, 1]), _array([0, 0, 0]), _array([0, 1, 2])),
            (_array([1]), _array([0]), _array([-1])),
            (_array([1, 2]), _array([-2, -3]), _array([3, 0])),
        ),
        mistakes=(
            Mistake(
                "formulas alone",
                _formulas_alone,
                "The formulas are right and the holes are open: at base 0 they multiply 0 by an infinity.",
                2,
            ),
            Mistake(
                "one hole left",
                _one_hole_left,
                "The first hole is closed. The gradient of the exponent has one "
                "too: 0 ** b times log(0), for b of 0 or more.",
                3,
            ),
            Mistake(
                "the other hole left",
                _other_hole_left,
                "The gradient of the exponent is right. That of the base "
                "has a hole where the exponent is 0: 0 * 0 ** -1 is 0 * inf.",
                2,
            ),
            Mistake(
                "too small a patch",
                _positive_exponents_alone,
                "0 ** 0 belongs to the second hole too: the exponent may be 0 *or* more, `>=`.",
                3,
            ),
            Mistake(
                "swapped",
                _swapped,
                "The two are swapped: first the gradient of the base, then that of the exponent.",
                1,
            ),
            Mistake(
                "g forgotten",
                _without_g,
                "Those are the slopes of the power itself. Each has to be multiplied by g.",
                1,
            ),
            Mistake(
                "too large a patch",
                _every_zero_base,
                "The second patch is too large: with a negative exponent "
                "0 ** -1 is inf, and its slopes are infinite, not 0.",
                3,
            ),
            Mistake(
                "every nan to 0",
                _nan_to_num,
                "Turning every nan into 0 hides the honest ones: the exponent of a "
                "negative base has no slope, and the nan says so.",
                2,
            ),
            Mistake(
                "logarithm of the exponent",
                _log_of_the_exponent,
                "a ** b is e ** (b * log(a)): the logarithm is that of the base.",
                1,
            ),
        ),
        run=_quietly,
    ),
)
