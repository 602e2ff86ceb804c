"""Exercises of notebook 05: the operations."""

from __future__ import annotations

import tracemalloc

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import Slip, slips
from mlx_grpo_kit.tensor.rules.rule import Rule


def _quietly(function, *arguments):
    """Division by zero and overflows are the subject here: NumPy need not warn."""
    with np.errstate(all="ignore"):
        return function(*arguments)


def _array(numbers):
    return np.array(numbers, dtype=float)


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


def _as_function(function, numbers):
    """The result and the gradient that its own Function hands back for the gradients 1, 10, 100 ..."""
    x = T.Tensor(numbers, requires_grad=True)
    out = function(x)
    before = x.data.copy()
    function(T.Tensor(1 - x.data, requires_grad=True))  # another one, before the first goes backward
    if not isinstance(out, T.Tensor):
        return out if out is None else Told(f"{show(out)}, which is no Tensor. Return Silu.apply(x)")
    if out.grad_fn is None:
        return Told("a Tensor without history")
    made_by = out.grad_fn.function
    if issubclass(made_by, Rule) and made_by.compute.__module__.startswith("mlx_grpo_kit."):
        return Told(f"the result of the kit's own {made_by.__name__}")
    g = (10.0 ** np.arange(x.data.size)).reshape(x.shape)
    given = g.copy()
    out.backward(given)
    for name, now, then in (("grad", given, g), ("x", x.data, before)):
        if not np.array_equal(now, then):
            return Told(f"a backward that changes its `{name}`")
    return {"result": out.data.tolist(), f"gradient of x for grad = {g.tolist()}": x.grad.tolist()}


SILU = Exercise(
    "05.1",
    "silu, as a Function",
    "silu is the activation inside of every Qwen3: `x * sigmoid(x)`. With `s = 1 / "
    "(1 + e**-x)` its slope is `s * (1 + x * (1 - s))`. Write `silu(x)` for a Tensor `x`: inside of it a class "
    "`Silu(T.Function)` with a `forward` and a `backward`, as in `Square` above, and at the end `return "
    "Silu.apply(x)`.",
    minutes=6,
    difficulty=1,
    solution=silu,
    hints=(
        "Both methods work with NumPy arrays: `np.exp(-x)`, not `T.exp`. `forward` returns `x * s`. What does "
        "`backward` need again later? That goes to `ctx`.",
        "`ctx.x = x` and `ctx.s = 1 / (1 + np.exp(-x))` in forward; in backward the slope is made of `ctx.s` "
        "and `ctx.x`. And which number comes in from above?",
        "`return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))`",
    ),
    cases=(
        ([0.0, 2.0, -3.0],),
        ([1.0, -1.0],),
        *drawn(2, lambda rng: ((3 * rng.normal(size=(2, 3))).tolist(),)),
    ),
    mistakes=(
        *slips(
            silu,
            Slip(
                "slope alone",
                "- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ return ctx.s * (1 + ctx.x * (1 - ctx.s))",
                message=(
                    "That is silu's own slope. The loss lies behind it: multiply by `grad`, which says how much each "
                    "element of the result matters there."
                ),
                hint=3,
            ),
            Slip(
                "product rule",
                "- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ return grad * ctx.s",
                message="x appears twice in x * sigmoid(x), and both count: the sigmoid moves too.",
                hint=2,
            ),
            Slip(
                "only the sigmoid's slope",
                "- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ return grad * ctx.s * (1 - ctx.s)",
                message="That is the slope of the sigmoid. silu is x times as large, and x itself moves.",
                hint=2,
            ),
            Slip(
                "made of the kit's operations",
                "- return Silu.apply(x)",
                "+ return x * T.sigmoid(x)",
                message=(
                    "The numbers are right, but the engine put them together out of two rules of the kit. Write a "
                    "Function of your own, `class Silu(T.Function)`, with a backward."
                ),
            ),
            Slip(
                "grad changed in place",
                "- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ grad *= ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ return grad",
                message=(
                    "The numbers are right, but `grad *= ...` writes into an array that other operations may have been"
                    " given too: each of them would find your numbers in it. Make a new one, `grad * ...`."
                ),
                hint=3,
            ),
            Slip(
                "x changed in backward",
                "- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ ctx.x *= 1 - ctx.s",
                "+ return grad * ctx.s * (1 + ctx.x)",
                message=(
                    "`ctx.x` is not a copy: it is the array inside of x, which belongs to somebody else. Make a new "
                    "array instead of writing into it."
                ),
                hint=3,
            ),
            Slip(
                "kept outside of ctx",
                "- ctx.x = x",
                "- ctx.s = 1 / (1 + np.exp(-x))",
                "- return x * ctx.s",
                "+ silu.x = x",
                "+ silu.s = 1 / (1 + np.exp(-x))",
                "+ return x * silu.s",
                "- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))",
                "+ return grad * silu.s * (1 + silu.x * (1 - silu.s))",
                message=(
                    "Between its forward and its backward another silu was computed, and wrote over what was kept. "
                    "What backward needs belongs into `ctx`: each call has one of its own."
                ),
            ),
            Slip(
                "without history",
                "- return Silu.apply(x)",
                "+ return T.Tensor(x.data / (1 + np.exp(-x.data)))",
                message=(
                    "`T.Tensor(array)` starts a new life without a past. `Silu.apply(x)` computes the result and "
                    "records where it came from."
                ),
            ),
        ),
    ),
    run=lambda function, numbers: _quietly(_as_function, function, numbers),
    explain="The kit's own silu stands in rules/elementwise.py. It saves x alone and computes s a second time in "
    "backward: time against memory, a choice every rule has to make.",
)


