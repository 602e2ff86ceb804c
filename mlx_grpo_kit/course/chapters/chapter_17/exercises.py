"""Exercises of notebook 17: gradients of the whole model."""

import math

import numpy as np

from mlx_grpo_kit.course.compare import Told, same
from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx


def _normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def cross_entropy(logits, targets, weights):
    """(-sum(weights * log softmax(logits)[targets]), its gradient for the logits [..., V])."""
    log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(log_probs, targets[..., None], axis=-1)
    one_hot = mx.arange(logits.shape[-1]) == targets[..., None]
    weights = weights[..., None]
    return -mx.sum(weights * chosen), weights * (mx.exp(log_probs) - one_hot)


def _draw_tokens(rng):
    batch, length, vocabulary = rng.integers((1, 1, 2), (4, 5, 7))
    targets = mx.array(rng.integers(0, vocabulary, (batch, length)))
    return 2 * _normal(rng, batch, length, vocabulary), targets, _normal(rng, batch, length)


LOSS = Exercise(
    "17.1",
    "A loss in which every token has a weight",
    "Write `cross_entropy(logits, targets, weights)` for logits [B, T, V], targets [B, T] (whole numbers) and weights "
    "[B, T] (any sign). Return a tuple of two: the loss, `-sum(weights * log softmax(logits)[target])` over all "
    "tokens, and its gradient with respect to the logits, [B, T, V]. Logits may be as large as 1000. In this chapter "
    "the inputs are arrays of MLX; your results may be arrays of MLX or of NumPy.",
    minutes=8,
    difficulty=2,
    solution=cross_entropy,
    hints=(
        "For one token of weight 1, the gradient is `softmax(logits) - one_hot(target)`, as in 05.6. If the loss is "
        "multiplied by a factor, what happens to the gradient?",
        "`log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)` does not overflow, and "
        "`mx.exp(log_probs)` is softmax. `mx.take_along_axis(log_probs, targets[..., None], axis=-1)` picks the "
        "log-probabilities of the targets, [B, T, 1].",
        "`one_hot = mx.arange(logits.shape[-1]) == targets[..., None]`, and the gradient is `weights[..., None] * "
        "(mx.exp(log_probs) - one_hot)`.",
    ),
    cases=(
        (mx.array([[[math.log(0.5), math.log(0.25), math.log(0.25)]]]), mx.array([[1]]), mx.array([[1.0]])),
        (mx.array([[[1000.0, 0.0], [0.0, 1000.0]]]), mx.array([[0, 0]]), mx.array([[1.0, 0.5]])),
        (mx.array([[[1.0, 1.0], [2.0, 2.0]]]), mx.array([[0, 1]]), mx.array([[-0.5, 0.0]])),
        *drawn(3, _draw_tokens),
    ),
    mistakes=slips(
        cross_entropy,
        r"""
@ return -mx.sum(weights * chosen), weights * (mx.exp(log_probs) - one_hot)
gradient without weights
+ return -mx.sum(weights * chosen), mx.exp(log_probs) - one_hot
! That is the gradient with all weights 1. A token that counts double pulls twice as hard.
loss without weights
+ return -mx.sum(chosen), weights * (mx.exp(log_probs) - one_hot)
! That is the loss with all weights 1: the surprise of each token counts `weights` times.
other sign
+ return -mx.sum(weights * chosen), weights * (one_hot - mx.exp(log_probs))
! The gradient has the wrong sign. If you raise the target's logit, the loss falls: its slope is below 0.
sign of the loss
+ return mx.sum(weights * chosen), weights * (mx.exp(log_probs) - one_hot)
! A probability is at most 1, so its logarithm is at most 0: the loss needs a minus sign.
mean
+ return -mx.mean(weights * chosen), weights * (mx.exp(log_probs) - one_hot)
! That is the mean over tokens. The weights already say how much each token counts, so the loss is a plain sum.
everything is a mean
+ return -mx.mean(weights * chosen), 1 / targets.size * weights * (mx.exp(log_probs) - one_hot)
! That is the mean over tokens. The weights already say how much each token counts, so do not divide by the number of
! tokens.
every token by every weight (2)
+ return -mx.sum(weights[..., 0] * chosen), weights * (mx.exp(log_probs) - one_hot)
! The weights are [B, T] and the picked numbers [B, T, 1]: broadcasting multiplies every token by every weight of its
! batch. Give both the same shape first.
the target alone
+ return -mx.sum(weights * chosen), weights * (-1.0 * one_hot)
! Only the target's logit gets a gradient. The other logits matter too: if you raise one of them, the target's share
! falls.
no one-hot
+ return -mx.sum(weights * chosen), weights * (mx.exp(log_probs))
! Subtract 1 at the target: there the gradient is p - 1.

@ log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
overflow (2)
+ log_probs = logits - mx.log(mx.exp(logits).sum(axis=-1, keepdims=True))
! `exp(1000)` is infinite. Subtract the largest logit first, or let `mx.logsumexp` do it.
log of softmax (2)
+ log_probs = mx.log(mx.softmax(logits, axis=-1))
! softmax rounds a share of `exp(-1000)` to 0, and the logarithm of 0 is infinite. Take the logarithm before rounding
! can happen: `logits - mx.logsumexp(...)`.
softmax of everything (2)
+ log_probs = logits - mx.logsumexp(logits)
! The softmax runs over all tokens together. Each token has its own softmax: `axis=-1, keepdims=True`.
""",
    ),
    also_right=r"""
# NumPy
def _loss_in_numpy(logits, targets, weights):
    logits, targets, weights = np.array(logits).astype(np.float64), np.array(targets), np.array(weights)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    grad, loss = weights[..., None] * np.exp(log_probs), 0.0
    for place in np.ndindex(targets.shape):
        grad[place][targets[place]] -= weights[place]
        loss -= weights[place] * log_probs[place][targets[place]]
    return loss, grad
""",
    also_wrong=r"""
# the wrong axis
- log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
+ log_probs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
""",
    explain="The gradient of each position sums to 0 over the vocabulary: what one logit gains, the others lose.",
)


def linear_backward(grad, x, weight):
    """(gradient of x [..., in], of weight [out, in]) of y = x W^T, from grad [..., out]."""
    grad_rows = grad.reshape(-1, grad.shape[-1])
    x_rows = x.reshape(-1, x.shape[-1])
    return grad @ weight, grad_rows.T @ x_rows


