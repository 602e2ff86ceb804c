"""Kernels by device: the exponential, the gated silu and attention, in the fastest form for each device.

The numbers are the same on every device, except for rounding. The architecture that uses them is in `forward.py`.
"""

from __future__ import annotations

import math

from mlx_grpo_kit.runtime import mx

# Added to masked scores. It is finite, so that a row with only masked scores gives no NaN. float16 ends at 65504.
MASKED, MASKED_FLOAT16 = -1e9, -3e4

UNPACKED = 2**22
"""The elements of a quantized matrix that a CPU unpacks at a time, while MLX has three copies of them."""


def _runs_on_cpu() -> bool:
    return mx.default_device() == mx.cpu


def exp(x: mx.array) -> mx.array:
    """e to the power of x. On the CPU `mx.power` is three times as fast as `mx.exp` and equal to it within 1e-6."""
    return _power_of_e(x) if _runs_on_cpu() else mx.exp(x)


@mx.custom_function
def _power_of_e(x: mx.array) -> mx.array:
    return mx.power(math.e, x)


@_power_of_e.vjp
def _power_of_e_vjp(x, grad, output):
    # The automatic rule reads the numbers three times, to allow for a base of 0.
    return grad * output


def gated_silu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, where silu(x) = x / (1 + exp(-x))."""
    return _gated_silu(gate, up)[0]


@mx.custom_function
def _gated_silu(gate: mx.array, up: mx.array) -> tuple[mx.array, mx.array]:
    sigmoid = 1 / (1 + exp(-gate))
    return gate * sigmoid * up, sigmoid


@_gated_silu.vjp
def _gated_silu_vjp(primals, cotangents, outputs):
    # Written by hand, because the automatic rule computes the exponential again, and gives inf / inf for gate < -88.
    (gate, up), (grad, grad_sigmoid), sigmoid = primals, cotangents, outputs[1]
    silu, slope = gate * sigmoid, sigmoid * (1 - sigmoid)
    # The forward pass does not use the sigmoid. This backward pass does, so a second derivative goes through it.
    return grad * up * (sigmoid + gate * slope) + grad_sigmoid * slope, grad * silu


def quantized_product(
    x: mx.array, packed: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int
) -> mx.array:
    """x W^T of a quantized W: [..., in] -> [..., out]. Only x has a gradient.

    MLX's kernel unpacks the weights once for each row of x, which is fast on a GPU. For two rows or more a CPU is
    faster if it first unpacks some rows of W at a time and then multiplies. The backward pass unpacks them again.
    """
    sizes = {"group_size": group_size, "bits": bits}
    if not _runs_on_cpu() or x.size == x.shape[-1]:
        return mx.quantized_matmul(x, packed, scales, biases, transpose=True, **sizes)
    step = max(UNPACKED // x.shape[-1], 1)
    blocks = [slice(start, start + step) for start in range(0, packed.shape[0], step)]

    def unpacked(rows: slice, after: list[mx.array]) -> mx.array:
        [words] = mx.depends([packed[rows]], after)  # one block after the other, or MLX begins with many
        return mx.dequantize(words, scales[rows], biases[rows], **sizes).astype(x.dtype)

    @mx.custom_function
    def product(x: mx.array) -> mx.array:
        parts: list[mx.array] = []
        for rows in blocks:
            parts.append(x @ unpacked(rows, parts[-1:]).T)
        return mx.concatenate(parts, axis=-1) if parts[1:] else parts[0]

    @product.vjp
    def product_vjp(x, grad, output):
        total: list[mx.array] = []
        for rows in blocks:
            part = grad[..., rows] @ unpacked(rows, total)
            total = [total[0] + part if total else part]
        return total[0]

    return product(x)


def scaled_dot_product_attention(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
    """softmax(Q K^T / sqrt(D)) V with grouped queries: [B, H, T, D], [B, K, S, D] twice -> [B, H, T, D].

    `mask` is what `visible` in `forward.py` returns. On a GPU this calls MLX's fused kernel. On the CPU that kernel is
    the same graph with a slow exponential, so the formula is written out.
    """
    if _runs_on_cpu():
        # Divide by the sums after the product: D divisions per query instead of S.
        powers = _shifted_powers(attention_scores(queries, keys, mask))
        return mix_values(powers, values) / powers.sum(axis=-1, keepdims=True)
    scale = queries.shape[-1] ** -0.5
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


def attention_scores(queries: mx.array, keys: mx.array, mask: mx.array) -> mx.array:
    """Q K^T / sqrt(D), plus `MASKED` at masked positions: [B, H, T, D], [B, K, S, D] -> [B, H, T, S]."""
    batch, num_heads, num_queries, head_dim = queries.shape
    # The query heads that share keys become rows of one matrix product.
    folded = (queries * head_dim**-0.5).reshape(batch, keys.shape[1], -1, head_dim)
    scores = (folded @ keys.swapaxes(-1, -2)).reshape(batch, num_heads, num_queries, -1)
    masked = MASKED_FLOAT16 if scores.dtype == mx.float16 else MASKED
    return scores + (1 - mask.astype(scores.dtype)) * masked


def softmax(scores: mx.array) -> mx.array:
    """exp(x) / sum exp(x) over the last axis."""
    powers = _shifted_powers(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


def mix_values(weights: mx.array, values: mx.array) -> mx.array:
    """Each query's sum of values by its weights: [B, H, T, S], [B, K, S, D] -> [B, H, T, D]."""
    batch, num_heads, num_queries, num_keys = weights.shape
    mixed = weights.reshape(batch, values.shape[1], -1, num_keys) @ values
    return mixed.reshape(batch, num_heads, num_queries, -1)


def _shifted_powers(scores: mx.array) -> mx.array:
    # Softmax does not change if all scores are shifted by the same amount, so the shift by the largest needs no
    # gradient.
    return exp(scores - mx.stop_gradient(scores.max(axis=-1, keepdims=True)))