def max_backward(g, x):
    """The gradient of x [R, C], from the gradient g [R] of the largest of each row. Ties share."""
    wins = x == x.max(axis=1, keepdims=True)
    share = wins / wins.sum(axis=1, keepdims=True)
    return g[:, None] * share


def _all_to_the_first(g, x):
    out = np.zeros_like(x)
    out[np.arange(len(x)), x.argmax(axis=1)] = g
    return out


def _rows_with_ties(rng):
    rows, columns = rng.integers(1, 5, size=2)
    return rng.normal(size=rows), rng.integers(-2, 2, size=(rows, columns)) / 4


LARGEST = Exercise(
    "05.2",
    "The largest, and its ties",
    "`out = x.max(axis=1)` takes the largest of each row. Write "
    "`max_backward(g, x)`: the gradient of x, an array [R, C], from the gradient `g` [R] of the result. Equal "
    "largest numbers share evenly, as in `torch.amax`.",
    minutes=8,
    difficulty=2,
    solution=max_backward,
    hints=(
        "Where are the winners? `x == x.max(axis=1, keepdims=True)` is an array of True and False, of x's shape.",
        "Divide it by the number of winners of each row: `wins.sum(axis=1, keepdims=True)`. Now each row sums to 1.",
        "`g` has one number for each row; to stand beside the rows it has to be a column, `g[:, None]`.",
    ),
    cases=(
        (_array([1, 10]), _array([[1, 3, 2], [5, 4, 0]])),
        (_array([1, 10, 100]), _array([[2, 1, 2], [0, 4, 1], [3, 3, 3]])),
        (_array([6, -1]), _array([[7, 7], [-2, -1]])),
        (_array([4]), _array([[0.75, 0.751, 0.75]])),
        (_array([4, 1]), _array([[0.75, np.nextafter(0.75, 1)], [-0.5, np.nextafter(-0.5, -1)]])),
        *drawn(4, _rows_with_ties),
        *drawn(2, lambda rng: (rng.normal(size=3), rng.normal(size=(3, 4)))),
    ),
    mistakes=(
        *slips(
            max_backward,
            Slip(
                "all to every tie",
                "- share = wins / wins.sum(axis=1, keepdims=True)",
                "+ share = wins",
                message=(
                    "With two equal winners twice as much goes out as came in. Raise both by 1 and the maximum rises "
                    "by 1, not by 2: they have to share."
                ),
                hint=2,
            ),
            Slip(
                "g along the columns",
                "- return g[:, None] * share",
                "+ return g * share",
                message=(
                    "`g` has one number for each row, and without `[:, None]` NumPy lays it along the columns. A "
                    "square x does not even complain."
                ),
                hint=3,
            ),
            Slip(
                "without keepdims",
                "- wins = x == x.max(axis=1, keepdims=True)",
                "- share = wins / wins.sum(axis=1, keepdims=True)",
                "+ wins = x == x.max(axis=1)",
                "+ share = wins / wins.sum(axis=1)",
                message="Without `keepdims=True` the largest numbers, one for each row, are laid along the columns.",
            ),
            Slip(
                "ties of the whole table",
                "- wins = x == x.max(axis=1, keepdims=True)",
                "- share = wins / wins.sum(axis=1, keepdims=True)",
                "+ wins = x == x.max()",
                "+ share = wins / wins.sum()",
                message=(
                    "Each row has a winner of its own: take the maximum and the count with `axis=1, keepdims=True`."
                ),
            ),
            Slip(
                "without g",
                "- return g[:, None] * share",
                "+ return share",
                message="That is who wins. How much each winner gets is decided by `g`.",
                hint=3,
            ),
            Slip(
                "nearly equal",
                "- wins = x == x.max(axis=1, keepdims=True)",
                "+ wins = x >= -0.001 + x.max(axis=1, keepdims=True)",
                message=(
                    "A number that is 0.001 behind has lost: nudge it, and the maximum does not move. The largest is "
                    "found by copying, not by computing, so `==` is exact here."
                ),
            ),
            Slip(
                "isclose",
                "- wins = x == x.max(axis=1, keepdims=True)",
                "+ wins = np.isclose(x, x.max(axis=1, keepdims=True))",
                message=(
                    "Two numbers that differ in their last digit only are told apart by the maximum, and so they are "
                    "no tie: compare with `==`, and round nothing. (The largest was copied, not computed.)"
                ),
            ),
        ),
        Mistake(
            "all to the first",
            _all_to_the_first,
            "That is argmax's answer, the first of equals takes all: "
            "torch.max(x, 1) does it so, torch.amax and this kit share.",
        ),
    ),
    run=_quietly,
)


