"""Exercises of notebook 05: the operations."""

from __future__ import annotations

import tracemalloc

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.tensor.rules.rule import Rule


def _quietly(function, *arguments):
    """Silence NumPy's warnings: division by zero and overflow are the subject here."""
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
    """The result and the gradient that its own Function returns for the gradients 1, 10, 100 ..."""
    x = T.Tensor(numbers, requires_grad=True)
    out = function(x)
    function(T.Tensor(1 - x.data, requires_grad=True))  # another one, before the first goes backward
    if not isinstance(out, T.Tensor):
        return out if out is None else Told(f"{show(out)}, which is not a Tensor. Return Silu.apply(x)")
    if out.grad_fn is None:
        return Told("a Tensor without history")
    made_by = out.grad_fn.function
    if issubclass(made_by, Rule) and made_by.compute.__module__.startswith("mlx_grpo_kit."):
        return Told(f"the result of the kit's own {made_by.__name__}")
    g = (10.0 ** np.arange(x.data.size)).reshape(x.shape)
    out.backward(g)
    return {"result": out.data.tolist(), f"gradient of x for grad = {g.tolist()}": x.grad.tolist()}


SILU = Exercise(
    "05.1",
    "silu, as a Function",
    "silu is the activation inside every Qwen3: `x * sigmoid(x)`. With `s = 1 / (1 + e**-x)` its slope is `s * (1 "
    "+ x * (1 - s))`. Write `silu(x)` for a Tensor `x`: define a class `Silu(T.Function)` inside it, with a "
    "`forward` and a `backward` as in `Square` above, and end with `return Silu.apply(x)`.",
    minutes=6,
    difficulty=1,
    solution=silu,
    hints=(
        "Both methods work with NumPy arrays: `np.exp(-x)`, not `T.exp`. `forward` returns `x * s`. What will "
        "`backward` need later? Store it in `ctx`.",
        "`ctx.x = x` and `ctx.s = 1 / (1 + np.exp(-x))` in forward; in backward, compute the slope from `ctx.s` "
        "and `ctx.x`. And by which number do you multiply it?",
        "`return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))`",
    ),
    cases=(
        ([0.0, 2.0, -3.0],),
        ([1.0, -1.0],),
        *drawn(2, lambda rng: ((3 * rng.normal(size=(2, 3))).tolist(),)),
    ),
    mistakes=slips(
        silu,
        r"""
@ return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))
slope alone (3)
+ return ctx.s * (1 + ctx.x * (1 - ctx.s))
! That is silu's own slope. Multiply it by `grad`, which says how much each element of the result affects the loss.
product rule (2)
+ return grad * ctx.s
! x appears twice in x * sigmoid(x), and both count: the sigmoid moves too.
only the sigmoid's slope (2)
+ return grad * ctx.s * (1 - ctx.s)
! That is the slope of the sigmoid. silu is x times as large, and x itself moves.
grad changed in place (3)
+ grad *= ctx.s * (1 + ctx.x * (1 - ctx.s))
+ return grad
! `grad` and the arrays in `ctx` are read-only: other operations use them too, and would get your numbers. Create a new
! array, `grad * ...`, instead of writing into one, `grad *= ...`.

@ return Silu.apply(x)
made of the kit's operations
+ return x * T.sigmoid(x)
! The numbers are right, but the engine computed them with two rules of the kit. Write a Function of your own, `class
! Silu(T.Function)`, with a backward.
without history
+ return T.Tensor(x.data / (1 + np.exp(-x.data)))
! `T.Tensor(array)` creates a Tensor without a graph. `Silu.apply(x)` computes the result and records its origin.

kept outside of ctx
- ctx.x = x
- ctx.s = 1 / (1 + np.exp(-x))
- return x * ctx.s
+ silu.x = x
+ silu.s = 1 / (1 + np.exp(-x))
+ return x * silu.s
- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))
+ return grad * silu.s * (1 + silu.x * (1 - silu.s))
! Between this call's forward and backward, another silu was computed and overwrote the stored values. Store what
! backward needs in `ctx`: each call has its own.
""",
    ),
    run=lambda function, numbers: _quietly(_as_function, function, numbers),
    explain="The kit's own silu is in rules/elementwise.py. It saves only x and computes s a second time in "
    "backward. Every rule has to choose between time and memory in this way.",
    also_right=r"""
# silu that saves x alone
- ctx.s = 1 / (1 + np.exp(-x))
- return x * ctx.s
+ return x / (1 + np.exp(-x))
- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))
+ s = 1 / (1 + np.exp(-ctx.x))
+ return grad * (s + ctx.x * s * (1 - s))
""",
    also_wrong=r"""
# silu that spoils x
- ctx.x = x
- ctx.s = 1 / (1 + np.exp(-x))
- return x * ctx.s
+ ctx.x = x.copy()
+ ctx.s = 1 / (1 + np.exp(-x))
+ x *= ctx.s
+ return x.copy()
! forward writes into an array that other operations use too
# silu that spoils x in backward
- return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))
+ slope = ctx.s * (1 + ctx.x * (1 - ctx.s))
+ ctx.x[...] = 0
+ return grad * slope
! are read-only: other operations use them too
# an array
lambda x: x.data * 0.5
! which is not a Tensor. Return Silu.apply(x)
# the kit's own
lambda x: T.silu(x)
! the result of the kit's own Silu
# no backward
- @staticmethod
- def backward(ctx, grad):
-     return grad * ctx.s * (1 + ctx.x * (1 - ctx.s))
! raised NotImplementedError: a Function needs a backward
""",
)