def _draw_linear(rng):
    batch, length, inside, outside = map(int, rng.integers((1, 1, 1, 1), (4, 5, 6, 6)))
    return _normal(rng, batch, length, outside), _normal(rng, batch, length, inside), _normal(rng, outside, inside)


LINEAR = Exercise(
    "17.2",
    "One matrix for every token",
    "Write `linear_backward(grad, x, weight)` for `y = x @ weight.T`, where x has shape [..., in] (in the model [B, "
    "T, in]), weight has shape [out, in], and `grad` is the gradient of y, [..., out]. Return a tuple of two: the "
    "gradient of x and the gradient of weight, each with the shape of its array.",
    minutes=7,
    difficulty=2,
    solution=linear_backward,
    hints=(
        "The shapes decide most of it: only one product leads from [..., out] and [out, in] to [..., in]. For the "
        "weight, begin with a single token: `y[o] = sum over i of weight[o, i] * x[i]`, so weight[o, i] gets `grad[o] "
        "* x[i]`.",
        "The same matrix is used at every position of every row, so its gradient is the sum over all positions. "
        "Arrange them as the rows of one matrix: `x.reshape(-1, x.shape[-1])`.",
        "`grad @ weight` and `grad.reshape(-1, out).T @ x.reshape(-1, in)`",
    ),
    cases=(
        (mx.array([[0.5, -1.0]]), mx.array([[1.0, 2.0, 0.0]]), mx.array([[1.0, 0.0, 2.0], [0.5, 1.0, -1.0]])),
        (mx.array([[[1.0, 2.0], [0.0, -1.0]]]), mx.array([[[3.0, 1.0], [1.0, 0.5]]]), mx.array([[1.0, 2], [3, 4]])),
        (mx.array([2.0]), mx.array([0.5, 0.25]), mx.array([[1.0, -1.0]])),
        *drawn(3, _draw_linear),
    ),
    mistakes=slips(
        linear_backward,
        r"""
@ return grad @ weight, grad_rows.T @ x_rows
weight transposed
+ return grad @ weight, x_rows.T @ grad_rows
! The weight's gradient is [in, out], but the weight is [out, in], PyTorch's layout.
forward matrix
+ return grad @ weight.T, grad_rows.T @ x_rows
! Forward it was `x @ weight.T`; on the way back the matrix is transposed once more.
mean over positions (2)
+ return grad @ weight, grad_rows.T @ x_rows / len(x_rows)
! That is the mean over the positions. Every position adds its part, so the gradient is their sum.
swapped
+ return grad_rows.T @ x_rows, grad @ weight
! Both are right, but in the wrong order: first the gradient of x, then the gradient of weight.
a matrix for each row (2)
+ return grad @ weight, grad.swapaxes(-1, -2) @ x
! That is a gradient for each row of the batch. All rows used the same matrix, so their gradients add up.
last token alone (2)
+ return grad @ weight, grad_rows[-1:].T @ x_rows[-1:]
! Only the last position contributed. The matrix was used at every position, so its gradient is a sum over all
! of them.
""",
    ),
    also_right=r"""
# einsum
lambda grad, x, weight: (mx.einsum("...o,oi->...i", grad, weight), mx.einsum("...o,...i->oi", grad, x))
# torch
import torch
def _linear_in_torch(grad, x, weight):
    grad, x, weight = (torch.tensor(np.array(each)) for each in (grad, x, weight))
    return [grad @ weight, grad.reshape(-1, len(weight)).T @ x.reshape(-1, weight.shape[1])]
""",
    also_wrong=r"""
# ones
- x_rows = x.reshape(-1, x.shape[-1])
+ x_rows = (x * 0 + 1).reshape(-1, x.shape[-1])
""",
)


def rms_norm_backward(grad, x, weight, eps):
    """(gradient of x, gradient of weight) of y = x / sqrt(mean(x^2) + eps) * weight."""
    r = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
    normed = x / r
    scaled = grad * weight
    along = mx.mean(scaled * normed, axis=-1, keepdims=True)
    grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)
    return (scaled - normed * along) / r, grad_weight


def _draw_norm(rng):
    shape = map(int, rng.integers((1, 1, 2), (4, 4, 6)))
    x = 2 * _normal(rng, *shape)
    return _normal(rng, *x.shape), x, _normal(rng, x.shape[-1]), 0.1