def softmax_backward(g, p):
    """The gradient of the logits, from the gradient g of p = softmax(logits). All are [R, C]."""
    mean = (g * p).sum(axis=1, keepdims=True)
    return p * (g - mean)


def _a_jacobian_each(g, p):
    return np.stack([gi @ (np.diag(pi) - np.outer(pi, pi)) for gi, pi in zip(g, p, strict=True)])


def _all_jacobians_at_once(g, p):
    jacobians = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
    return np.einsum("ri,rij->rj", g, jacobians)


def _without_tables(function, g, p):
    """What the function gives, unless it needed an array that is a great deal larger than p."""
    tracemalloc.start()
    try:
        result = _quietly(function, g, p)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result if most < 20 * p.nbytes + 200_000 else Told("its answer by way of a large table")


def _g_and_p(rows, columns):
    def draw(rng):
        logits = rng.normal(size=(rows, columns))
        return rng.normal(size=(rows, columns)), np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    return draw


SOFTMAX = Exercise(
    "05.3",
    "Softmax without its Jacobian",
    "Write `softmax_backward(g, p)`: the gradient of the logits, where `p` "
    "[R, C] is softmax of them, row by row, and `g` [R, C] the gradient of `p`. No Jacobian, no loop: a line or "
    "two, from `p_i * (g_i - sum over j of g_j p_j)`.",
    minutes=6,
    difficulty=2,
    solution=softmax_backward,
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
        *drawn(1, _g_and_p(4, 1)),
        *drawn(1, _g_and_p(1, 5)),
        *drawn(1, _g_and_p(2000, 3)),
        *drawn(1, _g_and_p(2, 500)),
    ),
    mistakes=(
        *slips(
            softmax_backward,
            Slip(
                "the diagonal alone",
                "- return p * (g - mean)",
                "+ return p * (g * (1 - p))",
                message=(
                    "That is the rule of the sigmoid: each logit and its own probability. In a softmax all compete; "
                    "when one logit rises, every other probability falls."
                ),
            ),
            Slip(
                "mean of the table",
                "- mean = (g * p).sum(axis=1, keepdims=True)",
                "+ mean = (g * p).sum()",
                message="The sum ran over the whole table. Each row is a softmax of its own: `axis=1, keepdims=True`.",
                hint=2,
            ),
            Slip(
                "mean in a row",
                "- mean = (g * p).sum(axis=1, keepdims=True)",
                "+ mean = (g * p).sum(axis=1)",
                message="The means are one for each row, and without `keepdims=True` they are laid along the columns.",
                hint=2,
            ),
            Slip(
                "plain mean",
                "- mean = (g * p).sum(axis=1, keepdims=True)",
                "+ mean = g.mean(axis=1, keepdims=True)",
                message="The mean has to be weighted with p: sum of g * p, not g.mean().",
            ),
            Slip(
                "of the logarithm",
                "- mean = (g * p).sum(axis=1, keepdims=True)",
                "- return p * (g - mean)",
                "+ mean = g.sum(axis=1, keepdims=True)",
                "+ return g - p * mean",
                message=(
                    "That is the rule of log_softmax, where the 1 / p of the logarithm has cancelled the p in front."
                ),
                hint=3,
            ),
            Slip(
                "without p in front",
                "- return p * (g - mean)",
                "+ return g - mean",
                message=(
                    "The distance from the mean is right. A logit moves the result in proportion to its p: multiply."
                ),
                hint=3,
            ),
        ),
        Mistake(
            "a loop over the rows",
            lambda g, p: np.array([pi * (gi - gi @ pi) for gi, pi in zip(g, p, strict=True)]),
            "The numbers are right and no Jacobian is built, but Python takes a turn for each row. NumPy does all rows "
            "at once, if the axis of the sum is kept: `(g * p).sum(axis=1, keepdims=True)`.",
            hint=2,
        ),
        Mistake(
            "a Jacobian for each row",
            _a_jacobian_each,
            "The numbers are right for small arrays, and each row takes a Jacobian and a turn of a Python loop: for "
            "the 151,936 tokens of Qwen3 it would be 92 GB a row. The mean of each row is all of it that is needed.",
        ),
        Mistake(
            "all Jacobians at once",
            _all_jacobians_at_once,
            "The numbers are right and the loop is gone, but the Jacobians are all there, [R, C, C]. The mean of each "
            "row is all of them that is needed.",
        ),
    ),
    run=_without_tables,
    work=20,
    explain="It needs the result p and not the logits, so p is what the kit's rule saves.",
)