def max_backward(g, x):
    """The gradient of x [R, C], from the gradient g [R] of the rows' maxima. Ties share."""
    wins = x == x.max(axis=1, keepdims=True)
    share = wins / wins.sum(axis=1, keepdims=True)
    return g[:, None] * share


def _rows_with_ties(rng):
    rows, columns = rng.integers(1, 5, size=2)
    return rng.normal(size=rows), rng.integers(-2, 2, size=(rows, columns)) / 4


LARGEST = Exercise(
    "05.2",
    "The largest, and its ties",
    "`out = x.max(axis=1)` is the largest number of each row. Write `max_backward(g, x)`: the gradient of x, an "
    "array [R, C], from the gradient `g` [R] of the result. If several numbers are equally large, they share the "
    "gradient evenly, as in `torch.amax`.",
    minutes=8,
    difficulty=2,
    solution=max_backward,
    hints=(
        "Where are the winners? `x == x.max(axis=1, keepdims=True)` is an array of True and False, of x's shape.",
        "Divide it by the number of winners of each row: `wins.sum(axis=1, keepdims=True)`. Now each row sums to 1.",
        "`g` has one number per row; to multiply the rows by it, turn it into a column, `g[:, None]`.",
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
    mistakes=slips(
        max_backward,
        r"""
all to every tie (2)
- share = wins / wins.sum(axis=1, keepdims=True)
+ share = wins
! With two equal winners, you return twice the gradient that came in. If both rise by 1, the maximum rises by 1, not by
! 2, so they have to share.

@ return g[:, None] * share
g along the columns (3)
+ return g * share
! `g` has one number per row, and without `[:, None]` NumPy aligns it with the columns. For a square x you do not even
! get an error.
without g (3)
+ return share
! Those are the winners. `g` says how much each winner gets.

@ wins = x == x.max(axis=1, keepdims=True)
@ share = wins / wins.sum(axis=1, keepdims=True)
without keepdims
+ wins = x == x.max(axis=1)
+ share = wins / wins.sum(axis=1)
! Without `keepdims=True`, NumPy aligns the largest numbers, one per row, with the columns.
ties of the whole table
+ wins = x == x.max()
+ share = wins / wins.sum()
! Each row has its own winner: compute the maximum and the count with `axis=1, keepdims=True`.

@ wins = x == x.max(axis=1, keepdims=True)
nearly equal
+ wins = x >= -0.001 + x.max(axis=1, keepdims=True)
! A number that is 0.001 smaller is not a winner: if you nudge it, the maximum does not move. The maximum is a copy of
! an element, not a computed number, so `==` is exact here.
isclose
+ wins = np.isclose(x, x.max(axis=1, keepdims=True))
! The maximum distinguishes two numbers that differ only in their last digit, so they are not a tie: compare with `==`,
! and do not round. (The maximum is a copy of an element, not a computed number.)

all to the first
- wins = x == x.max(axis=1, keepdims=True)
- share = wins / wins.sum(axis=1, keepdims=True)
- return g[:, None] * share
+ out = np.zeros_like(x)
+ out[np.arange(len(x)), x.argmax(axis=1)] = g
+ return out
! That is argmax's answer: the first of several equal numbers gets everything, as in torch.max(x, 1). torch.amax and
! this kit share.
""",
    ),
    run=_quietly,
    also_right=r"""
# max in a loop
def max_in_a_loop(g, x):
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        places = np.flatnonzero(row == row.max())
        out[i, places] = g[i] / len(places)
    return out
""",
    also_wrong=r"""
# max that spoils x
- wins = x == x.max(axis=1, keepdims=True)
+ x -= x.max(axis=1, keepdims=True)
+ wins = x == 0
! new numbers in what it was given
# a tolerance for rounding
- wins = x == x.max(axis=1, keepdims=True)
+ wins = np.abs(x - x.max(axis=1, keepdims=True)) < 1e-13
! two numbers that differ only in their last digit
# a larger tolerance
- wins = x == x.max(axis=1, keepdims=True)
+ wins = np.abs(x - x.max(axis=1, keepdims=True)) < 1e-6
! two numbers that differ only in their last digit
# the places
lambda g, x: x.argmax(axis=1)
""",
)


def softmax_backward(g, p):
    """The gradient of the logits, from the gradient g of p = softmax(logits). All are [R, C]."""
    mean = (g * p).sum(axis=1, keepdims=True)
    return p * (g - mean)


def _without_tables(function, g, p):
    """The result of the function, unless it needed an array much larger than p."""
    tracemalloc.start()
    try:
        result = _quietly(function, g, p)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result if most < 20 * p.nbytes + 200_000 else Told("its answer, but through a large array")


def _g_and_p(rows, columns):
    def draw(rng):
        logits = rng.normal(size=(rows, columns))
        return rng.normal(size=(rows, columns)), np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    return draw


SOFTMAX = Exercise(
    "05.3",
    "Softmax without its Jacobian",
    "Write `softmax_backward(g, p)`: the gradient of the logits, where `p` [R, C] is their softmax, row by row, "
    "and `g` [R, C] is the gradient of `p`. Use no Jacobian and no loop: one or two lines, from `p_i * (g_i - sum "
    "over j of g_j p_j)`.",
    minutes=6,
    difficulty=2,
    solution=softmax_backward,
    hints=(
        "For each row, first compute one number: the mean of g, weighted with p. It is a sum along the row, `axis=1`.",
        "Keep the axis, so that you can subtract the mean from each element of its row: `(g * p).sum(axis=1, "
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
    mistakes=slips(
        softmax_backward,
        r"""
@ return p * (g - mean)
the diagonal alone
+ return p * (g * (1 - p))
! That is the rule of the sigmoid, in which each logit affects only its own probability. In a softmax all compete: when
! one logit rises, every other probability falls.
without p in front (3)
+ return g - mean
! The difference from the mean is right. A logit moves the result in proportion to its p: multiply by p.

@ mean = (g * p).sum(axis=1, keepdims=True)
mean of the table (2)
+ mean = (g * p).sum()
! Your sum ran over the whole array. Each row is a separate softmax: `axis=1, keepdims=True`.
mean in a row (2)
+ mean = (g * p).sum(axis=1)
! There is one mean per row, and without `keepdims=True` NumPy aligns the means with the columns.
plain mean
+ mean = g.mean(axis=1, keepdims=True)
! Weight the mean with p: use the sum of g * p, not g.mean().

of the logarithm (3)
- mean = (g * p).sum(axis=1, keepdims=True)
- return p * (g - mean)
+ mean = g.sum(axis=1, keepdims=True)
+ return g - p * mean
! That is the rule of log_softmax, where the 1 / p of the logarithm has cancelled the p in front.

@ mean = (g * p).sum(axis=1, keepdims=True)
@ return p * (g - mean)
a loop over the rows (2)
+ return np.array([pi * (gi - gi @ pi) for gi, pi in zip(g, p, strict=True)])
! The numbers are right and you build no Jacobian, but a Python loop runs over the rows. NumPy computes all rows at once
! if you keep the axis of the sum: `(g * p).sum(axis=1, keepdims=True)`.
a Jacobian for each row
+ return np.stack([gi @ (np.diag(pi) - np.outer(pi, pi)) for gi, pi in zip(g, p, strict=True)])
! The numbers are right for small arrays, but each row costs a Jacobian and a pass of a Python loop: for the 151,936
! tokens of Qwen3 that is 92 GB per row. You only need the mean of each row.
all Jacobians at once
+ jacobians = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
+ return np.einsum("ri,rij->rj", g, jacobians)
! The numbers are right and the loop is gone, but you still build all Jacobians, [R, C, C]. You only need the mean of
! each row.
""",
    ),
    run=_without_tables,
    work=20,
    explain="The formula needs the result p and not the logits, so the kit's rule saves p.",
    also_right=r"""
# softmax with einsum
lambda g, p: g * p - p * np.einsum("ij,ij->i", g, p)[:, None]
""",
)


def rms_norm_backward(g, x, eps=1e-6):
    """The gradient of x [R, C], from the gradient g of y = x / sqrt(mean(x**2) + eps)."""
    r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
    y = x / r
    return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r


def _g_and_x(rng):
    shape = rng.integers(1, 6, size=2)
    return rng.normal(size=shape), rng.normal(size=shape)


RMS_NORM = Exercise(
    "05.4",
    "The backward pass of a norm",
    "Write `rms_norm_backward(g, x, eps=1e-6)`: the gradient of `x` [R, C], where `y = x / r` with `r = "
    "sqrt(mean(x**2) + eps)` for each row, and `g` [R, C] is the gradient of `y`. Each `x` has two paths to the "
    "loss: directly through its own `y`, and through `r`, which affects all `y` of its row.",
    minutes=10,
    difficulty=3,
    solution=rms_norm_backward,
    hints=(
        "The direct path: x_i moves y_i by 1 / r, which gives g_i / r. The path through r: x_i moves r by y_i / C, "
        "and r moves each y_j by -y_j / r. Multiply along the path, and add up over j.",
        "The path through r gives `-y_i / r` times the sum of g_j y_j over C, which is the *mean* of `g * y` in "
        "the row: `np.mean(g * y, axis=1, keepdims=True)`.",
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
        r"""
@ return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r
r as a constant
+ return (g) / r
! That is the direct path only, as if `r` were a constant. But r depends on x: if you move one x, r moves, and with it
! every y of the row.
sum for mean (2)
+ return (g - y * np.sum(g * y, axis=1, keepdims=True)) / r
! Nearly: each x contributes only one C-th to the *mean* of the squares. Use the mean of g * y.
mean of the table (2)
+ return (g - y * np.mean(g * y)) / r
! Your mean ran over the whole array. Each row has its own r: `axis=1, keepdims=True`.
x in the place of y (2)
+ return (g - x * np.mean(g * x, axis=1, keepdims=True)) / r
! Use y = x / r in both places, not x: each of the two slopes along the path through r contains a 1 / r.
r lost on the way (3)
+ return g / r - y * np.mean(g * y, axis=1, keepdims=True)
! The path through r has a 1 / r as well: y = x / r falls by y / r when r rises by 1.
not divided (3)
+ return (g - y * np.mean(g * y, axis=1, keepdims=True))
! The bracket is right. Divide both paths by r: an input n times as large gives the same output, so its gradient is n
! times as small.
layer norm's
+ return (g - np.mean(g, axis=1, keepdims=True) - y * np.mean(g * y, axis=1, keepdims=True)) / r
! That subtracts the mean of g too, as layer norm does. RMS norm subtracts no mean in its forward pass, so its gradient
! does not either.
plus
+ return (g + y * np.mean(g * y, axis=1, keepdims=True)) / r
! When r rises, every y becomes smaller, so the path through r has a minus sign.

root of the table
- r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
+ r = np.sqrt(np.mean(x * x, ) + eps)
- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r
+ return (g - y * np.mean(g * y, )) / r
! Each row is divided by its own root: both means need `axis=1, keepdims=True`.

@ r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
eps forgotten (3)
+ r = np.sqrt(np.mean(x * x, axis=1, keepdims=True))
! `eps` is missing: for small numbers it is as large as the mean square.
eps outside of the root (3)
+ r = np.sqrt(np.mean(x * x, axis=1, keepdims=True)) + eps
! `eps` belongs inside the root, next to the mean: `sqrt(mean(x**2) + eps)`.

without keepdims (3)
- r = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)
+ r = np.sqrt(np.mean(x * x, axis=1) + eps)
- return (g - y * np.mean(g * y, axis=1, keepdims=True)) / r
+ return (g - y * np.mean(g * y, axis=1)) / r
! A mean has one number per row; without `keepdims=True`, NumPy aligns these numbers with the columns.
""",
    ),
    run=_quietly,
    explain="The formula has the same form as softmax's: subtract something from g, and multiply. Here you "
    "subtract the part of g along y, the direction that a norm ignores.",
    also_right=r"""
import torch
import torch.nn.functional as F

# rms norm with einsum
def rms_norm_with_einsum(g, x, eps=1e-6):
    r = np.sqrt(np.einsum("ij,ij->i", x, x) / x.shape[1] + eps)[:, None]
    return g / r - x * np.einsum("ij,ij->i", g, x)[:, None] / (x.shape[1] * r**3)
# rms norm in a loop
def rms_norm_in_a_loop(g, x, eps=1e-6):
    rows = []
    for gi, xi in zip(g, x, strict=True):
        r = np.sqrt((xi**2).mean() + eps)
        rows.append(gi @ (np.eye(len(xi)) / r - np.outer(xi, xi) / (len(xi) * r**3)))
    return rows
# rms norm by torch
def by_torch(g, x, eps=1e-6):
    leaf = torch.tensor(x, requires_grad=True)
    F.rms_norm(leaf, (x.shape[1],), eps=eps).backward(torch.tensor(g))
    return leaf.grad.numpy()
""",
    also_wrong=r"""
# norm that spoils g
def norm_that_spoils_g(g, x, eps=1e-6):
    r = np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)
    g -= x / r * (g * x / r).mean(axis=1, keepdims=True)
    return g / r
! new numbers in what it was given
# norm that is measured
def norm_that_is_measured(g, x, eps=1e-6):
    def loss(x):
        return (g * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)).sum()

    def nudge(index):
        step = np.zeros_like(x)
        step[index] = 1e-6
        return (loss(x + step) - loss(x - step)) / 2e-6

    return np.array([nudge(index) for index in np.ndindex(*x.shape)]).reshape(x.shape)
# in float32
lambda g, x, *eps: rms_norm_backward(g.astype(np.float32), x.astype(np.float32), *eps)
! right as far as float32 goes
""",
)


def logsumexp(x):
    """log(sum(exp(x))) of each row of x [R, C]: an array [R]. Right for numbers of any size."""
    largest = x.max(axis=1)
    return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))