RMS_NORM = Exercise(
    "17.3",
    "A norm with a weight",
    "Write `rms_norm_backward(grad, x, weight, eps)` for `y = x / r * weight`, where r is `sqrt(mean(x^2) + eps)` "
    "with the mean over the last axis, x has shape [..., size] and weight has shape [size]. Return a tuple of two: "
    "the gradient of x and the gradient of weight. (05.4 was the same without a weight.)",
    minutes=10,
    difficulty=2,
    solution=rms_norm_backward,
    hints=(
        "Take it apart: `n = x / r`, then `y = n * weight`. What does n get from grad? And what does weight get, "
        "given that every position of every row uses it?",
        "n gets `scaled = grad * weight`. The rest is the same as in 05.4: `(scaled - n * mean(scaled * n)) / r`, "
        "with the mean over the last axis.",
        "weight gets `grad * n`, summed over everything but the last axis: "
        "`(grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)`.",
    ),
    cases=(
        (mx.array([[1.0, 0.0]]), mx.array([[3.0, 4.0]]), mx.array([1.0, 1.0]), 0.0),
        (mx.array([[[1.0, 2.0], [0.5, -1.0]]]), mx.array([[[1.0, -1.0], [0.1, 0.2]]]), mx.array([2.0, 0.5]), 1e-6),
        (mx.array([[0.7, -0.2, 1.1]]), mx.array([[0.0, 0.0, 0.0]]), mx.array([1.0, 2.0, 3.0]), 0.25),
        *drawn(3, _draw_norm),
        *drawn(1, lambda rng: (_normal(rng, 2, 1, 3, 2), _normal(rng, 2, 1, 3, 2), _normal(rng, 2), 0.1), seed=1),
    ),
    mistakes=slips(
        rms_norm_backward,
        r"""
@ return (scaled - normed * along) / r, grad_weight
r as a constant (2)
+ return scaled / r, grad_weight
! That would be right if r were a constant. But r depends on x: the part of the gradient along x has to go.
the mean taken off too (2)
+ return (scaled - mx.mean(scaled, axis=-1, keepdims=True) - normed * along) / r, grad_weight
! The gradient's mean was subtracted as well. That belongs to LayerNorm, which subtracts the mean of x; RMSNorm does
! not.
divided by r twice (2)
+ return (scaled / r - x * along) / r, grad_weight
! One power of r is wrong: it is `(scaled - n * mean(scaled * n)) / r`, with `n = x / r` everywhere.

weight forgotten
- scaled = grad * weight
+ scaled = grad
! On its way to x the gradient passes through the weight.
weight too late (2)
- scaled = grad * weight
+ scaled = grad
- return (scaled - normed * along) / r, grad_weight
+ return (scaled - normed * along) / r * weight, grad_weight
! Multiply by the weight *before* you take out the part along x: the weight changes the direction of the gradient.

@ grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)
weight's gradient not summed (3)
+ grad_weight = (grad * normed)
! Each position gives its own gradient of the weight. Add them up, to shape [size].
x instead of x / r (3)
+ grad_weight = (grad * x).reshape(-1, x.shape[-1]).sum(axis=0)
! The weight multiplies x / r, so its gradient is `grad * x / r`.
weight in its own gradient (3)
+ grad_weight = (grad * weight * normed).reshape(-1, x.shape[-1]).sum(axis=0)
! The weight does not appear in its own gradient, which is `grad * n`, summed.
summed over the first axis alone (3)
+ grad_weight = (grad * normed).sum(axis=0)
! The weight's gradient is summed over the first axis only. The same weight is used along *every* axis except the last.

@ along = mx.mean(scaled * normed, axis=-1, keepdims=True)
sum instead of mean (2)
+ along = mx.sum(scaled * normed, axis=-1, keepdims=True)
! Take out the *mean* of scaled * n along x: r contains a mean too.
the whole part along x (2)
+ along = mx.sum(scaled * x, axis=-1, keepdims=True) * r / mx.maximum((x * x).sum(axis=-1, keepdims=True), 1e-20)
! The part along x is taken out *whole*. That is right for eps = 0, but an eps in r keeps a little of it: take out `n *
! mean(scaled * n)` with `n = x / r`.

@ r = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
eps forgotten (2)
+ r = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True))
! eps is missing. Where x is small or 0, it makes all the difference.
eps outside the root (2)
+ r = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True)) + eps
! eps is outside the root. Add it to the mean of the squares before you take the root.
""",
    ),
    also_right=r"""
# autograd
def norm_by_autograd(grad, x, weight, eps):
    function = lambda x, w: x * mx.rsqrt((x * x).mean(-1, keepdims=True) + eps) * w
    return tuple(mx.vjp(function, [x, weight], [grad])[1])
# MLX's norm
lambda grad, x, weight, eps: mx.vjp(lambda x, w: mx.fast.rms_norm(x, w, eps), [x, weight], [grad])[1]
""",
    also_wrong=r"""
# all divided by r twice
- return (scaled - normed * along) / r, grad_weight
+ return (scaled - normed * along) / r / r, grad_weight
# a mean for the weight
- grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)
+ grad_weight = (grad * normed).reshape(-1, x.shape[-1]).mean(axis=0)
# no more than three axes
- grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)
+ grad_weight = (grad * normed).sum(axis=(0, 1) if x.ndim == 3 else 0)
""",
)


def rope_backward(grad, offset, theta):
    """Turn every pair of the gradient [B, heads, T, D] back by its angle."""
    half = grad.shape[-1] // 2
    positions = offset + mx.arange(grad.shape[-2])
    angles = positions[:, None] * theta ** (-mx.arange(half) / half)
    cos, sin = mx.cos(angles), mx.sin(angles)
    first, second = grad[..., :half], grad[..., half:]
    return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def _draw_heads(rng):
    batch, heads, length, half = map(int, rng.integers((1, 1, 1, 1), (3, 3, 5, 4)))
    return _normal(rng, batch, heads, length, 2 * half), int(rng.integers(0, 9)), float(rng.choice([10.0, 1e4]))


ROPE = Exercise(
    "17.4",
    "Turning back",
    "Forward, `rope(x, offset, theta)` turned each pair (x[i], x[i + D/2]) of [B, heads, T, D] by the angle `position "
    "* theta^(-2i/D)`, where the first of the T positions is `offset`. Write `rope_backward(grad, offset, theta)`, "
    "which computes the gradient of x from the gradient of the result.",
    minutes=8,
    difficulty=2,
    solution=rope_backward,
    hints=(
        "Forward: `out1 = x1 cos - x2 sin` and `out2 = x1 sin + x2 cos`. What does x1 get from grad1 and grad2? And "
        "what does x2 get?",
        "x1 gets `grad1 cos + grad2 sin`, x2 gets `grad2 cos - grad1 sin`: a rotation by the same angle, backwards. "
        "So you can use your rope of chapter 10 with the sign of every angle reversed (not only the sign of `offset`).",
        "`angles = (offset + mx.arange(T))[:, None] * theta ** (-mx.arange(D // 2) / (D // 2))`; the halves are "
        "`grad[..., :D // 2]` and `grad[..., D // 2:]`; join the results with `mx.concatenate(..., axis=-1)`.",
    ),
    cases=(
        (mx.array([[[[1.0, 0.0], [1.0, 0.0]]]]), 0, 10.0),
        (mx.array([[[[1.0, 2.0, 0.5, -1.0]]]]), 3, 100.0),
        (mx.array([[[[1.0, 2.0, 0.5, -1.0]]]]), 5, 100.0),  # angles cached from the previous call are wrong here
        (mx.array([[[[1.0, 2.0, 0.5, -1.0]]]]), 5, 10.0),
        (mx.array([[[[0.5, 1.5, -1.0, 2.0], [1.0, 0.0, 0.0, 1.0]]]]), 1, 10.0),
        *drawn(3, _draw_heads),
    ),
    mistakes=slips(
        rope_backward,
        r"""
forwards from -offset (2)
- positions = offset + mx.arange(grad.shape[-2])
+ positions = mx.arange(grad.shape[-2]) - offset
- return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
+ return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
! That turns forwards from position -offset. Change the sign of the *angle* of every position: -(offset + t), not
! -offset + t.
positions along heads (3)
- positions = offset + mx.arange(grad.shape[-2])
- angles = positions[:, None] * theta ** (-mx.arange(half) / half)
+ positions = offset + mx.arange(grad.shape[1])
+ angles = positions[:, None, None] * theta ** (-mx.arange(half) / half)
! The positions were counted along the heads. T is the axis before the last, and all heads turn in the same way.
neighbours as pairs (3)
- first, second = grad[..., :half], grad[..., half:]
- return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
+ first, second = grad[..., ::2], grad[..., 1::2]
+ return mx.stack([first * cos + second * sin, second * cos - first * sin], axis=-1).reshape(grad.shape)
! Here neighbours are pairs: (0, 1), (2, 3). Qwen3 pairs i with i + D/2: the two halves of the head.

@ return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
forwards again
+ return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
! That turns the gradient forwards, by the same angle once more. Turn it back.
not turned
+ return grad
! The gradient is unchanged. It belongs to the turned pairs, and x is the pairs before they were turned.

@ positions = offset + mx.arange(grad.shape[-2])
offset forgotten (3)
+ positions = mx.arange(grad.shape[-2])
! The first position is `offset`, not 0.
all positions alike (3)
+ positions = offset + mx.arange(grad.shape[-2]) * 0
! Each position has its own angle: T is the axis before the last.

@ angles = positions[:, None] * theta ** (-mx.arange(half) / half)
one speed (3)
+ angles = positions[:, None] * theta ** (-mx.arange(half) * 0.0)
! All pairs turn at the same speed here. Pair i turns by position * theta^(-2i/D).
exponent over D (3)
+ angles = positions[:, None] * theta ** (-mx.arange(half) / (2 * half))
! The exponent is -2i/D, where D is the size of the whole head: i / (D/2).
""",
    ),
    also_right=r"""
# by reflection
from mlx_grpo_kit.qwen3 import forward
def _rope_by_reflection(grad, offset, theta):
    half = grad.shape[-1] // 2
    flip = mx.concatenate([mx.ones(half), -mx.ones(half)])
    return forward.rope(grad * flip, offset, theta) * flip
# complex numbers
def _rope_in_complex_numbers(grad, offset, theta):
    grad = np.array(grad)
    half = grad.shape[-1] // 2
    angles = (offset + np.arange(grad.shape[-2]))[:, None] * theta ** (-np.arange(half) / half)
    turned = (grad[..., :half] + 1j * grad[..., half:]) * np.exp(-1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)
""",
    also_wrong=r"""
# angles kept by shape
def angles_kept_by_shape(grad, offset, theta, kept={}):
    length, half = grad.shape[2], grad.shape[3] // 2
    turns = np.arange(offset, offset + length)[:, None] * theta ** (-np.arange(half) / half)
    angles = kept.setdefault(grad.shape, mx.array(turns.astype(np.float32)))
    first, second = mx.split(grad, 2, axis=-1)
    cos, sin = mx.cos(angles), mx.sin(angles)
    return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)
""",
    explain=(
        "The transpose of a rotation is its inverse, so the gradient keeps its norm. The kit uses the same function "
        "for both directions, and turns back with negative positions."
    ),
)


