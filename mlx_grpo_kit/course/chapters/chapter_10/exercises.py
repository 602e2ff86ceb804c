"""Exercises of notebook 10: the parts of a transformer that look at one token at a time, and its positions."""

from __future__ import annotations

import numpy as np

from mlx_grpo_kit.course.compare import Told, same
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx


def _normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def _with_gradients(solution, *differentiated):
    """Run a function through which gradients must pass to the arguments at the positions `differentiated`."""

    def loss(function, arguments):
        result = function(*arguments)
        return (result * mx.sin(1 + mx.arange(result.size).reshape(result.shape))).sum()

    def gradients(function, arguments):
        return mx.grad(lambda *arguments: loss(function, arguments), argnums=list(differentiated))(*arguments)

    def run(function, *arguments):
        result = function(*arguments)
        if result is None or function is solution:
            return result
        expected = solution(*arguments)
        if not isinstance(result, mx.array):
            if hasattr(result, "shape") or isinstance(result, (list, tuple)):
                kind = f"{type(result).__module__}.{type(result).__name__}".removeprefix("builtins.")
                return Told(f"a {kind} (gradients cannot pass through it: use only mx)")
            return result
        if not same(result, expected):
            return result
        slopes = gradients(function, arguments)
        if any(mx.any(mx.isnan(slope)).item() for slope in slopes):
            return Told("the right numbers, but a gradient of nan (the backward pass computes inf - inf or inf * 0)")
        if not all(map(same, slopes, gradients(solution, arguments))):
            return Told("the right numbers, but cut off from the arguments (no gradient can pass through: use only mx)")
        return result

    return run


def embedding(weight, input_ids):
    """Rows of weight [V, hidden] for ids [B, T]: [B, T, hidden]."""
    return weight[input_ids]


def _without_grad(function, *arguments):
    """Run a function that must compute a gradient without `mx.grad`."""

    def refuse(*_, **__):
        raise RuntimeError("do not use mx.grad here: write the rule")

    kept = {name: getattr(mx, name) for name in ("grad", "value_and_grad", "vjp")}
    try:
        for name in kept:
            setattr(mx, name, refuse)
        return function(*arguments)
    finally:
        for name, own in kept.items():
            setattr(mx, name, own)


def _table(rng):
    rows, hidden, batch, tokens = (int(n) for n in rng.integers((2, 1, 1, 1), (7, 5, 4, 6)))
    return _normal(rng, rows, hidden), mx.array(rng.integers(0, rows, (batch, tokens)))


EMBEDDING = Exercise(
    "10.1",
    "Vectors for ids",
    "Write `embedding(weight, input_ids)`. For ids [B, T] it returns the rows of `weight` [V, hidden] with these "
    "numbers, as an array [B, T, hidden]. Write it in MLX, so that gradients can flow through it.",
    minutes=4,
    difficulty=1,
    solution=embedding,
    hints=(
        "MLX indexes as NumPy does. `weight[3]` is row 3. What is `weight[ids]` if `ids` is an array of integers?",
        "If the index is an array of integers of shape [B, T], the result has one row for each integer: [B, T, "
        "hidden].",
        "`return weight[input_ids]`",
    ),
    cases=(
        (mx.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]]), mx.array([[2, 0, 2]])),
        (mx.array([[0.5, 1.0], [2.0, 3.0]]), mx.array([[1, 0], [1, 1]])),
        (mx.array([[0.25]]), mx.array([[0]])),
        *drawn(3, _table),
    ),
    mistakes=slips(
        embedding,
        r"""
@ return weight[input_ids]
columns (2)
+ return weight[:, input_ids % weight.shape[1]]
! `[:, ids]` takes columns. A token's vector is a row: `weight[ids]`.
one after the other (2)
+ return weight[input_ids.reshape(-1)]
! The rows are right, but in one long list. Each row of the batch keeps its own rows: the shape is [B, T, hidden].
first row only (2)
+ return weight[input_ids[0]]
! That is only the first row of the batch.
counted from 1
+ return weight[input_ids - 1]
! Ids count from 0, as rows do.
ids as numbers
+ return input_ids[:, :, None] * weight[0]
! An id is a name, not an amount: token 6 is not twice token 3. Take row 6.
""",
    ),
    run=_with_gradients(embedding, 0),
    also_right=r"""
import mlx_grpo_kit.qwen3.forward as kit

# embedding by take
lambda weight, input_ids: mx.take(weight, input_ids, axis=0)
# embedding by one hot
lambda weight, input_ids: (input_ids[..., None] == mx.arange(weight.shape[0])).astype(weight.dtype) @ weight
# embedding by loops
lambda weight, input_ids: mx.stack([mx.stack([weight[i] for i in row]) for row in input_ids.tolist()])
# the kit's
kit.embedding
""",
    also_wrong=r"""
# summed
lambda weight, ids: weight[ids].sum(axis=1)
# through NumPy
lambda weight, ids: mx.array(np.array(weight)[np.array(ids)])
! cut off
""",
)


def embedding_backward(grad, input_ids, num_rows):
    """The gradient [num_rows, hidden] of weight, from the gradient of the rows, [B, T, hidden]."""
    zeros = mx.zeros((num_rows, grad.shape[-1]))
    return zeros.at[input_ids].add(grad)


def _gradient_of_rows(rng):
    rows, hidden, batch, tokens = (int(n) for n in rng.integers((2, 1, 1, 2), (5, 4, 4, 7)))
    return _normal(rng, batch, tokens, hidden), mx.array(rng.integers(0, rows, (batch, tokens))), rows