LOGSUMEXP = Exercise(
    "05.5",
    "A logarithm that does not overflow",
    "Write `logsumexp(x)`: `log(sum(exp(x)))` of each row of the array `x` [R, C], as an array [R]. It must be "
    "right for rows such as `[1000, 1000]` and `[-1000, -1000]` in the same array.",
    minutes=6,
    difficulty=2,
    solution=logsumexp,
    hints=(
        "First factor out the largest number m of the row: the sum of e**x is e**m times the sum of e**(x - m). "
        "What is the logarithm of that?",
        "`m + log(sum(exp(x - m)))`: no exponent is above 0, and at least one is 0, so the sum is between 1 "
        "and C. Each row has its own m.",
        "`m = x.max(axis=1)`; to subtract it from the rows write `m[:, None]`, and to add it to the sums write `m`.",
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
        r"""
@ return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))
overflow
+ return np.log(np.exp(x).sum(axis=1))
! e**1000 is beyond the largest float, so it becomes inf (and e**-1000 becomes 0, whose logarithm is -inf).
not put back (2)
+ return np.log(np.exp(x - largest[:, None]).sum(axis=1))
! Add back what you factored out: the logarithm of e**m is m.
largest in a row (3)
+ return largest + np.log(np.exp(x - largest).sum(axis=1))
! `x - m` aligns the m, one per row, with the columns: turn m into a column with `m[:, None]` or `keepdims=True`.
a column (3)
+ return (largest + np.log(np.exp(x - largest[:, None]).sum(axis=1)))[:, None]
! The numbers are right, but the shape is not: return the shape [R], without the kept axis.
the largest alone (2)
+ return largest
! Nearly, but the other numbers in the row count too: two equal numbers add log(2).

@ largest = x.max(axis=1)
@ return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))
one m for all rows (3)
+ largest = x.max()
+ return largest + np.log(np.exp(x - largest).sum(axis=1))
! The largest number of the whole array is far above the second row, whose sum then rounds to 0. Each row needs its own
! maximum.
down the columns (3)
+ largest = x.max(axis=0)
+ return largest + np.log(np.exp(x - largest).sum(axis=0))
! That goes down the columns. To go along each row, use `axis=1`.

@ largest = x.max(axis=1)
first taken out
+ largest = x[:, 0]
! The first number of a row need not be its largest: a number 1000 above it overflows.
largest size taken out
+ largest = np.abs(x).max(axis=1)
! In a row such as [-1000, -1000] the largest number is -1000. If you subtract its size, 1000, you get -2000, and the
! sum rounds to 0.
mean taken out
+ largest = x.mean(axis=1)
! It is not enough to factor out the mean: in a row such as [1000, -1000, 0] the largest number is still 1000 above it
! and overflows.
""",
    ),
    run=_quietly,
    also_right=r"""
# by logaddexp
lambda x: np.logaddexp.reduce(x, axis=1)
""",
    also_wrong=r"""
# logsumexp that spoils x
- largest = x.max(axis=1)
- return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))
+ largest = x.max(axis=1)
+ x -= largest[:, None]
+ return largest + np.log(np.exp(x).sum(axis=1))
! new numbers in what it was given
# in the dtype of x
lambda x: np.logaddexp.reduce(x, axis=1).astype(x.dtype)
# a little more than the sum
lambda x: x.max(1) + np.log(np.exp(x - x.max(1, keepdims=True)).sum(1) + 1e-6)
# in long doubles
lambda x: np.log(np.exp(x.astype(np.longdouble)).sum(axis=1))
""",
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
    "Write `cross_entropy_backward(logits, targets)`: the gradient of the **mean** over N rows of "
    "`-log(softmax(logits)[target])`, for `logits` [N, C]. `targets` [N] contains integers: the column of the "
    "right answer in each row. Logits may be as large as 1000.",
    minutes=8,
    difficulty=2,
    solution=cross_entropy_backward,
    hints=(
        "There are two steps: compute the probabilities of each row (subtract its largest logit first), then "
        "subtract 1 at each right answer.",
        "To reach one element of each row: `slope[np.arange(len(targets)), targets] -= 1`.",
        "The loss is a mean over N rows, so each row counts for one N-th: `/ len(targets)`.",
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
        r"""
@ return slope / len(targets)
not the mean (3)
+ return slope
! That is the gradient of the sum over the rows. The gradient of the mean is N times smaller. Without the division,
! twice the batch means twice the step.
mean over everything (3)
+ return slope / slope.size
! The mean is over the N rows, not over all N times C numbers.
turned around
+ return -slope / len(targets)
! The sign is wrong: the loss falls when the right logit rises, so its gradient is negative, p - 1.
the right answers alone
+ return (np.arange(slope.shape[1]) == targets[:, None]) * slope / len(targets)
! The right answers have the right gradient. The other logits have a gradient too: their p, which pushes them down.

@ slope[np.arange(len(targets)), targets] -= 1
right answer forgotten (2)
+ pass
! Those are the probabilities. In each row, subtract 1 at the right answer, or no logit would ever be pushed up.
the columns of all targets (2)
+ slope[:, targets] -= 1
! `[:, targets]` selects these columns in *every* row. Select the rows too: `np.arange(len(targets))`.

@ powers = np.exp(logits - logits.max(axis=1, keepdims=True))
overflow
+ powers = np.exp(logits)
! A logit of 1000 overflows: inf / inf is nan. Subtract the largest logit of the row before exp.
clipped
+ powers = np.exp(np.clip(logits, -500, 500))
! Nothing overflows, but after clipping to the same limit, 1000 and 999 are equal. In fact one is e times as likely as
! the other. Subtract the largest logit of the row before exp.
largest size
+ powers = np.exp(logits - np.abs(logits).max(axis=1, keepdims=True))
! In the row [-1000, -999] the largest number is -999. If you subtract its size, you get about -2000, and every power
! rounds to 0: 0 / 0 is nan.
largest of all
+ powers = np.exp(logits - logits.max())
! The largest number of the whole array is 1000 above the other rows, whose powers all round to 0: 0 / 0 is nan.
! Subtract the largest number of each row.
""",
    ),
    run=_quietly,
    also_right=r"""
# cross entropy with one hot
lambda logits, targets: (T.softmax(T.Tensor(logits)).data - np.eye(logits.shape[1])[targets]) / len(targets)
""",
    also_wrong=r"""
# cross entropy that spoils the logits
- powers = np.exp(logits - logits.max(axis=1, keepdims=True))
+ logits -= logits.max(axis=1, keepdims=True)
+ powers = np.exp(logits)
! new numbers in what it was given
""",
)


