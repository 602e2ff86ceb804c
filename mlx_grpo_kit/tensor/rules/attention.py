"""Two operations of transformers that are composed of others and so need no gradient rules of their own."""

from __future__ import annotations

import math

import numpy as np

from mlx_grpo_kit.tensor.rules.elementwise import add, mul, where
from mlx_grpo_kit.tensor.rules.products import matmul
from mlx_grpo_kit.tensor.rules.reductions import softmax
from mlx_grpo_kit.tensor.rules.shapes import astype, swapaxes
from mlx_grpo_kit.tensor.tensor import Tensor, result

__all__ = ["dropout", "scaled_dot_product_attention"]


def scaled_dot_product_attention(query, key, value, mask=None, is_causal=False, scale=None) -> Tensor:
    """softmax(query @ key^T * scale) @ value (Vaswani et al., 2017, equation 1).

    query [..., L, D], key [..., S, D], value [..., S, E] -> [..., L, E]. A query that may attend to no key gives nan.

    Args:
        mask: an array that broadcasts to [..., L, S]: True where a query may attend, or numbers to add to the scores.
        is_causal: True to let a query attend only to its own position and the positions before it.
        scale: the factor of the scores; 1 / sqrt(D) by default.

    Raises:
        ValueError: both a mask and is_causal are given, or the shapes do not fit.
    """
    if query.dtype == np.float16:  # scores may exceed the largest float16, 65504
        wide = [astype(x, np.float32) for x in (query, key, value)]
        return astype(scaled_dot_product_attention(*wide, mask, is_causal, scale), np.float16)
    if query.dtype.kind != "f":
        query = astype(query, np.float64)
    if is_causal:
        if mask is not None:
            raise ValueError(
                "scaled_dot_product_attention: got a mask and is_causal=True; expected one of them. "
                "To combine them, pass np.tri(L, S, dtype=bool) & mask."
            )
        mask = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    scores = mul(matmul(query, swapaxes(key, -1, -2)), scale)
    if mask is not None:
        is_allowed = mask.data if isinstance(mask, Tensor) else np.asarray(mask)
        scores = where(is_allowed, scores, -math.inf) if is_allowed.dtype == bool else add(scores, mask)
    return matmul(softmax(scores, axis=-1), value)


def dropout(x, p=0.5, training=True, rng=None) -> Tensor:
    """Set each element to 0 with probability p and scale the others by 1 / (1 - p), which keeps the mean.

    Args:
        x: a tensor of any shape, which is returned unchanged if `training` is False.
        rng: a numpy.random.Generator, for repeatable results.

    Raises:
        ValueError: p is not between 0 and 1.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}.")
    if not training or p == 0:
        return x
    kept = (rng or np.random.default_rng()).random(x.shape) >= p
    return mul(x, result((kept / (1 - p) if p < 1 else kept).astype(x.dtype if x.dtype.kind == "f" else np.float64)))