EMBEDDING_BACKWARD = Exercise(
    "10.2",
    "Back into the table",
    "Write `embedding_backward(grad, input_ids, num_rows)`: `grad` [B, T, hidden] is the gradient of the loss with "
    "respect to the vectors that `embedding(weight, input_ids)` returned. What is the gradient of `weight`, "
    "[num_rows, hidden]? Do not use `mx.grad` here: write the rule.",
    minutes=8,
    difficulty=2,
    solution=embedding_backward,
    hints=(
        "A row that was used twice has two paths to the loss. What have we done with the gradients of several paths "
        "ever since chapter 02? And what is the gradient of a row that was never used?",
        "Begin with `mx.zeros((num_rows, hidden))`. `zeros[ids] += grad` looks right but is wrong, because where an "
        "id comes twice, one addition hides the other, as in chapter 08. In MLX the correct form is "
        "`array.at[ids].add(values)`.",
        "`mx.zeros((num_rows, grad.shape[-1])).at[input_ids].add(grad)`",
    ),
    cases=(
        (mx.array([[[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]]), mx.array([[2, 0, 2]]), 3),
        (mx.array([[[0.5], [1.5]], [[2.5], [-1.0]]]), mx.array([[1, 1], [1, 0]]), 4),
        (mx.array([[[0.5, -0.25]]]), mx.array([[1]]), 2),
        *drawn(3, _gradient_of_rows),
    ),
    mistakes=slips(
        embedding_backward,
        r"""
@ return zeros.at[input_ids].add(grad)
the last one stays
+ zeros[input_ids] = grad
+ return zeros
! A row that was used several times has the gradient of only one use: all of them have to add up.
the mean of all
+ counts = mx.zeros((num_rows, 1)).at[input_ids].add(mx.ones((*input_ids.shape, 1)))
+ return zeros.at[input_ids].add(grad) / mx.maximum(counts, 1)
! Those are means. Two paths to the loss count twice as much as one: add, and do not divide.
the largest
+ return zeros.at[input_ids].maximum(grad)
! Here one of a row's gradients replaces the others. All of them count: add them.
looked up
+ return grad.reshape(-1, grad.shape[-1])[input_ids % len(grad)]
! That reads rows at the ids. The backward pass goes the other way: a gradient is written to the row at its id.

one too many (2)
- zeros = mx.zeros((num_rows, grad.shape[-1]))
+ zeros = mx.zeros((num_rows + 1, grad.shape[-1]))
! The gradient has the shape of the matrix: num_rows rows.
""",
    ),
    run=_without_grad,
    explain=(
        "`mx.grad` gives the same result. A row that no text of the batch uses has gradient 0 and does not change "
        "(unless the optimizer changes it for other reasons, such as weight decay)."
    ),
    also_right=r"""
# backward by one hot
def backward_by_one_hot(grad, input_ids, num_rows):
    one_hot = (input_ids.reshape(-1)[:, None] == mx.arange(num_rows)).astype(grad.dtype)
    return one_hot.T @ grad.reshape(-1, grad.shape[-1])
# backward in numpy
def backward_in_numpy(grad, input_ids, num_rows):
    out = np.zeros((num_rows, grad.shape[-1]))
    np.add.at(out, np.array(input_ids), np.array(grad))
    return out
# backward by loops
def backward_by_loops(grad, input_ids, num_rows):
    out = [[0.0] * grad.shape[-1] for _ in range(num_rows)]
    for ids, row in zip(input_ids.tolist(), grad.tolist(), strict=True):
        for each, vector in zip(ids, row, strict=True):
            out[each] = [a + b for a, b in zip(out[each], vector, strict=True)]
    return np.array(out)
""",
    also_wrong=r"""
# by mx grad
def by_mx_grad(grad, input_ids, num_rows):
    return mx.grad(lambda weight: (weight[input_ids] * grad).sum())(mx.zeros((num_rows, grad.shape[-1])))
! do not use mx.grad here: write the rule
# zeros
lambda grad, ids, rows: mx.zeros((rows, grad.shape[-1]))
""",
)


BY_HAND = Exercise(
    "10.3",
    "Three numbers, by hand",
    "Without code, compute the RMSNorm of `x = [1, -5, 7]` with `weight = [10, 1, 0.5]` and an eps of 0. Answer with "
    "a tuple of three numbers.",
    minutes=3,
    difficulty=1,
    solution=(2.0, -1.0, 0.7),
    hints=(
        "There are three steps: the mean of the squares, its root, and each number divided by the root. The weights "
        "come last.",
        "1 + 25 + 49 = 75, a third of that is 25, and the square root of 25 is 5.",
    ),
    mistakes=(
        Mistake(
            "weights left out",
            (0.2, -1.0, 1.4),
            "That is x / 5, which is right so far. Now multiply each number by its weight.",
            1,
        ),
        Mistake("no root", (0.4, -0.2, 0.14), "You divided by 25, the mean of the squares: take its root first.", 1),
        Mistake("signs lost", (2.0, 1.0, 0.7), "Squares are positive, but x itself keeps its sign.", 1),
        Mistake("ten times x", (10.0, -5.0, 3.5), "That is x times the weights. The division is missing.", 1),
    ),
    explain="[10, -50, 70] gives the same three numbers: a norm removes the size.",
    also_right=r"""
import numpy as np

# a list
[2, -1, 0.7]
# an array
np.array([2, -1, 0.7])
""",
    also_wrong=r"""
# a 7
(2, -1, 7)
! 2 of the 3 are right
""",
)


def rms_norm(x, weight, eps):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis. x [..., n], weight [n]."""
    mean_square = mx.mean(x * x, axis=-1, keepdims=True)
    return x / mx.sqrt(mean_square + eps) * weight


def _rows_and_weight(rng):
    shape = tuple(int(n) for n in rng.integers(1, 5, size=int(rng.integers(1, 4))))
    return _normal(rng, *shape), _normal(rng, shape[-1]), float(rng.uniform(0.1, 1))


RMS_NORM = Exercise(
    "10.4",
    "RMSNorm",
    "Write `rms_norm(x, weight, eps)` in MLX: divide every vector along the last axis of `x` [..., n] by `sqrt(mean "
    "of its squares + eps)`, and multiply it by `weight` [n]. A vector of zeros must stay a vector of zeros, without "
    "a nan in the gradient. `mx.fast.rms_norm` exists, but write it out for once.",
    minutes=7,
    difficulty=1,
    solution=rms_norm,
    hints=(
        "`mx.mean(x * x, axis=-1, keepdims=True)` has one number per vector, in an axis of length 1 that broadcasts "
        "over x.",
        "eps is added to the mean, under the root: `mx.sqrt(mean_square + eps)`. The weights come last.",
        "`return x / mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps) * weight`",
    ),
    cases=(
        (mx.array([1.0, -5.0, 7.0]), mx.array([10.0, 1.0, 0.5]), 1e-6),
        (mx.array([[3.0, 4.0], [0.3, 0.4]]), mx.array([1.0, 2.0]), 0.25),
        (mx.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]), mx.array([1.0, 2.0, 3.0]), 0.01),
        (mx.array([[[2.0]], [[-0.5]]]), mx.array([3.0]), 0.5),
        *drawn(4, _rows_and_weight),
    ),
    mistakes=slips(
        rms_norm,
        r'''
@ return x / mx.sqrt(mean_square + eps) * weight
eps outside of the root (2)
+ return x / (mx.sqrt(mean_square) + eps) * weight
! eps is outside the root. Inside, an eps of 1e-6 counts like numbers of size 1e-3; outside, like numbers of size 1e-6.
! The difference is small, but it is a different model.
eps times the weight (2)
+ return x / mx.sqrt(mean_square) * weight + eps
! eps is added to the result. It belongs under the root, added to the mean.
eps left out (2)
+ return x / mx.sqrt(mean_square) * weight
! Without eps a vector of zeros becomes 0 / 0, nan, and small vectors are not kept small.
eps of its own (2)
+ return x / mx.sqrt(mean_square + 1e-6) * weight
! eps was ignored: 1e-6 is Qwen3's value, and other models have other values.
no root
+ return x / (mean_square + eps) * weight
! The root is missing.
no weight (2)
+ return x / mx.sqrt(mean_square + eps)
! The weights are missing: each of the n numbers has one.

layer norm
  """x / sqrt(mean(x^2) + eps) * weight over the last axis. x [..., n], weight [n]."""
+ x = x - mx.mean(x, axis=-1, keepdims=True)
! The mean was subtracted first: that is layer norm. RMSNorm does not subtract it.

@ mean_square = mx.mean(x * x, axis=-1, keepdims=True)
the standard deviation
+ mean_square = mx.var(x, axis=-1, keepdims=True)
! `mx.var` measures distances from the mean. RMSNorm measures from 0: the mean of the squares themselves.
the sum
+ mean_square = mx.sum(x * x, axis=-1, keepdims=True)
! That is the sum of the squares: the results would shrink as vectors get longer. Take the mean.
over everything
+ mean_square = mx.mean(x * x)
! That is one mean for the whole array: the tokens of a text would change each other. Each vector has its own, axis=-1.
over the first axis
+ mean_square = mx.mean(x * x, axis=0, keepdims=True)
! The mean is taken along the first axis, over different tokens. Take it along the last axis.

weight first (2)
  """x / sqrt(mean(x^2) + eps) * weight over the last axis. x [..., n], weight [n]."""
+ x = x * weight
- return x / mx.sqrt(mean_square + eps) * weight
+ return x / mx.sqrt(mean_square + eps)
! The weights were multiplied in before the norm, and the norm partly divides by them again. They come last.
''',
    ),
    run=_with_gradients(rms_norm, 0, 1),
    explain="The kit calls `mx.fast.rms_norm`, which is one kernel in place of five, with the same results as yours.",
    also_right=r"""
import mlx_grpo_kit.qwen3.forward as kit

# rms by rsqrt
lambda x, weight, eps: weight * (x * mx.rsqrt(mx.square(x).mean(-1, keepdims=True) + eps))
# rms by einsum
def rms_by_einsum(x, weight, eps):
    squares = mx.einsum("...n,...n->...", x, x) / x.shape[-1]
    return x * weight * ((squares + eps) ** -0.5)[..., None]
# MLX's kernel
mx.fast.rms_norm
# the kit's
kit.rms_norm
""",
    also_wrong=r"""
# rms by linalg
lambda x, weight, eps: x * weight / mx.sqrt(mx.linalg.norm(x, axis=-1, keepdims=True) ** 2 / x.shape[-1] + eps)
! a gradient of nan
# MLX's kernel with an eps of its own
lambda x, weight, eps: mx.fast.rms_norm(x, weight, 1e-6)
! eps was ignored
# cut off
lambda x, weight, eps: mx.array(np.array(rms_norm(x, weight, eps)))
! cut off from the arguments
# no gradient through the root
def no_gradient_through_the_root(x, weight, eps):
    root = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
    return x / mx.stop_gradient(root) * weight
! cut off from the arguments
# in place
def in_place(x, weight, eps):
    x /= mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
    x *= weight
    return x
! also new numbers in what it was given
# rms in numpy
lambda x, weight, eps: np.array(rms_norm(x, weight, eps))
! gradients cannot pass through it: use only mx
# MLX's layer norm
lambda x, weight, eps: mx.fast.layer_norm(x, weight, None, eps)
! that is layer norm
""",
)


def mlp(x, gate_weight, up_weight, down_weight):
    """SwiGLU: down(silu(gate(x)) * up(x)), [..., hidden] -> [..., hidden]."""
    gate = x @ gate_weight.T
    up = x @ up_weight.T
    return (gate * mx.sigmoid(gate) * up) @ down_weight.T


def _weights(rng, square=False):
    hidden, inner = (3, 3) if square else (int(n) for n in rng.integers(1, 6, size=2))
    shape = tuple(int(n) for n in rng.integers(1, 4, size=2))
    return (
        _normal(rng, *shape, hidden),
        _normal(rng, inner, hidden),
        _normal(rng, inner, hidden),
        _normal(rng, hidden, inner),
    )


MLP = Exercise(
    "10.5",
    "SwiGLU",
    "Write `mlp(x, gate_weight, up_weight, down_weight)` in MLX: `down(silu(gate(x)) * up(x))`, with `silu(z) = z * "
    "sigmoid(z)`. `gate_weight` and `up_weight` are [intermediate, hidden], and `down_weight` is [hidden, "
    "intermediate]; each is a linear map as above, without bias. Gates may be as large as ±500, and nothing may "
    "become nan, forward or backward. (`mx.sigmoid` takes care of that.)",
    minutes=8,
    difficulty=2,
    solution=mlp,
    hints=(
        "There are three linear maps, each `x @ weight.T`. Two of them start from the same x.",
        "`mx.sigmoid` is correct for numbers of any size. Apply silu to the gate, before the two are multiplied "
        "element by element.",
        "`gate, up = x @ gate_weight.T, x @ up_weight.T`, then `(gate * mx.sigmoid(gate) * up) @ down_weight.T`.",
    ),
    cases=(
        (mx.array([[1.0, 2.0]]), mx.array([[1.0, 0.5]]), mx.array([[0.25, -1.0]]), mx.array([[1.0], [3.0]])),
        (mx.array([[[-500.0], [500.0]]]), mx.array([[1.0], [-1.0]]), mx.array([[0.5], [0.25]]), mx.array([[1.0, 2.0]])),
        *drawn(3, _weights),
        *drawn(2, lambda rng: _weights(rng, square=True), seed=1),
    ),
    mistakes=slips(
        mlp,
        r"""
@ return (gate * mx.sigmoid(gate) * up) @ down_weight.T
x added
+ return x + (gate * mx.sigmoid(gate) * up) @ down_weight.T
! x itself is added. The shortcut goes around the whole part and does not belong inside the MLP.
silu on both (2)
+ return (gate * mx.sigmoid(gate) * up * mx.sigmoid(up)) @ down_weight.T
! silu is applied to both branches. `up` has no silu.
gate and up swapped (2)
+ return (up * mx.sigmoid(up) * gate) @ down_weight.T
! silu is applied to the wrong branch: it belongs to the gate. (Their shapes are the same, so a swap raises no error.)
sigmoid for silu (2)
+ return (mx.sigmoid(gate) * up) @ down_weight.T
! That is the sigmoid, the gate of the original GLU. silu is z * sigmoid(z).
relu for silu (2)
+ return (mx.maximum(gate, 0) * up) @ down_weight.T
! That is relu on the gate (ReGLU). silu is z * sigmoid(z), which is soft around 0.
added (2)
+ return (gate * mx.sigmoid(gate) + up) @ down_weight.T
! The two branches are added. A gate multiplies.
silu over both (2)
+ return (gate * up * mx.sigmoid(gate * up)) @ down_weight.T
! silu is applied to the product. Apply it to the gate alone, before the multiplication by up.
no up
+ return (gate * mx.sigmoid(gate)) @ down_weight.T
! up is missing, so the gate has nothing to let through.
no silu (2)
+ return (gate * up) @ down_weight.T
! silu is missing: gate and up are multiplied raw.
overflow (2)
+ return (gate * mx.exp(gate) / (1 + mx.exp(gate)) * up) @ down_weight.T
! e**500 is inf, and inf / inf is nan. `mx.sigmoid(z)` has no such problem, forward or backward.

not transposed
- gate = x @ gate_weight.T
- up = x @ up_weight.T
- return (gate * mx.sigmoid(gate) * up) @ down_weight.T
+ gate = x @ gate_weight
+ up = x @ up_weight
+ return (gate * mx.sigmoid(gate) * up) @ down_weight
! The weights have the layout [out, in], as in torch: `x @ weight.T`. (Where a matrix is square, nothing complains.)
""",
    ),
    run=_with_gradients(mlp, 0, 1, 2, 3),
    explain=(
        "The kit computes silu(gate) * up with its own gradient rule (`gated_silu` in qwen3/kernels.py), which is "
        "faster on a CPU and keeps one array less."
    ),
    also_right=r"""
import mlx_grpo_kit.qwen3.forward as kit

# mlp by einsum
def mlp_by_einsum(x, gate_weight, up_weight, down_weight):
    gate = mx.einsum("bth,ih->bti" if x.ndim == 3 else "th,ih->ti", x, gate_weight)
    return mx.matmul(gate * mx.sigmoid(gate) * (x @ up_weight.T), mx.transpose(down_weight))
# the kit's
kit.mlp
""",
    also_wrong=r"""
def silu(z):
    return z / (1 + mx.exp(-z))

# nan on the way back
lambda x, gate_weight, up_weight, down_weight: (silu(x @ gate_weight.T) * (x @ up_weight.T)) @ down_weight.T
! a gradient of nan
# clipped gate
def clipped_gate(x, gate_weight, up_weight, down_weight):
    gate = mx.clip(x @ gate_weight.T, -50, 50)
    return (silu(gate) * (x @ up_weight.T)) @ down_weight.T
""",
)


def rotate(a, b, angle):
    """The point (a, b), rotated by `angle` radians counterclockwise: a tuple of two arrays."""
    return a * mx.cos(angle) - b * mx.sin(angle), a * mx.sin(angle) + b * mx.cos(angle)


def _two_arrays(function, *arguments):
    """Accept one array that holds both results as a tuple of two."""
    turned = function(*arguments)
    return tuple(turned) if getattr(turned, "shape", ())[:1] == (2,) else turned


ROTATE = Exercise(
    "10.6",
    "Rotate one pair",
    "Write `rotate(a, b, angle)`, which rotates the point (a, b) by `angle` (radians, counterclockwise) about the "
    "origin and returns a tuple of two arrays. All three inputs are arrays of the same shape, and each pair is "
    "rotated by its own angle.",
    minutes=5,
    difficulty=1,
    solution=rotate,
    hints=(
        "Where do (1, 0) and (0, 1) go? (1, 0) goes to (cos, sin), and (0, 1) to (-sin, cos).",
        "(a, b) is a * (1, 0) + b * (0, 1): multiply the first of these results by a, the second by b, and add them.",
        "`return a * mx.cos(angle) - b * mx.sin(angle), a * mx.sin(angle) + b * mx.cos(angle)`",
    ),
    cases=(
        (mx.array([5.0, 0.0]), mx.array([0.0, 5.0]), mx.arctan2(mx.array([4.0, 4.0]), 3.0)),
        (mx.array([1.0, 2.0, -0.5]), mx.array([0.5, -1.0, 3.0]), mx.array([0.0, 0.3, -7.0])),
        *drawn(3, lambda rng: tuple(_normal(rng, 2, 3) for _ in range(3))),
    ),
    mistakes=slips(
        rotate,
        r"""
@ return a * mx.cos(angle) - b * mx.sin(angle), a * mx.sin(angle) + b * mx.cos(angle)
clockwise
+ return a * mx.cos(angle) + b * mx.sin(angle), -a * mx.sin(angle) + b * mx.cos(angle)
! That rotates clockwise: change the sign of the sine.
no rotation
+ return a * mx.cos(angle) + b * mx.sin(angle), a * mx.sin(angle) + b * mx.cos(angle)
! Both sines have a plus, so lengths change. One of them has a minus: where does (0, 1) go?
degrees
+ angle = angle * np.pi / 180
+ return a * mx.cos(angle) - b * mx.sin(angle), a * mx.sin(angle) + b * mx.cos(angle)
! The angle is already in radians: a quarter turn is pi / 2.
the new a used for b (2)
+ a = a * mx.cos(angle) - b * mx.sin(angle)
+ return a, a * mx.sin(angle) + b * mx.cos(angle)
! The second number was computed from the *new* a. Both have to come from the old a and b.
swapped (2)
+ return a * mx.sin(angle) + b * mx.cos(angle), a * mx.cos(angle) - b * mx.sin(angle)
! The two results are swapped: return the new a first, then the new b.
""",
    ),
    run=_two_arrays,
    also_right=r"""
# rotate by matrix
def rotate_by_matrix(a, b, angle):
    c, s = mx.cos(angle), mx.sin(angle)
    both = mx.stack([mx.stack([c, -s]), mx.stack([s, c])]) * mx.stack([a, b])
    return both.sum(axis=1)[0], both.sum(axis=1)[1]
# rotate as complex
def rotate_as_complex(a, b, angle):
    z = (np.array(a) + 1j * np.array(b)) * np.exp(1j * np.array(angle))
    return z.real, z.imag
# stacked
lambda a, b, angle: mx.stack(rotate(a, b, angle))
""",
    also_wrong=r"""
# unchanged
lambda a, b, angle: (a, b)
""",
)


def rope_angles(positions, head_dim, theta):
    """The angle in radians of each pair at each position: positions [T] -> [T, head_dim / 2]."""
    pairs = mx.arange(head_dim // 2)
    speeds = theta ** (-2 * pairs / head_dim)
    return positions[:, None] * speeds


ANGLES = Exercise(
    "10.7",
    "Fast hands, slow hands",
    "Write `rope_angles(positions, head_dim, theta)` in MLX: for `positions` [T] it returns the angles [T, head_dim / "
    "2]. Pair i = 0, 1, 2, ... rotates by `theta ** (-2 i / head_dim)` radians at every step, so at position p its "
    "angle is p times that.",
    minutes=5,
    difficulty=2,
    solution=rope_angles,
    hints=(
        "Compute the speeds first, one per pair: `mx.arange(head_dim // 2)` gives the i. Pair 0 always rotates by 1 "
        "radian per step.",
        "The table of all positions times all speeds is a column times a row: `positions[:, None] * speeds`.",
        "`return positions[:, None] * theta ** (-2 * mx.arange(head_dim // 2) / head_dim)`",
    ),
    cases=(
        (mx.array([0.0, 1.0, 2.0]), 4, 10000.0),
        (mx.array([3.0]), 2, 100.0),
        (mx.array([0.0, 5.0, 9.0, 2.0]), 8, 16.0),
        (mx.array([4097.0, 30001.0]), 4, 1e6),
        *drawn(
            3,
            lambda rng: (
                mx.array(rng.integers(0, 50, int(rng.integers(1, 5))).astype(np.float32)),
                2 * int(rng.integers(1, 5)),
                float(rng.uniform(2, 1000)),
            ),
        ),
    ),
    mistakes=slips(
        rope_angles,
        r"""
@ speeds = theta ** (-2 * pairs / head_dim)
half the exponent
+ speeds = theta ** (-pairs / head_dim)
! The exponent is -2 i / head_dim: with half of it the slowest hand is much too fast.
faster and faster
+ speeds = theta ** (2 * pairs / head_dim)
! The exponent is negative: pair 0 is the fastest, and all other pairs are slower.
theta of its own
+ speeds = 10000.0 ** (-2 * pairs / head_dim)
! theta was ignored. 10,000 is the usual value, and Qwen3 has 1,000,000.
head_dim halved
+ speeds = theta ** (-2 * pairs / (head_dim // 2))
! The exponent is divided by head_dim, not by the number of pairs: these speeds fall twice as fast.

@ pairs = mx.arange(head_dim // 2)
all numbers
+ pairs = mx.arange(head_dim)
! There are head_dim / 2 pairs, so there are head_dim / 2 speeds.
pairs counted from 1
+ pairs = mx.arange(1, head_dim // 2 + 1)
! Pairs count from 0: pair 0 rotates by theta ** 0 = 1 radian per step.

@ return positions[:, None] * speeds
pairs by positions (2)
+ return speeds[:, None] * positions
! The table is transposed: it needs one row per position and one column per pair.
in half precision (2)
+ return (positions[:, None] * speeds).astype(mx.bfloat16)
! Half precision has two or three digits, so position 4,097 becomes 4,096, and the angle is wrong by a radian. Compute
! angles in float32.
one step ahead
+ return (positions + 1)[:, None] * speeds
! Every angle is one step ahead: at position 0 nothing is rotated.
every angle twice (2)
+ return mx.concatenate([positions[:, None] * speeds] * 2, axis=-1)
! Every angle appears twice (transformers stores them like this). A pair has one angle: [T, head_dim / 2].

places in the list (2)
  speeds = theta ** (-2 * pairs / head_dim)
+ positions = mx.arange(len(positions))
! The rows count 0, 1, 2, ... Use the positions of the tokens in `positions`.
""",
    ),
    run=lambda function, *arguments: _of_mlx(function(*arguments)),
    also_right=r"""
import math

# angles by outer
def angles_by_outer(positions, head_dim, theta):
    return mx.outer(positions, mx.exp(-math.log(theta) * mx.arange(0, head_dim, 2) / head_dim))
""",
    also_wrong=r"""
# down to theta itself
lambda p, d, theta: p[:, None] * theta ** (-mx.arange(d // 2) / (d // 2 - 1 or 1))
# NumPy
lambda p, d, theta: np.array(rope_angles(p, d, theta))
! later cells need an mx.array
""",
)


def _of_mlx(result):
    if isinstance(result, mx.array) or not hasattr(result, "shape"):
        return result
    return Told(f"a {type(result).__module__}.{type(result).__name__} (later cells need an mx.array)")


def rope(x, offset, theta):
    """Rotate pair (x[i], x[i + D/2]) of [B, heads, T, D] by its position, offset + t."""
    half = x.shape[-1] // 2
    positions = offset + mx.arange(x.shape[2])
    angles = rope_angles(positions, x.shape[-1], theta)
    a, b = x[..., :half], x[..., half:]
    turned = a * mx.cos(angles) - b * mx.sin(angles), a * mx.sin(angles) + b * mx.cos(angles)
    return mx.concatenate(turned, axis=-1)


def _heads(rng):
    batch, heads, tokens, half = (int(n) for n in rng.integers(1, 5, size=4))
    return _normal(rng, batch, heads, tokens, 2 * half), int(rng.integers(0, 20)), float(rng.uniform(2, 1000))


ROPE = Exercise(
    "10.8",
    "RoPE",
    "Write `rope(x, offset, theta)` in MLX for `x` [B, heads, T, D]. Number i and number i + D/2 of a vector are a "
    "pair; pair i is rotated by the angle from `rope_angles`. The first of the T tokens is at position `offset`, the "
    "next at offset + 1, and so on. The result has the same shape and order as x.",
    minutes=12,
    difficulty=3,
    solution=rope,
    hints=(
        "Compute the positions first: `offset + mx.arange(T)`. Their angles are a table [T, D/2], which broadcasts "
        "over the batch and the heads.",
        "The first members of all pairs are `x[..., :half]`, the second members `x[..., half:]`: two arrays [B, "
        "heads, T, D/2], and your `rotate` rotates them all at once.",
        "`a, b = rotate(x[..., :half], x[..., half:], angles)`, and `mx.concatenate([a, b], axis=-1)` joins the "
        "halves again.",
    ),
    cases=(
        (mx.array([[[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]]]), 0, 10000.0),
        (mx.array([[[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]]]), 0, 100.0),
        (mx.array([[[[0.5, -1.0, 2.0, 0.25]]]]), 7, 10000.0),
        *drawn(4, _heads),
    ),
    mistakes=slips(
        rope,
        r"""
neighbours as pairs (2)
- a, b = x[..., :half], x[..., half:]
+ a, b = x[..., 0::2], x[..., 1::2]
- return mx.concatenate(turned, axis=-1)
+ return mx.stack(turned, axis=-1).reshape(x.shape)
! Neighbours are paired here, (0, 1), (2, 3) and so on. That is the RoPE of the paper, but not Qwen3's: its pairs are
! (i, i + D/2).
halves put back as neighbours (3)
- return mx.concatenate(turned, axis=-1)
+ return mx.stack(turned, axis=-1).reshape(x.shape)
! The pairs and their rotation are right, but the result is interleaved: as in x, all first members come first, then all
! second members.

@ positions = offset + mx.arange(x.shape[2])
offset forgotten
+ positions = mx.arange(x.shape[2])
! The first token is at position `offset`, not always at 0.
counted from 1
+ positions = offset + 1 + mx.arange(x.shape[2])
! The first token is at position `offset` itself, so with an offset of 0 it is not rotated at all.
the same for all
+ positions = offset + 0 * mx.arange(x.shape[2])
! Every token is rotated by the same angle. Token t is at position offset + t.

@ turned = a * mx.cos(angles) - b * mx.sin(angles), a * mx.sin(angles) + b * mx.cos(angles)
clockwise (2)
+ turned = a * mx.cos(angles) + b * mx.sin(angles), -a * mx.sin(angles) + b * mx.cos(angles)
! That rotates the wrong way. If queries and keys are both rotated like that, a distance of 3 counts as -3, and no
! trained model is made for that.
the new a used for b (2)
+ a = a * mx.cos(angles) - b * mx.sin(angles)
+ turned = a, a * mx.sin(angles) + b * mx.cos(angles)
! The second half was computed from the *new* first half. Both have to come from the old halves.

theta of its own
- angles = rope_angles(positions, x.shape[-1], theta)
+ angles = rope_angles(positions, x.shape[-1], 10000.0)
! theta was ignored. 10,000 is the usual value, and Qwen3 has 1,000,000.
along the heads
- positions = offset + mx.arange(x.shape[2])
- angles = rope_angles(positions, x.shape[-1], theta)
+ positions = offset + mx.arange(x.shape[1])
+ angles = mx.expand_dims(rope_angles(positions, x.shape[-1], theta), 1)
! The angle grows from head to head. Positions run along axis 2 of [B, heads, T, D].
""",
    ),
    run=_with_gradients(rope, 0),
    explain="The kit calls `mx.fast.rope(..., traditional=False)`; `traditional=True` pairs neighbours.",
    also_right=r"""
import mlx_grpo_kit.qwen3.forward as kit

# rope by rotate half
def rope_by_rotate_half(x, offset, theta):
    half = x.shape[-1] // 2
    angles = rope_angles(mx.arange(offset, offset + x.shape[2]), x.shape[-1], theta)
    angles = mx.concatenate([angles, angles], axis=-1)
    turned = mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * mx.cos(angles) + turned * mx.sin(angles)
# rope by the kernel
lambda x, offset, theta: mx.fast.rope(x, x.shape[-1], traditional=False, base=theta, scale=1.0, offset=offset)
# rope token by token
def rope_token_by_token(x, offset, theta):
    half = x.shape[-1] // 2
    out = []
    for t in range(x.shape[2]):
        angle = (offset + t) * theta ** (-2 * mx.arange(half) / x.shape[-1])
        a, b = rotate(x[:, :, t, :half], x[:, :, t, half:], angle)
        out.append(mx.concatenate([a, b], axis=-1))
    return mx.stack(out, axis=2)
# the kit's
kit.rope
""",
    also_wrong=r"""
import mlx_grpo_kit.qwen3.forward as kit

# from the other end
lambda x, o, theta: kit.rope(x[..., ::-1], o, theta)[..., ::-1]
# rope in place
def rope_in_place(x, offset, theta):
    x[:] = rope(x, offset, theta)
    return x
! also new numbers in what it was given
# rope with a fixed table
def rope_with_a_fixed_table(x, offset, theta):
    table = rope_angles(mx.arange(16), x.shape[-1], theta)
    angles = table[offset : offset + x.shape[2]]
    half = x.shape[-1] // 2
    return mx.concatenate(rotate(x[..., :half], x[..., half:], angles), axis=-1)
# MLX's kernel with neighbours as pairs
lambda x, o, theta: mx.fast.rope(x, x.shape[-1], traditional=True, base=theta, scale=1.0, offset=o)
! Neighbours are paired here
""",
)


def to_half_split(weight, head_dim):
    """Reorder weight [heads * head_dim, hidden] from pairs of neighbours to pairs of halves."""
    heads = weight.shape[0] // head_dim
    pairs = weight.reshape(heads, head_dim // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _projection(rng):
    heads, half, hidden = (int(n) for n in rng.integers((1, 1, 1), (4, 5, 5)))
    return _normal(rng, heads * 2 * half, hidden), 2 * half


def _numbered(heads, head_dim):
    return mx.arange(heads * head_dim).reshape(-1, 1).astype(mx.float32), head_dim


PORT = Exercise(
    "10.9",
    "Port the weights",
    "Write `to_half_split(weight, head_dim)`: `weight` [heads * head_dim, hidden] produces the queries of a model in "
    "which neighbours are pairs, (0, 1), (2, 3), ... in every head. Return the same rows in the order that is right "
    "for pairs (i, i + head_dim / 2): within every head, first the first members of all pairs, then the second "
    "members.",
    minutes=10,
    difficulty=3,
    solution=to_half_split,
    hints=(
        "For one head of 6 the rows should come in the order 0, 2, 4, 1, 3, 5. The next head follows with 6, 8, 10, "
        "...",
        "`weight.reshape(heads, head_dim // 2, 2, -1)` has axes (head, pair, member, hidden). Which two have to "
        "change places?",
        "`weight.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)`",
    ),
    cases=(_numbered(1, 6), _numbered(2, 4), _numbered(3, 2), *drawn(3, _projection)),
    mistakes=slips(
        to_half_split,
        r"""
@ pairs = weight.reshape(heads, head_dim // 2, 2, -1)
the way back
+ pairs = weight.reshape(heads, 2, head_dim // 2, -1)
! That is the opposite direction, from halves to neighbours. For a head of 6 the right order is 0, 2, 4, 1, 3, 5. (With
! a head_dim of 4 the two directions are the same, so a test with 4 would not have noticed.)
columns
+ pairs = weight.T.reshape(-1, head_dim // 2, 2, heads)
! The columns were moved. The order of a query's numbers depends on the rows: weight is [out, in].

over all heads at once
- heads = weight.shape[0] // head_dim
+ heads, head_dim = 1, weight.shape[0]
! The even rows of the *whole* matrix come first here: heads are mixed. Each head is reordered by itself.

@ return pairs.swapaxes(1, 2).reshape(weight.shape)
as it was (2)
+ return pairs.reshape(weight.shape)
! No row was moved: reshaping there and back leaves every row in its place.
second members first
+ return pairs[:, :, ::-1].swapaxes(1, 2).reshape(weight.shape)
! The second members of the pairs come first here, so every pair rotates the wrong way.
""",
    ),
    explain="The script that brought Meta's Llama to Hugging Face contains this function under the name `permute`.",
    also_right=r"""
# half split by index
def half_split_by_index(weight, head_dim):
    order = [h + i for h in range(0, weight.shape[0], head_dim) for s in (0, 1) for i in range(s, head_dim, 2)]
    return weight[mx.array(order)]
# half split head by head
def half_split_head_by_head(weight, head_dim):
    heads = [weight[start : start + head_dim] for start in range(0, weight.shape[0], head_dim)]
    return np.concatenate([np.array(part) for head in heads for part in (head[0::2], head[1::2])])
""",
    also_wrong=r"""
# halves swapped
lambda weight, head_dim: weight.reshape(-1, 2, weight.shape[-1])[:, ::-1].reshape(weight.shape)
""",
)


def stream_parts(record, num_layers):
    """The terms of the residual stream: the embedding, each layer's attention and MLP output."""
    parts = [record["embedding"]]
    for layer in range(num_layers):
        parts.append(record[f"layers.{layer}.self_attn.o_proj"])
        parts.append(record[f"layers.{layer}.mlp.down_proj"])
    return parts


def _record(rng, num_layers):
    shape = (1, 2, 3)
    x = _normal(rng, *shape)
    record = {"embedding": x}
    for layer in range(num_layers):
        for at, (part, stream) in (
            ("self_attn.o_proj", ("input_layernorm", f"layers.{layer}.attended")),
            ("mlp.down_proj", ("post_attention_layernorm", f"layers.{layer}")),
        ):
            record[f"layers.{layer}.{part}"] = x / 2
            record[f"layers.{layer}.{at}"] = added = _normal(rng, *shape)
            record[stream] = x = x + added
        record[f"layers.{layer}.mlp.gated"] = _normal(rng, *shape)
    record["final_norm"] = x / 3
    return record, num_layers


STREAM = Exercise(
    "10.10",
    "Who wrote what",
    "Write `stream_parts(record, num_layers)`: from a record of the forward pass (a dictionary with the names above), "
    "return a list of everything that was *added* to the residual stream, in order: the embedding, then for each "
    "layer the output of attention and the output of the MLP. Their sum is the stream after the last layer.",
    minutes=6,
    difficulty=2,
    solution=stream_parts,
    hints=(
        "Collect the terms that were added, not the stream itself. The last thing that attention does is `o_proj`, "
        "the last of the MLP is `down_proj`.",
        'The names are f"layers.{layer}.self_attn.o_proj" and f"layers.{layer}.mlp.down_proj".',
        'A list that begins with `record["embedding"]`, and a loop over `range(num_layers)` that appends two.',
    ),
    cases=(
        *drawn(1, lambda rng: _record(rng, 1)),
        *drawn(2, lambda rng: _record(rng, 3), seed=1),
        *drawn(1, lambda rng: _record(rng, 11), seed=2),
    ),
    mistakes=slips(
        stream_parts,
        r"""
@ parts.append(record[f"layers.{layer}.self_attn.o_proj"])
@ parts.append(record[f"layers.{layer}.mlp.down_proj"])
the stream itself
+ parts.append(record[f"layers.{layer}.attended"])
+ parts.append(record[f"layers.{layer}"])
! Those are states of the stream, and each contains everything that was added before. Return what was *added*.
what the parts read
+ parts.append(record[f"layers.{layer}.input_layernorm"])
+ parts.append(record[f"layers.{layer}.post_attention_layernorm"])
! Those are the inputs that the parts *read*, the normalized stream. The outputs that they add are o_proj and down_proj.

attention's as the stream
- parts.append(record[f"layers.{layer}.self_attn.o_proj"])
+ parts.append(record[f"layers.{layer}.attended"])
! `attended` is the stream after attention, embedding included. The output that attention added is its o_proj.
inside of the MLP
- parts.append(record[f"layers.{layer}.mlp.down_proj"])
+ parts.append(record[f"layers.{layer}.mlp.gated"])
! `gated` is inside the MLP, between up and down. The MLP's output is `down_proj`.
no embedding (3)
- parts = [record["embedding"]]
+ parts = []
! The stream does not begin empty: the embedding comes first.

@ return parts
the sum (3)
+ return sum(parts)
! That is their sum, the stream after the last layer. Return the list of them.
the MLP first (3)
+ return parts[:1] + [parts[n + d] for n in range(1, len(parts), 2) for d in (1, 0)]
! All terms are there, but in the wrong order: in each layer attention adds first, and then the MLP.
one for each layer (3)
+ return parts[:1] + [a + b for a, b in zip(parts[1::2], parts[2::2])]
! Here the outputs of a layer's attention and MLP are one sum. Keep them apart: two entries for each layer.
all attention first (3)
+ return parts[:1] + parts[1::2] + parts[2::2]
! All terms are there, but in the wrong order: go layer by layer, attention before the MLP.

sorted as texts (3)
- for layer in range(num_layers):
+ for layer in sorted(map(str, range(num_layers))):
! Layer 10 comes before layer 2 here: as texts, "10" is before "2". Count with `range(num_layers)`.
""",
    ),
    also_right=r"""
from itertools import pairwise

# stream in one line
def stream_in_one_line(record, num_layers):
    names = ("self_attn.o_proj", "mlp.down_proj")
    return [record["embedding"], *(record[f"layers.{n}.{name}"] for n in range(num_layers) for name in names)]
# stream by differences
def stream_by_differences(record, num_layers):
    states = [record["embedding"]]
    for layer in range(num_layers):
        states += [record[f"layers.{layer}.attended"], record[f"layers.{layer}"]]
    return [states[0], *(b - a for a, b in pairwise(states))]
""",
)