def gated_silu_backward(grad, gate, up):
    """(gradient of gate, gradient of up) of silu(gate) * up, where silu(x) = x * sigmoid(x)."""
    s = mx.sigmoid(gate)
    return grad * up * (s + gate * s * (1 - s)), grad * gate * s


def _draw_gate(rng):
    shape = map(int, rng.integers((1, 1, 1), (4, 4, 5)))
    gate = 3 * _normal(rng, *shape)
    return _normal(rng, *gate.shape), gate, _normal(rng, *gate.shape)


SWIGLU = Exercise(
    "17.5",
    "A gate has two ways back",
    "The heart of SwiGLU is `silu(gate) * up`, element by element, with `silu(x) = x * sigmoid(x)`. Write "
    "`gated_silu_backward(grad, gate, up)`, which returns a tuple of the gradient of gate and the gradient of up.",
    minutes=6,
    difficulty=1,
    solution=gated_silu_backward,
    hints=(
        "The operation is a product, so each factor gets `grad` times the *other* factor. The way back to gate leads "
        "through silu as well, so multiply by the slope of silu there.",
        "With `s = mx.sigmoid(x)` the slope of silu is `s + x * s * (1 - s)`, written in 05.1 as `s * (1 + x * (1 - "
        "s))`.",
        "gate gets `grad * up * slope`, up gets `grad * gate * s`.",
    ),
    cases=(
        (mx.array([1.0, 1.0]), mx.array([0.0, 2.0]), mx.array([3.0, -1.0])),
        (mx.array([[0.5, -2.0, 1.5]]), mx.array([[-1.5, 0.3, -100.0]]), mx.array([[1.2, -0.7, 2.0]])),
        (mx.array([0.5]), mx.array([100.0]), mx.array([1.5])),
        *drawn(3, _draw_gate),
    ),
    mistakes=slips(
        gated_silu_backward,
        r"""
@ return grad * up * (s + gate * s * (1 - s)), grad * gate * s
slope of a product, half (2)
+ return grad * up * s, grad * gate * s
! silu(x) is x times sigmoid(x), and both factors depend on x: the slope has a second part.
overflow (2)
+ return grad * up * (s + gate * mx.exp(-gate) / (1 + mx.exp(-gate)) ** 2), grad * gate * s
! The formula is right, but `exp(100)` is infinite, and infinity divided by infinity is nan. Write the slope with `s =
! mx.sigmoid(gate)` and `1 - s`.
slope of sigmoid (2)
+ return grad * up * s * (1 - s), grad * gate * s
! That is the slope of sigmoid. silu is x * sigmoid(x).
no slope
+ return grad * up, grad * gate * s
! gate goes through silu before it multiplies up: the slope of silu is missing.
own factor
+ return grad * gate * s * (s + gate * s * (1 - s)), grad * up
! Each factor of a product gets the *other* factor.
silu forgotten
+ return grad * up * (s + gate * s * (1 - s)), grad * gate
! up was multiplied by silu(gate), not by gate.
grad forgotten
+ return up * (s + gate * s * (1 - s)), gate * s
! Those are the slopes. Multiply them by `grad`, the gradient that arrives.
swapped (3)
+ return grad * gate * s, grad * up * (s + gate * s * (1 - s))
! Both are right, but in the wrong order: first gate, then up.

a sigmoid that overflows (2)
- s = mx.sigmoid(gate)
+ s = mx.exp(gate) / (1 + mx.exp(gate))
! The formula is right, but `exp(100)` is infinite, and infinity divided by infinity is nan. `mx.sigmoid(gate)` does not
! overflow.
""",
    ),
    also_right=r"""
# division
def _silu_with_division(grad, gate, up):
    slope = 1 / (1 + mx.exp(-gate))
    return grad * up * slope * (1 + gate * (1 - slope)), grad * gate / (1 + mx.exp(-gate))
""",
    also_wrong=r"""
# a plus in the slope
- return grad * up * (s + gate * s * (1 - s)), grad * gate * s
+ return grad * up * (s + gate * s * (1 + s)), grad * gate * s
# written over
- return grad * up * (s + gate * s * (1 - s)), grad * gate * s
+ result = grad * up * (s + gate * s * (1 - s)), grad * gate * s
+ gate[...] = 0
+ return result
! new numbers in what it was given
""",
)