def rms_norm_backward(g, x, eps=1e-6):
    """The gradient of x [R, C], from g, that of y = x / sqrt(mean(x**2) + eps), row by row."""
    r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
    y = x / r
    return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r


def _g_and_x(rng):
    shape = rng.integers(1, 6, size=2)
    return rng.normal(size=shape), rng.normal(size=shape)


RMS_NORM = Exercise(
    "05.4",
    "The way back of a norm",
    "Write `rms_norm_backward(g, x, eps=1e-6)`: the gradient of `x` [R, C], where `y = x / r` with "
    "`r = sqrt(mean(x**2) + eps)` for each row, and `g` [R, C] is the gradient of `y`. Each `x` has two ways to the "
    "loss: straight through its own `y`, and through `r`, which is in all `y` of its row.",
    minutes=10,
    difficulty=3,
    solution=rms_norm_backward,
    hints=(
        "Straight: x_i moves y_i by 1 / r, which makes g_i / r. Through r: x_i moves r by y_i / C, and r moves each "
        "y_j by -y_j / r. Multiply along the way, and add up over j.",
        "The way through r is `-y_i / r` times the sum of g_j y_j over C, which is the *mean* of `g * y` in the row: "
        "`np.mean(g * y, axis=1, keepdims=True)`.",
        "`return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r`",
    ),
    cases=(
        (_array([[1, 0, 0]]), _array([[1, 2, -2]])),
        (_array([[1, 2, 4], [0, -1, 1]]), _array([[3, -1, 0.5], [1, 1, 1]])),
        (_array([[2, 2], [3, -1]]), _array([[0.5, 1], [-2, 4]])),
        (_array([[1, -2, 0.5], [1, 2, 3]]), _array([[1e-3, -2e-3, 5e-4], [0, 0, 0]])),
        (_array([[1, 3]]), _array([[1, 2]]), 0.5),
        (_array([[1, -2, 0.5]]), _array([[3e-6, 1e-6, -2e-6]]), 1e-14),
        *drawn(4, _g_and_x),
    ),
    mistakes=slips(
        rms_norm_backward,
        Slip(
            "r taken for a constant",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g) / r",
            message=(
                "That is the straight way alone, as if `r` were a constant. It is made of x: move one x, and r moves, "
                "and with it every y of the row."
            ),
        ),
        Slip(
            "sum for mean",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - y * np.sum(g * y, axis=1, keepdims=True)) / r",
            message=(
                "Nearly: one x moves the *mean* of the squares only by its C-th part. It is the mean of g * y that "
                "counts."
            ),
            hint=2,
        ),
        Slip(
            "mean of the table",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - y * np.mean(g * y)) / r",
            message="The mean ran over the whole table. Each row has an r of its own: `axis=1, keepdims=True`.",
            hint=2,
        ),
        Slip(
            "root of the table",
            "- r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)",
            "+ r = np.sqrt(np.mean(x * x, ) + eps)",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - y * np.mean(g * y, )) / r",
            message="Each row is divided by a root of its own: both means need `axis=1, keepdims=True`.",
        ),
        Slip(
            "x in the place of y",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - x * np.mean(g * x, axis=1, keepdims=True)) / r",
            message="It is y that stands there twice, x / r: each of the two ways through r has a 1 / r in it.",
            hint=2,
        ),
        Slip(
            "r lost on the way",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return g / r - y * np.mean(g * y, axis=1, keepdims=True)",
            message="The way through r has a 1 / r as well: y = x / r falls by y / r when r rises by 1.",
            hint=3,
        ),
        Slip(
            "not divided",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - y * np.mean(g * y, axis=1, keepdims=True))",
            message=(
                "The bracket is right. Both ways are still to be divided by r: what goes in n times as large comes out"
                " the same, so its gradient is n times as small."
            ),
            hint=3,
        ),
        Slip(
            "layer norm's",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - np.mean(g, axis=1, keepdims=True) - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            message=(
                "That takes the mean of g off too, as layer norm does. RMS norm subtracts no mean on its way, so it "
                "has none to undo."
            ),
        ),
        Slip(
            "plus",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g + y * np.mean(g * y, axis=1, keepdims=True)) / r",
            message="When r rises, every y becomes smaller: what goes through r counts with a minus.",
        ),
        Slip(
            "eps forgotten",
            "- r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)",
            "+ r = np.sqrt(np.mean(x * x, axis=1, keepdims=True))",
            message="`eps` is missing: for small numbers it is as large as the mean square.",
            hint=3,
        ),
        Slip(
            "eps outside of the root",
            "- r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)",
            "+ r = np.sqrt(np.mean(x * x, axis=1, keepdims=True)) + eps",
            message="`eps` stands inside the root, beside the mean: `sqrt(mean(x**2) + eps)`.",
            hint=3,
        ),
        Slip(
            "without keepdims",
            "- r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)",
            "+ r = np.sqrt(np.mean(x * x, axis=1) + eps)",
            "- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r",
            "+ return (g - y * np.mean(g * y, axis=1)) / r",
            message="A mean has one number for each row; without `keepdims=True` they are laid along the columns.",
            hint=3,
        ),
    ),
    run=_quietly,
    explain="The same form as softmax's: take something off g, and multiply. What is taken off is the part of g along "
    "y, the direction in which a norm feels nothing.",
)


