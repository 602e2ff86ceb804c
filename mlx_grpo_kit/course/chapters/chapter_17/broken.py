"""Three common mistakes in rules, for the last experiment of the chapter. None of them raises an error."""

from __future__ import annotations

from mlx_grpo_kit.qwen3.backward import mix_values_backward, rms_norm_backward
from mlx_grpo_kit.runtime import mx


def rope_not_turned_back(grad: mx.array, offset: int, theta: float) -> mx.array:
    """Return the gradient unchanged, as if there were no rotation."""
    return grad


def first_heads_only(grad: mx.array, weights: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    """Values get a gradient only from the first of the heads that share them."""
    grad_weights, _ = mix_values_backward(grad, weights, values)
    step = grad.shape[1] // values.shape[1]
    return grad_weights, weights[:, ::step].swapaxes(-1, -2) @ grad[:, ::step]


def rms_taken_for_a_constant(grad: mx.array, x: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """A norm's input gets grad * weight / rms, with the part along x left in."""
    _, grad_weight = rms_norm_backward(grad, x, weight, eps)
    return grad * weight * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps), grad_weight


BROKEN = {
    "as it should be": {},
    "RoPE not turned back": {"rope_backward": rope_not_turned_back},
    "first heads only": {"mix_values_backward": first_heads_only},
    "r taken for a constant": {"rms_norm_backward": rms_taken_for_a_constant},
}
"For each experiment, by its name, the rules that replace the right ones."