def mix_values_backward(grad, weights, values):
    """(gradient of weights [B, H, T, S], of values [B, K, S, D]), from grad [B, H, T, D]."""
    batch, groups, keys, head_dim = values.shape
    grad_rows = grad.reshape(batch, groups, -1, head_dim)
    weight_rows = weights.reshape(batch, groups, -1, keys)
    grad_weights = (grad_rows @ values.swapaxes(-1, -2)).reshape(weights.shape)
    return grad_weights, weight_rows.swapaxes(-1, -2) @ grad_rows


def _draw_grouped(rng):
    batch, groups, share, length, head_dim = map(int, rng.integers((1, 1, 1, 1, 1), (3, 4, 4, 5, 4)))
    weights = mx.softmax(_normal(rng, batch, groups * share, length, length + 1), axis=-1)
    grad = _normal(rng, batch, groups * share, length, head_dim)
    return grad, weights, _normal(rng, batch, groups, length + 1, head_dim)


GROUPED = Exercise(
    "17.6",
    "Heads that share",
    "Forward, `mixed = weights @ values` for each of H query heads, where every H / K consecutive heads share one "
    "head of values. The shapes are weights [B, H, T, S], values [B, K, S, D] and mixed [B, H, T, D]. Write "
    "`mix_values_backward(grad, weights, values)`, which returns a tuple of the gradient of weights [B, H, T, S] and "
    "the gradient of values [B, K, S, D].",
    minutes=12,
    difficulty=3,
    solution=mix_values_backward,
    hints=(
        "For one head, mixing is a matrix product, so weights get `grad @ values^T`, and values get `weights^T @ "
        "grad`. Which query heads send a gradient to head 0 of values?",
        "Query heads 0 to H/K - 1 use head 0 of values, and the next ones use head 1. A value that several heads use "
        "gets the sum of their gradients. `mx.repeat(values, H // K, axis=1)` gives every query head its own copy; "
        "afterwards add up the copies' gradients: `.reshape(B, K, H // K, S, D).sum(axis=2)`.",
        "Without copies: reshape grad to [B, K, H/K * T, D] and weights to [B, K, H/K * T, S]; then the product "
        "`weights^T @ grad` also adds up over heads.",
    ),
    cases=(
        (
            mx.array([[[[1.0, 0.0]], [[0.0, 2.0]]]]),
            mx.array([[[[0.25, 0.75]], [[1.0, 0.0]]]]),
            mx.array([[[[1.0, 2.0], [3.0, 4.0]]]]),
        ),
        drawn(1, lambda rng: (_normal(rng, 1, 4, 2, 3), _normal(rng, 1, 4, 2, 2), _normal(rng, 1, 2, 2, 3)), 7)[0],
        drawn(1, lambda rng: (_normal(rng, 2, 6, 1, 2), _normal(rng, 2, 6, 1, 3), _normal(rng, 2, 2, 3, 2)), 8)[0],
        *drawn(3, _draw_grouped),
    ),
    mistakes=slips(
        mix_values_backward,
        r"""
@ return grad_weights, weight_rows.swapaxes(-1, -2) @ grad_rows
first head of each group (2)
+ step = grad.shape[1] // groups
+ return grad_weights, weights[:, ::step].swapaxes(-1, -2) @ grad[:, ::step]
! Only the first head of each group sends a gradient to its values. All heads that share the values do.
last head of each group (2)
+ step = grad.shape[1] // groups
+ return grad_weights, weights[:, step - 1 :: step].swapaxes(-1, -2) @ grad[:, step - 1 :: step]
! Only the gradient of the last head of each group arrives at its values: it overwrote the others. They add up.
values of every K-th head (2)
+ each = weights.swapaxes(-1, -2) @ grad
+ return grad_weights, each.reshape(batch, -1, groups, keys, head_dim).sum(axis=1)
! The weights' gradient is right, but the values' gradient adds up the wrong heads: H / K *consecutive* heads share, so
! the axis of heads splits into [K, H / K], in this order.
mean (2)
+ return grad_weights, weight_rows.swapaxes(-1, -2) @ grad_rows / (grad.shape[1] // groups)
! That is the mean over the heads that share. Their gradients add up.
every K-th head (2)
+ grad_weights = grad @ mx.tile(values, (1, grad.shape[1] // groups, 1, 1)).swapaxes(-1, -2)
+ each = weights.swapaxes(-1, -2) @ grad
+ return grad_weights, each.reshape(batch, -1, groups, keys, head_dim).sum(axis=1)
! The wrong heads share: H / K *consecutive* heads share, 0 and 1 and so on, not every K-th head.
values by query head (2)
+ return grad_weights, weights.swapaxes(-1, -2) @ grad
! The gradient of values has one head per query head. It has to have the shape of values: add up the heads that share.

swapped
- return grad_weights, weight_rows.swapaxes(-1, -2) @ grad_rows
+ return weight_rows.swapaxes(-1, -2) @ grad_rows, grad_weights
! Both are right, but in the wrong order: first weights, then values.
""",
    ),
    also_right=r"""
# repeated heads
def _heads_repeated(grad, weights, values):
    share = grad.shape[1] // values.shape[1]
    each = weights.swapaxes(-1, -2) @ grad
    summed = each.reshape(values.shape[0], values.shape[1], share, *values.shape[2:]).sum(axis=2)
    return grad @ mx.repeat(values, share, axis=1).swapaxes(-1, -2), summed
# a loop
def _heads_in_a_loop(grad, weights, values):
    grad, weights, values = (np.array(each) for each in (grad, weights, values))
    share = grad.shape[1] // values.shape[1]
    grad_weights, grad_values = np.zeros_like(weights), np.zeros_like(values)
    for head in range(grad.shape[1]):
        grad_weights[:, head] = grad[:, head] @ values[:, head // share].swapaxes(-1, -2)
        grad_values[:, head // share] += weights[:, head].swapaxes(-1, -2) @ grad[:, head]
    return grad_weights, grad_values
""",
    also_wrong=r"""
# values backwards
- grad_weights = (grad_rows @ values.swapaxes(-1, -2)).reshape(weights.shape)
+ grad_weights = (grad_rows @ values[..., ::-1].swapaxes(-1, -2)).reshape(weights.shape)
""",
)