def logsumexp(x):
    """log(sum(exp(x))) of each row of x [R, C]: an array [R]. Right for numbers of any size."""
    largest = x.max(axis=1)
    return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))


LOGSUMEXP = Exercise(
    "05.5",
    "A logarithm that does not overflow",
    "Write `logsumexp(x)`: `log(sum(exp(x)))` of each row of the "
    "array `x` [R, C], as an array [R]. It has to be right for rows such as `[1000, 1000]` and `[-1000, -1000]` "
    "in the same table.",
    minutes=6,
    difficulty=2,
    solution=logsumexp,
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
        (_array([[0], [-1e5]]),),
        (_array([[0, 1000], [-1000, 5]]),),
        (np.array([[0, 1, 0], [3, 1, 2]]),),
        *drawn(3, lambda rng: (100 * rng.normal(size=(3, 1)) + rng.normal(size=(3, 4)),)),
    ),
    mistakes=slips(
        logsumexp,
        Slip(
            "overflow",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ return np.log(np.exp(x).sum(axis=1))",
            message=(
                "e**1000 is beyond the largest float, so it becomes inf (and e**-1000 becomes 0, whose logarithm is "
                "-inf)."
            ),
        ),
        Slip(
            "not put back",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ return np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            message="What was taken out has to be put back: the logarithm of e**m is m. Add it.",
            hint=2,
        ),
        Slip(
            "one m for all rows",
            "- largest = x.max(axis=1)",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ largest = x.max()",
            "+ return largest + np.log(np.exp(x - largest).sum(axis=1))",
            message=(
                "The largest of the whole table is far above the second row, whose sum then rounds to 0. Each row "
                "needs its own."
            ),
            hint=3,
        ),
        Slip(
            "largest in a row",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ return largest + np.log(np.exp(x - largest).sum(axis=1))",
            message=(
                "`x - m` lays the m, one for each row, along the columns: stand them up with `m[:, None]`, or with "
                "`keepdims=True`."
            ),
            hint=3,
        ),
        Slip(
            "down the columns",
            "- largest = x.max(axis=1)",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ largest = x.max(axis=0)",
            "+ return largest + np.log(np.exp(x - largest).sum(axis=0))",
            message="That goes down the columns. Along each row it is `axis=1`.",
            hint=3,
        ),
        Slip(
            "first taken out",
            "- largest = x.max(axis=1)",
            "+ largest = x[:, 0]",
            message="The first number of a row need not be its largest: one that is 1000 above it overflows.",
        ),
        Slip(
            "largest size taken out",
            "- largest = x.max(axis=1)",
            "+ largest = np.abs(x).max(axis=1)",
            message=(
                "In a row such as [-1000, -1000] the largest number is -1000. Its size, 1000, takes the others down to"
                " -2000, and the sum to 0."
            ),
        ),
        Slip(
            "mean taken out",
            "- largest = x.max(axis=1)",
            "+ largest = x.mean(axis=1)",
            message=(
                "Taking out the mean is not enough: in a row such as [1000, -1000, 0] the largest is still 1000 above "
                "it, and overflows."
            ),
        ),
        Slip(
            "a column",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ return (largest + np.log(np.exp(x - largest[:, None]).sum(axis=1)))[:, None]",
            message="The numbers are right, the shape is not: [R] was asked for, so the kept axis has to go.",
            hint=3,
        ),
        Slip(
            "the largest alone",
            "- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))",
            "+ return largest",
            message="Near, but the others in the row count too: two equal numbers add log(2).",
            hint=2,
        ),
    ),
    run=_quietly,
)


