"""Small models for trying out loops: their results can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlx_grpo_kit.runtime import mx

SIZE = 7
HEIGHTS = np.array([0.25, 1.5, -0.75, 0.5, 2.0, -1.25, 0.0])


def _likeliest(token: int) -> mx.array:
    """Logits [7] that are all different, with the largest at `token`."""
    logits = np.roll(HEIGHTS, token - int(HEIGHTS.argmax()))
    return mx.array(logits.astype(np.float32))


def next_is_one_more(tokens: Any) -> mx.array:
    """a model of 7 tokens: the likeliest next token is the last one + 1, and 0 follows 6"""
    return _likeliest((int(tokens[-1]) + 1) % SIZE)


def next_is_the_sum(tokens: Any) -> mx.array:
    """a model of 7 tokens: the likeliest next token is the sum of all tokens so far, modulo 7"""
    return _likeliest(sum(int(token) for token in tokens) % SIZE)


class SumCache:
    """The cache of `sums`: the tokens of each row, padding included, and the number of positions."""

    def __init__(self):
        self.ids: np.ndarray | None = None
        self.length = 0

    def __repr__(self) -> str:
        return "an empty cache"


def sums(ids: Any, cache: SumCache, attention_mask: Any = None) -> mx.array:
    """a model of 7 tokens: the likeliest next token is the sum of (token + 1) over the row's real tokens, modulo 7"""
    ids = np.array(ids)
    if ids.ndim != 2:
        raise ValueError(f"ids have shape {ids.shape}; expected [rows, tokens]")
    cache.ids = ids if cache.ids is None else np.concatenate([cache.ids, ids], axis=1)
    before, cache.length = cache.length, cache.ids.shape[1]
    real = np.ones(cache.ids.shape, int)
    if attention_mask is not None:
        mask = np.array(attention_mask)[:, : cache.length]
        real[:, : mask.shape[1]] = mask  # positions beyond the end of the mask are tokens
    # At padding the result is another token: a model's logits there are never used.
    running = (np.cumsum((cache.ids + 1) * real, axis=1) + (real == 0))[:, before:]
    return mx.stack([mx.stack([_likeliest(int(number) % SIZE) for number in row]) for row in running])


def likeliest(logits: Any, row: int, step: int) -> int:
    """the likeliest token, whatever the row and the step"""
    return int(mx.argmax(logits))


def by_row_and_step(logits: Any, row: int, step: int) -> int:
    """the likeliest token + 2 * row + step, modulo 7"""
    return (int(mx.argmax(logits)) + 2 * row + step) % SIZE