def attention_scores_backward(grad, queries, keys):
    """(gradient of queries [B, H, T, D], of keys [B, K, S, D]), from grad [B, H, T, S]."""
    batch, groups, length, head_dim = keys.shape
    grad_rows = grad.reshape(batch, groups, -1, length) / math.sqrt(head_dim)
    query_rows = queries.reshape(batch, groups, -1, head_dim)
    grad_queries = (grad_rows @ keys).reshape(queries.shape)
    return grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows


def _draw_scores(rng):
    batch, groups, share, length, half = map(int, rng.integers((1, 1, 1, 1, 1), (3, 4, 4, 5, 4)))
    grad = _normal(rng, batch, groups * share, length, length + 1)
    queries = _normal(rng, batch, groups * share, length, 2 * half)
    return grad, queries, _normal(rng, batch, groups, length + 1, 2 * half)


SCORES = Exercise(
    "17.7",
    "Back through the scores",
    "Forward, `scores = queries @ keys^T / sqrt(D)` for each of H query heads, where every H / K consecutive heads "
    "share one head of keys. The shapes are queries [B, H, T, D], keys [B, K, S, D] and scores [B, H, T, S]. Write "
    "`attention_scores_backward(grad, queries, keys)`, which returns a tuple of the gradient of queries [B, H, T, D] "
    "and the gradient of keys [B, K, S, D].",
    minutes=8,
    difficulty=2,
    solution=attention_scores_backward,
    hints=(
        "Take one head. Row t of its scores uses query t, and column s uses key s. So queries get `grad @ keys`, and "
        "keys get `grad^T @ queries`. What does the division by sqrt(D) do to both?",
        "First divide, `grad / sqrt(D)`, and then compute the two products. The keys of a group get the sum over its "
        "query heads, like the values in 17.6.",
        "Reshape grad to [B, K, H/K * T, S] and queries to [B, K, H/K * T, D]: then `grad @ keys` only needs its old "
        "shape back, and `grad^T @ queries` also adds up over the heads.",
    ),
    cases=(
        (
            mx.array([[[[1.0]], [[-0.5]]]]),
            mx.array([[[[1.0, 0.0, 2.0, 0.0]], [[0.0, 4.0, 1.0, 1.0]]]]),
            mx.array([[[[0.0, 4.0, 2.0, 1.0]]]]),
        ),
        drawn(1, lambda rng: (_normal(rng, 1, 4, 2, 2), _normal(rng, 1, 4, 2, 3), _normal(rng, 1, 2, 2, 3)), 7)[0],
        drawn(1, lambda rng: (_normal(rng, 2, 6, 1, 3), _normal(rng, 2, 6, 1, 2), _normal(rng, 2, 2, 3, 2)), 8)[0],
        *drawn(3, _draw_scores),
    ),
    mistakes=slips(
        attention_scores_backward,
        r"""
@ return grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows
first head of each group (2)
+ step = grad.shape[1] // groups
+ return grad_queries, grad[:, ::step].swapaxes(-1, -2) @ queries[:, ::step] / math.sqrt(head_dim)
! Only the first head of each group sends a gradient to its keys. All heads that share the keys do.
last head of each group (2)
+ step = grad.shape[1] // groups
+ grad, queries = grad[:, step - 1 :: step], queries[:, step - 1 :: step]
+ return grad_queries, grad.swapaxes(-1, -2) @ queries / math.sqrt(head_dim)
! Only the gradient of the last head of each group arrives at its keys: it overwrote the others. They add up.
keys of every K-th head (2)
+ each = grad.swapaxes(-1, -2) @ queries / math.sqrt(head_dim)
+ return grad_queries, each.reshape(batch, -1, groups, length, head_dim).sum(axis=1)
! The queries' gradient is right, but the keys' gradient adds up the wrong heads: the axis of heads splits into [K, H /
! K], in this order.
mean (2)
+ return grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows / (grad.shape[1] // groups)
! That is the mean over the heads that share keys. Their gradients add up.
every K-th head (2)
+ grad_queries = grad @ mx.tile(keys, (1, grad.shape[1] // groups, 1, 1)) / math.sqrt(head_dim)
+ each = grad.swapaxes(-1, -2) @ queries / math.sqrt(head_dim)
+ return grad_queries, each.reshape(batch, -1, groups, length, head_dim).sum(axis=1)
! The wrong heads share keys: H / K *consecutive* heads share, not every K-th head.
keys by query head (2)
+ return grad_queries, grad.swapaxes(-1, -2) @ queries / math.sqrt(head_dim)
! The gradient of keys has one head per query head. It has to have the shape of keys: add up the heads that share.

@ grad_rows = grad.reshape(batch, groups, -1, length) / math.sqrt(head_dim)
not divided
+ grad_rows = grad.reshape(batch, groups, -1, length)
! The scores were divided by sqrt(D): a factor of the forward pass is the same factor of the backward pass.
multiplied
+ grad_rows = grad.reshape(batch, groups, -1, length) * math.sqrt(head_dim)
! The backward pass is not an inverse: a division by sqrt(D) forward is a division by sqrt(D) backward too.
divided by D
+ grad_rows = grad.reshape(batch, groups, -1, length) / head_dim
! That divides by D, which is sqrt(D) twice. The score was divided by sqrt(D) once.
divided by sqrt(S)
+ grad_rows = grad.reshape(batch, groups, -1, length) / math.sqrt(length)
! That is the root of the number of keys. D is the size of one query: the last axis of queries.

@ return grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows
keys not divided
+ return grad_queries, math.sqrt(head_dim) * grad_rows.swapaxes(-1, -2) @ query_rows
! The queries' gradient is divided by sqrt(D), but the keys' gradient is not. The score was divided, so both are.
swapped
+ return grad_rows.swapaxes(-1, -2) @ query_rows, grad_queries
! Both are right, but in the wrong order: first queries, then keys.

queries not divided
- grad_queries = (grad_rows @ keys).reshape(queries.shape)
+ grad_queries = (math.sqrt(head_dim) * grad_rows @ keys).reshape(queries.shape)
! The keys' gradient is divided by sqrt(D), but the queries' gradient is not. The score was divided, so both are.
""",
    ),
    also_right=r"""
# torch
import torch
def _scores_in_torch(grad, queries, keys):
    queries, keys, grad = (torch.tensor(np.array(each), requires_grad=True) for each in (queries, keys, grad))
    share = queries.shape[1] // keys.shape[1]
    scores = queries @ keys.repeat_interleave(share, 1).transpose(-1, -2) / queries.shape[-1] ** 0.5
    return torch.autograd.grad(scores, [queries, keys], grad.detach())
# loops
def _scores_in_loops(grad, queries, keys):
    grad, queries, keys = (np.array(each, np.float64) for each in (grad, queries, keys))
    share, root = queries.shape[1] // keys.shape[1], math.sqrt(keys.shape[-1])
    grad_queries, grad_keys = np.zeros_like(queries), np.zeros_like(keys)
    for b, h, t, s in np.ndindex(grad.shape):
        grad_queries[b, h, t] += grad[b, h, t, s] * keys[b, h // share, s] / root
        grad_keys[b, h // share, s] += grad[b, h, t, s] * queries[b, h, t] / root
    return [grad_queries, grad_keys]
# einsum
def _scores_by_einsum(grad, queries, keys):
    batch, groups, _, head_dim = keys.shape
    grad, rows = (each.reshape(batch, groups, -1, *each.shape[2:]) * head_dim**-0.25 for each in (grad, queries))
    to_queries = mx.einsum("bkgts,bksd->bkgtd", grad, keys) * head_dim**-0.25
    return to_queries.reshape(queries.shape), mx.einsum("bkgts,bkgtd->bksd", grad, rows)
""",
    also_wrong=r"""
# halved
- grad_rows = grad.reshape(batch, groups, -1, length) / math.sqrt(head_dim)
+ grad_rows = grad.reshape(batch, groups, -1, length) * 0.5
# the other sign
- return grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows
+ return -grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows
""",
)