def root_or_zero(x):
    """sqrt(x) where x > 0, else 0, of a Tensor; its gradient is 0 where x is not positive."""
    safe = T.where(x > 0, x, 1.0)
    return T.where(x > 0, T.sqrt(safe), 0.0)


def _value_and_gradient(function, numbers):
    """The result, its gradient, and whether any number of either pass was infinite or nan."""
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
    zeros = f"{on_the_way}, {np.sum(out.data == 0)} zeros in the result"  # exact zeros: 1e-15 would show as 0
    return {"result": out.data.tolist(), "gradient": gradient, "on the way": Told(zeros)}


TWO_WHERES = Exercise(
    "05.7",
    "Two wheres",
    "Repair it: write `root_or_zero(x)` for a Tensor `x`. It returns the root where `x > 0`, however small, and 0 "
    "elsewhere; its gradient is 0 where x is not positive. Use `T.where` and `T.sqrt`, and add nothing to x. No "
    "intermediate result of the forward or backward pass may be infinite or nan.",
    minutes=5,
    difficulty=2,
    solution=root_or_zero,
    hints=(
        "The nan comes from sqrt's backward at 0, whatever follows later. So sqrt must never get a 0: what could "
        "it get there instead?",
        "Use two wheres: one *before* the root replaces every number that is not positive by a harmless one, and "
        "one after the root puts the 0 there.",
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
        r"""
@ return T.where(x > 0, T.sqrt(safe), 0.0)
the outer where alone
+ return T.where(x > 0, T.sqrt(x), 0.0)
! The where passes the gradient 0 to the root that it did not pick, and the root multiplies it by its slope, which is
! not finite: 0 * inf is nan.
the inner where alone (2)
+ return T.sqrt(safe)
! The gradient is healthy now. But the result is the root of the harmless number: you need a second where to put the 0
! there.
a little more (2)
+ return T.sqrt(T.maximum(x, 0.0) + 1e-8)
! If you add something inside the root, every result changes: the root of 0 + 1e-8 is 1e-4. (Many programs do this.)
clipped from below (2)
+ return T.where(x > 0, T.sqrt(T.clip(x, 1e-12, None)), 0.0)
! A number between 0 and the limit of the clip is positive too, so it has its own root and a steep slope. The clip gives
! it the root of the limit, and no gradient. Test `x > 0`, and put a harmless number where it is false.
maximum inside
+ return T.sqrt(T.maximum(x, 0.0))
! The root still gets a 0, where its slope is infinite, and maximum shares the gradient at a tie, so x gets half of
! infinity.
cut off (2)
+ return T.Tensor(np.where(x.data > 0, np.sqrt(np.maximum(x.data, 0)), 0), requires_grad=True)
! The result is not connected to x (a NumPy array, a new Tensor and `detach` all cut the graph), so x gets no gradient
! at all. Use only T.where and T.sqrt.

a zero inside (2)
- safe = T.where(x > 0, x, 1.0)
- return T.where(x > 0, T.sqrt(safe), 0.0)
+ safe = T.where(x > 0, x, 0.0)
+ return T.sqrt(safe)
! The numbers are right, since the root of 0 is 0 and where's own rule filters the gradient. But in the backward pass,
! sqrt got a 0 and made an infinity, and only luck stopped it there. Give sqrt a harmless number such as 1, and put the
! 0 in after it.
""",
    ),
    run=_value_and_gradient,
    explain="T.safe_sqrt does this with one rule. `T.sqrt(T.where(x > 0, x, 0.0))` would give the same numbers: "
    "where's own rule, np.where(condition, g, 0), filters out an infinity, while a multiplication by 0 would turn "
    "it into nan. Two wheres never produce an infinity, and they work for any function.",
    also_right=r"""
# root with the kits own
lambda x: T.safe_sqrt(x)
# a 1 in place of the others
lambda x: T.sqrt(T.where(x > 0, x, 1.0)) * (x > 0)
""",
    also_wrong=r"""
# a tiny number inside
lambda x: T.sqrt(T.where(x > 0, x, 1e-30))
! 0 zeros in the result
# by NumPy
lambda x: np.sqrt(x)
! raised TypeError: np.sqrt got a Tensor
# an array
lambda x: np.sqrt(np.maximum(x.data, 0))
! x gets no gradient at all
# cut off
lambda x: T.sqrt(T.relu(x.detach()))
! x gets no gradient at all
# a Tensor of its own
lambda x: T.Tensor(np.sqrt(np.maximum(x.data, 0)))
! x gets no gradient at all
# tiny numbers as 0
lambda x: root_or_zero(T.where(x > 1e-16, x, 0.0))
""",
)