def cross_entropy_backward(logits, targets):
    """The gradient of the mean cross-entropy: [N, C]. targets [N]: columns of the right answers."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    slope = powers / powers.sum(axis=1, keepdims=True)
    slope[np.arange(len(targets)), targets] -= 1
    return slope / len(targets)


def _logits_and_targets(rng):
    n, c = rng.integers(1, 5), rng.integers(2, 6)
    return 2 * rng.normal(size=(n, c)), rng.integers(c, size=n)


CROSS_ENTROPY = Exercise(
    "05.6",
    "The gradient that trains classifiers",
    "Write `cross_entropy_backward(logits, targets)`: the gradient "
    "of the **mean** over N rows of `-log(softmax(logits)[target])`, for `logits` [N, C]. `targets` [N] are "
    "integers, the column of each row's right answer. Logits may be as large as 1000.",
    minutes=8,
    difficulty=2,
    solution=cross_entropy_backward,
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
        (_array([[1000, 999], [-1000, -999], [0, 1000]]), np.array([1, 0, 1])),
        *drawn(4, _logits_and_targets),
    ),
    mistakes=slips(
        cross_entropy_backward,
        Slip(
            "not the mean",
            "- return slope / len(targets)",
            "+ return slope",
            message=(
                "That is the gradient of the sum over the rows. The mean's is N times smaller; without it, twice the "
                "batch means twice the step."
            ),
            hint=3,
        ),
        Slip(
            "mean over everything",
            "- return slope / len(targets)",
            "+ return slope / slope.size",
            message="The mean goes over the N rows, and not over all N times C numbers.",
            hint=3,
        ),
        Slip(
            "right answer forgotten",
            "- slope[np.arange(len(targets)), targets] -= 1",
            "+ pass",
            message=(
                "Those are the probabilities. In each row the right answer is still missing: a 1 comes off there, or "
                "nothing would ever be pushed up."
            ),
            hint=2,
        ),
        Slip(
            "turned around",
            "- return slope / len(targets)",
            "+ return -slope / len(targets)",
            message=(
                "The sign is turned around: the loss falls when the right logit rises, so its gradient is negative, p "
                "- 1."
            ),
        ),
        Slip(
            "the right answers alone",
            "- return slope / len(targets)",
            "+ return (np.arange(slope.shape[1]) == targets[:, None]) * slope / len(targets)",
            message=(
                "The right answers are pulled up as they should be. The other logits have a gradient too, their p: "
                "they are pushed down."
            ),
        ),
        Slip(
            "the columns of all targets",
            "- slope[np.arange(len(targets)), targets] -= 1",
            "+ slope[:, targets] -= 1",
            message="`[:, targets]` means these columns in *every* row. Name the rows too: `np.arange(len(targets))`.",
            hint=2,
        ),
        Slip(
            "overflow",
            "- powers = np.exp(logits - logits.max(axis=1, keepdims=True))",
            "+ powers = np.exp(logits)",
            message="A logit of 1000 overflows: inf / inf is nan. Take the largest of the row out before exp.",
        ),
        Slip(
            "clipped",
            "- powers = np.exp(logits - logits.max(axis=1, keepdims=True))",
            "+ powers = np.exp(np.clip(logits, -500, 500))",
            message=(
                "Nothing overflows, but clipped to the same limit 1000 and 999 are equal, and the one is e times as "
                "likely as the other. Take the largest of the row out before exp."
            ),
        ),
        Slip(
            "largest size",
            "- powers = np.exp(logits - logits.max(axis=1, keepdims=True))",
            "+ powers = np.exp(logits - np.abs(logits).max(axis=1, keepdims=True))",
            message=(
                "In the row [-1000, -999] the largest number is -999. Its size is 1000, which takes the row down to "
                "-2000, and every power to 0: 0 / 0 is nan."
            ),
        ),
        Slip(
            "largest of all",
            "- powers = np.exp(logits - logits.max(axis=1, keepdims=True))",
            "+ powers = np.exp(logits - logits.max())",
            message=(
                "The largest of the whole table is 1000 above the other rows, whose powers all round to 0: 0 / 0 is "
                "nan. Take out the largest of each row."
            ),
        ),
    ),
    run=_quietly,
)


def root_or_zero(x):
    """sqrt(x) where x > 0, else 0, of a Tensor; its gradient is 0 where x is not positive."""
    safe = T.where(x > 0, x, 1.0)
    return T.where(x > 0, T.sqrt(safe), 0.0)


def _value_and_gradient(function, numbers):
    """What it gives, its gradient, and whether anything on the way there and back was infinite or nan."""
    x = T.Tensor(numbers, requires_grad=True)
    on_the_way = "finite numbers"
    with np.errstate(all="ignore"):
        out = function(x)
        if isinstance(out, np.ndarray):
            out = T.Tensor(out)
        if not isinstance(out, T.Tensor):
            return out
        if out.requires_grad:
            out.sum().backward()
            try:
                with T.detect_anomaly():
                    function(T.Tensor(numbers, requires_grad=True)).sum().backward()
            except T.AnomalyError:
                on_the_way = "inf or nan"
    gradient = None if x.grad is None else x.grad.tolist()
    zeros = f"{on_the_way}, {np.sum(out.data == 0)} zeros in the result"  # exact ones: 1e-15 is not told from 0
    return {"result": out.data.tolist(), "gradient": gradient, "on the way": Told(zeros)}


TWO_WHERES = Exercise(
    "05.7",
    "Two wheres",
    "Repair it: write `root_or_zero(x)` for a Tensor `x`, the root where `x > 0`, however small, and 0 "
    "elsewhere, with gradient 0 where x is not positive. Use `T.where` and `T.sqrt`, add nothing to x, and let nothing "
    "infinite or nan appear on the way, forward or backward, not even for a moment.",
    minutes=5,
    difficulty=2,
    solution=root_or_zero,
    hints=(
        "The nan is born in sqrt's backward at 0, whatever happens to it later. So sqrt must never see a 0: "
        "what could it see there instead?",
        "Two wheres: one *before* the root puts a harmless number in the place of all that is not positive, "
        "one after it puts the 0 there.",
        "`safe = T.where(x > 0, x, 1.0)`, and then `T.where(x > 0, T.sqrt(safe), 0.0)`.",
    ),
    cases=(
        ([4.0, 0.0, 1.0],),
        ([0.25, -1.0],),
        ([1e-300, 2.25, -1e-300],),
        ([1e-14, 4.0],),
        *drawn(2, lambda rng: (rng.normal(size=(2, 3)).tolist(),)),
    ),
    mistakes=slips(
        root_or_zero,
        Slip(
            "the outer where alone",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ return T.where(x > 0, T.sqrt(x), 0.0)",
            message=(
                "The where hands the gradient 0 to the root it did not take, and the root multiplies it by its slope, "
                "which is not finite: 0 * inf is nan."
            ),
        ),
        Slip(
            "the inner where alone",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ return T.sqrt(safe)",
            message=(
                "The gradient is healthy now. The result is the root of the harmless number, though: a second where "
                "has to put the 0 there."
            ),
            hint=2,
        ),
        Slip(
            "a zero inside",
            "- safe = T.where(x > 0, x, 1.0)",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ safe = T.where(x > 0, x, 0.0)",
            "+ return T.sqrt(safe)",
            message=(
                "The numbers are right, since the root of 0 is 0 and where's own rule filters what comes back. But on "
                "the way back sqrt, which saw a 0, made an infinity, and only luck stopped it there. Let it see a "
                "harmless number such as 1, and put the 0 in afterwards."
            ),
            hint=2,
        ),
        Slip(
            "a little more",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ return T.sqrt(T.maximum(x, 0.0) + 1e-8)",
            message=(
                "Adding something inside the root moves every result: the root of 0 + 1e-8 is 1e-4. (And it is a habit"
                " of many programs.)"
            ),
            hint=2,
        ),
        Slip(
            "clipped from below",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ return T.where(x > 0, T.sqrt(T.clip(x, 1e-12, None)), 0.0)",
            message=(
                "A number between 0 and the limit of the clip is positive too, and has a root of its own and a steep "
                "slope: the clip gives it the root of the limit, and no gradient. Ask `x > 0`, and put a harmless "
                "number where it is false."
            ),
            hint=2,
        ),
        Slip(
            "maximum inside",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ return T.sqrt(T.maximum(x, 0.0))",
            message=(
                "The root still sees a 0, where its slope is infinite, and maximum shares a tie: half of infinity "
                "arrives."
            ),
        ),
        Slip(
            "cut off",
            "- return T.where(x > 0, T.sqrt(safe), 0.0)",
            "+ return T.Tensor(np.where(x.data > 0, np.sqrt(np.maximum(x.data, 0)), 0), requires_grad=True)",
            message=(
                "The result does not know that it came from x (a NumPy array, a new Tensor and `detach` all forget), "
                "so x gets no gradient at all. Stay with T.where and T.sqrt."
            ),
            hint=2,
        ),
    ),
    run=_value_and_gradient,
    explain="T.safe_sqrt does it in one rule. `T.sqrt(T.where(x > 0, x, 0.0))` would give the same numbers: "
    "where's own rule, np.where(condition, g, 0), is a filter, and stops an infinity where a multiplication by 0 would "
    "make a nan of it. Two wheres make none in the first place, and work for any function.",
)


def pow_backward(g, base, exponent):
    """(gradient of base, gradient of exponent) for out = base ** exponent. Arrays of one shape."""
    out = base**exponent
    for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
    is_hole = (base == 0) & (exponent >= 0)
    for_exponent = np.where(is_hole, 0, g * out * np.log(base))
    return for_base, for_exponent


def _nan_to_num(g, base, exponent):
    slopes = g * exponent * base ** (exponent - 1), g * base**exponent * np.log(base)
    return tuple(np.where(np.isnan(slope), 0, slope) for slope in slopes)


POWER = Exercise(
    "05.8",
    "A power, with both gradients",
    "`out = base ** exponent`, arrays of one shape. Write "
    "`pow_backward(g, base, exponent)`: the gradients of both, as a tuple. By formula they are `exponent * "
    "base**(exponent - 1)` and `out * log(base)`, each times g. Two holes need a decision, the same as torch's: "
    "the gradient of the base is 0 where the exponent is 0, and the gradient of the exponent is 0 where the base "
    "is 0 and the exponent is not negative.",
    minutes=10,
    difficulty=3,
    solution=pow_backward,
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
        (_array([1, 2]), _array([-2, -3]), _array([2, 0])),
        (_array([[2, -1], [0.5, 3]]), _array([[0, 1e-9], [1e-9, 0]]), _array([[0.5, 0.5], [2, 1e-9]])),
        *drawn(2, lambda rng: (rng.normal(size=(2, 3)), rng.uniform(0.1, 3, size=(2, 3)), rng.normal(size=(2, 3)))),
    ),
    mistakes=(
        *slips(
            pow_backward,
            Slip(
                "formulas alone",
                "- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))",
                "- is_hole = (base == 0) & (exponent >= 0)",
                "+ for_base = np.where(False, 0, g * exponent * base ** (exponent - 1))",
                "+ is_hole = False",
                message="The formulas are right and the holes are open: at base 0 they multiply 0 by an infinity.",
                hint=2,
            ),
            Slip(
                "one hole left",
                "- is_hole = (base == 0) & (exponent >= 0)",
                "+ is_hole = False",
                message=(
                    "The first hole is closed. The gradient of the exponent has one too: 0 ** b times log(0), for b of"
                    " 0 or more."
                ),
                hint=3,
            ),
            Slip(
                "the other hole left",
                "- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))",
                "+ for_base = np.where(False, 0, g * exponent * base ** (exponent - 1))",
                message=(
                    "The gradient of the exponent is right. That of the base has a hole where the exponent is 0: 0 * 0"
                    " ** -1 is 0 * inf."
                ),
                hint=2,
            ),
            Slip(
                "too small a patch",
                "- is_hole = (base == 0) & (exponent >= 0)",
                "+ is_hole = (base == 0) & (exponent > 0)",
                message="0 ** 0 belongs to the second hole too: the exponent may be 0 *or* more, `>=`.",
                hint=3,
            ),
            Slip(
                "too large a patch",
                "- is_hole = (base == 0) & (exponent >= 0)",
                "+ is_hole = (base == 0)",
                message=(
                    "The second patch is too large: with a negative exponent 0 ** -1 is inf, and its slopes are "
                    "infinite, not 0."
                ),
                hint=3,
            ),
            Slip(
                "nearly 0",
                "- is_hole = (base == 0) & (exponent >= 0)",
                "+ is_hole = (abs(base) < 1e-6) & (exponent >= 0)",
                message=(
                    "The second patch is too large: where the base is small, but not 0, nothing is multiplied by an "
                    "infinity, and the formula holds."
                ),
                hint=3,
            ),
            Slip(
                "swapped",
                "- return for_base, for_exponent",
                "+ return for_exponent, for_base",
                message="The two are swapped: first the gradient of the base, then that of the exponent.",
            ),
            Slip(
                "size of the base",
                "- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))",
                "+ for_base = np.where(exponent == 0, 0, g * exponent * abs(base) ** (exponent - 1))",
                message="A negative base falls and rises with the power: (-2) ** 2 has the slope -4. No abs.",
            ),
            Slip(
                "g forgotten",
                "- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))",
                "+ for_base = np.where(exponent == 0, 0, exponent * base ** (exponent - 1))",
                "- for_exponent = np.where(is_hole, 0, g * out * np.log(base))",
                "+ for_exponent = np.where(is_hole, 0, out * np.log(base))",
                message="Those are the slopes of the power itself. Each has to be multiplied by g.",
            ),
            Slip(
                "logarithm of the exponent",
                "- for_exponent = np.where(is_hole, 0, g * out * np.log(base))",
                "+ for_exponent = np.where(is_hole, 0, g * out * np.log(exponent))",
                message="a ** b is e ** (b * log(a)): the logarithm is that of the base.",
            ),
        ),
        Mistake(
            "every nan to 0",
            _nan_to_num,
            "Turning every nan into 0 hides the honest ones: the exponent of a "
            "negative base has no slope, and the nan says so.",
            hint=2,
        ),
    ),
    run=_quietly,
)