def block_backward(grad, through_attention, through_mlp):
    """The gradient of x, where h = x + attention(norm(x)) and the result is h + mlp(norm(h))."""
    grad = grad + through_mlp(grad)
    return grad + through_attention(grad)


def _three_times(g):
    """3 * g"""
    return 3 * g


def _half(g):
    """g / 2"""
    return g / 2


def _turned(g):
    """g with its last axis reversed"""
    return g[..., ::-1]


def _minus_running_sum(g):
    """-cumsum(g) over the last axis"""
    return -mx.cumsum(g, axis=-1)


def _attention_once(function, grad, through_attention, through_mlp):
    """The gradient of x, or a `Told` if attention was passed several times."""
    calls = []

    def counted(g):
        calls.append(g)
        return through_attention(g)

    counted.__doc__ = through_attention.__doc__
    result = function(grad, counted, through_mlp)
    if len(calls) > 1 and same(result, block_backward(grad, through_attention, through_mlp)):
        return Told(f"the right gradient, but from {len(calls)} calls of `through_attention`")
    return result


BLOCK = Exercise(
    "17.8",
    "A whole block",
    "Forward, a block computes `h = x + attention(norm(x))` and then `h + mlp(norm(h))`. Two functions are given: "
    "`through_attention(g)` takes the gradient of the attention's result and returns the gradient at the input of its "
    "norm; `through_mlp(g)` does the same for the MLP. Write `block_backward(grad, through_attention, through_mlp)`, "
    "which computes the gradient of x from the gradient of the block's result.",
    minutes=6,
    difficulty=2,
    solution=block_backward,
    hints=(
        "Begin with the last operation. The result is the sum of h and the MLP's output for h, so h reaches the "
        "result in two ways.",
        "h gets `grad` itself, along the shortcut, plus `through_mlp(grad)`. Then do the same one step earlier.",
        "`grad = grad + through_mlp(grad)`, and then x gets `grad + through_attention(grad)`.",
    ),
    cases=(
        (mx.array([[[1.0, 2.0]]]), _three_times, _half),
        (mx.array([[[0.5, -1.5, 4.0]]]), _turned, _minus_running_sum),
        *drawn(2, lambda rng: (_normal(rng, 2, 3, 4), _minus_running_sum, _turned)),
        *drawn(1, lambda rng: (_normal(rng, 1, 1, 1), _half, _three_times), seed=1),
    ),
    mistakes=slips(
        block_backward,
        r"""
@ grad = grad + through_mlp(grad)
@ return grad + through_attention(grad)
no shortcuts
+ grad = through_mlp(grad)
+ return through_attention(grad)
! Both shortcuts are missing: `x +` passes the gradient on unchanged, in addition to the gradient through the branch.
forward order
+ grad = grad + through_attention(grad)
+ return grad + through_mlp(grad)
! That goes through attention first. Backwards, the MLP comes first, because it came last.
side by side (2)
+ return grad + through_mlp(grad) + through_attention(grad)
! Here attention got the block's `grad`, as if it were *parallel* to the MLP. It comes before the MLP: its result
! reaches the loss along the shortcut and through the MLP, so it needs the sum of both.

attention twice (3)
- grad = grad + through_mlp(grad)
- return grad + through_attention(grad)
+ return grad + through_mlp(grad) + through_attention(grad) + through_attention(through_mlp(grad))
! In the model a call also stores the gradients of the weights, and a second call with another gradient overwrites them.
! Add up first, then call `through_attention` once.
no shortcut round the MLP (2)
- grad = grad + through_mlp(grad)
+ grad = through_mlp(grad)
! The shortcut past the MLP is missing: h itself is also a part of the result.

@ return grad + through_attention(grad)
no shortcut round attention (2)
+ return through_attention(grad)
! The shortcut past attention is missing: x itself is also a part of h.
shortcut twice (2)
+ return 2 * grad + through_attention(grad)
! That is one shortcut too many: each sum passes the gradient on once.
""",
    ),
    also_right=r"""
# one line
lambda grad, attention, mlp: grad + mlp(grad) + attention(grad + mlp(grad))
""",
    also_wrong=r"""
# a minus
- return grad + through_attention(grad)
+ return -grad + through_attention(grad)
""",
    run=_attention_once,
    explain=(
        "If both `through_...` return 0, a block passes the gradient on unchanged. So, however deep the model is, "
        "there is a path from the loss to the embedding on which nothing is lost."
    ),
)