def pow_backward(g, base, exponent):
    """(gradient of base, gradient of exponent) for out = base ** exponent. Arrays of one shape."""
    out = base**exponent
    for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
    is_hole = (base == 0) & (exponent >= 0)
    for_exponent = np.where(is_hole, 0, g * out * np.log(base))
    return for_base, for_exponent


POWER = Exercise(
    "05.8",
    "A power, with both gradients",
    "`out = base ** exponent`, arrays of one shape. Write `pow_backward(g, base, exponent)`: the gradients of "
    "both, as a tuple. The formulas are `exponent * base**(exponent - 1)` and `out * log(base)`, each times g. Two "
    "edges need a decision. Decide as torch does: the gradient of the base is 0 where the exponent is 0, and the "
    "gradient of the exponent is 0 where the base is 0 and the exponent is not negative.",
    minutes=10,
    difficulty=3,
    solution=pow_backward,
    hints=(
        "Write the two formulas first, with `np.log`. Then look at base 0: 0 * 0**-1 is 0 * inf, and 0 * log(0) "
        "is 0 * -inf. Both are nan.",
        "`np.where(condition, 0, formula)` handles an edge. In NumPy that is enough, because nothing "
        "differentiates it again. The first condition is `exponent == 0`.",
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
    mistakes=slips(
        pow_backward,
        r"""
formulas alone (2)
- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
- is_hole = (base == 0) & (exponent >= 0)
+ for_base = np.where(False, 0, g * exponent * base ** (exponent - 1))
+ is_hole = False
! The formulas are right, but the edges are missing: at base 0 they multiply 0 by an infinity.

@ is_hole = (base == 0) & (exponent >= 0)
one hole left (3)
+ is_hole = False
! The first edge is right. The gradient of the exponent has an edge too: 0 ** b times log(0), for b of 0 or more.
too small a patch (3)
+ is_hole = (base == 0) & (exponent > 0)
! 0 ** 0 belongs to the second edge too: the exponent may be 0 *or* more, `>=`.
too large a patch (3)
+ is_hole = (base == 0)
! Your second condition covers too much: with a negative exponent, 0 ** -1 is inf, and its slopes are infinite, not 0.
nearly 0 (3)
+ is_hole = (abs(base) < 1e-6) & (exponent >= 0)
! Your second condition covers too much: where the base is small but not 0, the formula multiplies nothing by an
! infinity, so it is right.

@ for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
the other hole left (2)
+ for_base = np.where(False, 0, g * exponent * base ** (exponent - 1))
! The gradient of the exponent is right. The gradient of the base has an edge where the exponent is 0: 0 * 0 ** -1 is 0
! * inf.
size of the base
+ for_base = np.where(exponent == 0, 0, g * exponent * abs(base) ** (exponent - 1))
! A negative base can have a negative slope: (-2) ** 2 has the slope -4. Do not take abs.

swapped
- return for_base, for_exponent
+ return for_exponent, for_base
! The two are swapped: return first the gradient of the base, then the gradient of the exponent.
g forgotten
- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
+ for_base = np.where(exponent == 0, 0, exponent * base ** (exponent - 1))
- for_exponent = np.where(is_hole, 0, g * out * np.log(base))
+ for_exponent = np.where(is_hole, 0, out * np.log(base))
! Those are the slopes of the power itself. Multiply each by g.
logarithm of the exponent
- for_exponent = np.where(is_hole, 0, g * out * np.log(base))
+ for_exponent = np.where(is_hole, 0, g * out * np.log(exponent))
! a ** b is e ** (b * log(a)): the logarithm is that of the base.
every nan to 0 (2)
- out = base**exponent
- for_base = np.where(exponent == 0, 0, g * exponent * base ** (exponent - 1))
- is_hole = (base == 0) & (exponent >= 0)
- for_exponent = np.where(is_hole, 0, g * out * np.log(base))
- return for_base, for_exponent
+ slopes = g * exponent * base ** (exponent - 1), g * base**exponent * np.log(base)
+ return tuple(np.where(np.isnan(slope), 0, slope) for slope in slopes)
! If you turn every nan into 0, you hide the honest ones: the exponent of a negative base has no slope, and the nan says
! so.
""",
    ),
    run=_quietly,
    also_wrong=r"""
# without edges
lambda g, base, exponent: g * exponent * base ** (exponent - 1)
""",
)