ZEROS = Exercise(
    "17.9",
    "Which gradients are exactly 0?",
    "The row is '7+7=14', six tokens; the model reads the first five and should predict the last five. Its vocabulary "
    "has 64 tokens. Answer with four numbers, in a tuple `(a, b, c, d)`. In the *untied* model, how many of the 64 "
    "rows of `embedding.weight` get a gradient of exactly 0 (a), and how many of the 64 rows of `lm_head.weight` (b)? "
    "In the *tied* model, which is the one that ships with the kit, how many rows of `embedding.weight` get a "
    "gradient of exactly 0 (c)? And if the model reads a single token, '7', how many of the 16,384 numbers of "
    "`layers.0.self_attn.q_proj.weight` get a gradient of exactly 0 (d)?",
    minutes=8,
    difficulty=2,
    solution=(60, 0, 0, 16384),
    hints=(
        "(a) A row of the table that was never looked up appears in no formula. Which rows were looked up? (b) "
        "softmax gives every token a share above 0: which logits get a gradient?",
        "(c) A tied matrix gets two gradients, one from the table and one from the output layer, and they add up. (d) "
        "With one key, what does softmax give, whatever the score is?",
        "(a) The model read '7', '+', '7', '=', '1': four different tokens. (d) A softmax over one number is always "
        "1, so scores, queries and keys change nothing.",
    ),
    mistakes=slips(
        (60, 0, 0, 16384),
        r"""
the answer counted too (3)
+ (59, 0, 0, 16384)
! The model only predicts the last '4', it never reads it.
seven counted twice (3)
+ (59, 0, 0, 0)
! The model never reads the last '4'; and think about (d) again.
repeated tokens (3)
+ (61, 0, 0, 16384)
! Which four of the tokens are different? '7' '+' '=' and '1'.
only the targets
+ (60, 60, 60, 16384)
! The output layer compares the hidden state with *every* row: each token's share p is above 0, and p times the hidden
! state is its gradient.
targets in the output layer
+ (60, 59, 59, 16384)
! (b) Not only the targets' rows get a gradient: every token has a share p above 0 in softmax, and a gradient of p times
! the hidden state.
tied as untied (2)
+ (60, 0, 60, 16384)
! (c) The tied matrix is the output layer as well: see (b).
one token learns too (2)
+ (60, 0, 0, 0)
! (d) A single token can only look at itself. Its weight is 1, whatever query and key say.
""",
    ),
    also_right=r"""
# a list
[60, 0, 0, 16384]
""",
    explain="The gradient is exactly 0, not small, because a batch that does not contain a token never looks up the "
    "row of that token.",
)


def clip_by_norm(grads, max_norm):
    """(the gradients, shortened together to max_norm if longer, and their norm before)."""
    norm = math.sqrt(sum(mx.sum(grad * grad).item() for grad in grads.values()))
    scale = min(1.0, max_norm / norm) if norm > 0 else 1.0
    return {name: grad * scale for name, grad in grads.items()}, norm


def _draw_gradients(rng):
    scale = float(rng.choice([0.1, 3.0]))
    return {"embedding.weight": scale * _normal(rng, 3, 2), "final_norm.weight": _normal(rng, 2)}, 1.0


CLIP = Exercise(
    "17.10",
    "Shorter, in the same direction",
    "Write `clip_by_norm(grads, max_norm)` for a dictionary of gradients by name. Together the gradients form one "
    "long vector, whose length is the **norm**. If the norm is larger than `max_norm`, multiply all gradients by one "
    "common factor, so that the norm becomes `max_norm`; otherwise leave them unchanged. Return a tuple of the new "
    "dictionary and the norm before clipping (a number).",
    minutes=7,
    difficulty=2,
    solution=clip_by_norm,
    hints=(
        "The norm is the square root of the sum of *all* squares, over all arrays.",
        "Multiply every gradient by `scale = min(1, max_norm / norm)`. What if all gradients are 0?",
        "`norm = math.sqrt(sum(mx.sum(grad * grad).item() for grad in grads.values()))`",
    ),
    cases=(
        ({"a": mx.array([3.0, 0.0]), "b": mx.array([[4.0]])}, 1.0),
        ({"a": mx.array([3.0, 0.0]), "b": mx.array([[4.0]])}, 10.0),
        ({"a": mx.array([0.3]), "b": mx.array([[0.2, -0.1]])}, 0.25),
        ({"a": mx.zeros((2,)), "b": mx.zeros((1, 3))}, 1.0),
        *drawn(3, _draw_gradients),
    ),
    mistakes=slips(
        clip_by_norm,
        r"""
@ return {name: grad * scale for name, grad in grads.items()}, norm
each alone
+ norms = {name: math.sqrt(mx.sum(grad * grad).item()) for name, grad in grads.items()}
+ return {name: grad * min(1.0, max_norm / (norms[name] or 1)) for name, grad in grads.items()}, norm
! Each gradient was shortened separately, which turns the long vector. One factor for all keeps its direction.
by value
+ return {name: mx.clip(grad, -max_norm, max_norm) for name, grad in grads.items()}, norm
! That cuts every number at max_norm. Shorten the length of all numbers together.

@ scale = min(1.0, max_norm / norm) if norm > 0 else 1.0
always (2)
+ scale = max_norm / norm if norm > 0 else 1.0
! Short gradients became longer. Change only gradients longer than max_norm.
to length 1 (2)
+ scale = 1 / norm if norm > max_norm else 1.0 if norm > 0 else 1.0
! A gradient that was too long now has length 1. It should be `max_norm` long.
nothing divided by nothing (2)
+ scale = min(1.0, max_norm / norm)
! If all gradients are 0, that divides by 0. They are short enough: leave them unchanged.

@ norm = math.sqrt(sum(mx.sum(grad * grad).item() for grad in grads.values()))
no root
+ norm = sum(mx.sum(grad * grad).item() for grad in grads.values())
! That is the square of the length: the root is missing.
sum of lengths
+ norm = sum(math.sqrt(mx.sum(grad * grad).item()) for grad in grads.values())
! That adds the lengths of the arrays. For one long vector, add all squares first, and take one root.

norm of the shortened
- return {name: grad * scale for name, grad in grads.items()}, norm
+ return {name: grad * scale for name, grad in grads.items()}, norm * scale
! The second part should be the length *before* clipping: that is the number to watch in training.
""",
    ),
    also_right=r"""
# NumPy
def _clip_in_numpy(grads, max_norm):
    norm = np.linalg.norm(np.concatenate([np.array(grad).ravel() for grad in grads.values()]))
    return {name: np.array(grad) * (max_norm / max(norm, max_norm)) for name, grad in grads.items()}, float(norm)
""",
    also_wrong=r"""
# not clipped
- return {name: grad * scale for name, grad in grads.items()}, norm
+ return {name: grad + 0 * scale for name, grad in grads.items()}, norm
""",
)
