"""Decoders draw the next token of each row of a batch. A decoder is the model, its cache and the draw together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from mlx_grpo_kit.generation.padding import TokenIds, left_padded
from mlx_grpo_kit.generation.sampling import SamplingConfig, draw, filtered, token_logps
from mlx_grpo_kit.qwen3.cache import KVCache
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.forward import output_logits, qwen3_forward, qwen3_hidden_states
from mlx_grpo_kit.runtime import mx


class Drawn(NamedTuple):
    """One token of each row (int32), its log-probability, and the entropy of the distribution there, [B] each."""

    tokens: mx.array
    logps: mx.array
    entropies: mx.array


class Decoder(Protocol):
    """The model, its cache and the draw for a batch of rows, which get one token after another.

    Its arguments are (config, params, sampling, row_keys). `row_keys` [B, 2] holds a key of random numbers for each
    row, and `uniform_numbers` of this key decides about each of its tokens.
    """

    def start(self, prompts: Sequence[TokenIds], group_size: int) -> Drawn:
        """Read the prompts, each of which has `group_size` adjacent rows, and draw the first token of every row."""

    def next(self, tokens: mx.array, step: int) -> Drawn:
        """Append `tokens` [B] and draw what follows: token `step` of a row, counted from 0."""

    @property
    def is_full(self) -> bool:
        """True if `next` needs more room first (`reserve`)."""

    def reserve(self, num_tokens: int) -> None:
        """Make room for this many more tokens."""

    def keep(self, rows: np.ndarray) -> None:
        """Keep the rows with these indices in the batch, int [fewer than B]."""


def uniform_numbers(row_keys: mx.array, step: mx.array) -> mx.array:
    """The random number in [0, 1) that decides about token `step` of every row: [B, 2] -> [B]."""
    # A key is two numbers, and every other key gives other random numbers, so adding the step to the row's key gives a
    # fresh key.
    return mx.vmap(lambda key: mx.random.uniform(key=key))(row_keys + step.astype(mx.uint32))


class MLXDecoder:
    """A `Decoder` that computes with MLX, on its default device, in the parameters' dtype and form."""

    def __init__(
        self, config: Qwen3Config, params: Mapping[str, mx.array], sampling: SamplingConfig, row_keys: mx.array
    ):
        self.config, self.params, self.sampling, self.row_keys = config, dict(params), sampling, row_keys
        self.cache = KVCache(config.num_hidden_layers)
        self.attention_mask: mx.array | None = None
        self.decode = _decode_step(config, sampling)

    def start(self, prompts: Sequence[TokenIds], group_size: int) -> Drawn:
        prompt_ids, mask = left_padded(prompts)
        hidden = qwen3_hidden_states(self.config, self.params, prompt_ids, cache=self.cache, attention_mask=mask)[:, -1]
        logits = mx.repeat(output_logits(self.config, self.params, hidden), group_size, axis=0)
        self.cache = self.cache.repeat(group_size)
        self.attention_mask = None if mask is None else mx.repeat(mask, group_size, axis=0)
        return _draw(self.sampling, logits, self.row_keys, mx.array(0))

    def next(self, tokens: mx.array, step: int) -> Drawn:
        """Append these tokens and draw what follows. It is computed while the caller goes on."""
        cache = self.cache
        *drawn, cache.keys, cache.values = self.decode(
            self.params, cache.keys, cache.values, mx.array(cache.length), self.attention_mask, tokens, self.row_keys,
            mx.array(step),
        )  # fmt: skip
        cache.advance(1)
        mx.async_eval(drawn, cache.keys, cache.values)
        return Drawn(*drawn)

    @property
    def is_full(self) -> bool:
        return self.cache.length == self.cache.capacity

    def reserve(self, num_tokens: int) -> None:
        self.cache.reserve(self.cache.length + num_tokens)

    def keep(self, rows: np.ndarray) -> None:
        these = mx.array(rows)
        self.cache, self.row_keys = self.cache.rows(these), self.row_keys[these]
        self.attention_mask = None if self.attention_mask is None else self.attention_mask[these]


@lru_cache(maxsize=16)
def _decode_step(config: Qwen3Config, sampling: SamplingConfig):
    """A compiled decoding step. The position is an array, so one graph works for every step of a block."""

    @mx.compile
    def decode(params, keys, values, length, attention_mask, tokens, row_keys, step):
        cache = KVCache(config.num_hidden_layers)
        cache.keys, cache.values, cache.length = list(keys), list(values), length
        logits = qwen3_forward(config, params, tokens[:, None], cache=cache, attention_mask=attention_mask)
        return *_draw(sampling, logits[:, 0], row_keys, step), cache.keys, cache.values

    return decode


def _draw(sampling: SamplingConfig, logits: mx.array, row_keys: mx.array, step: mx.array) -> Drawn:
    """Draw a token per row of [B, V] with the row's key."""
    kept = filtered(logits, sampling.top_p, sampling.top_k, sampling.min_p)
    tokens = draw(kept, sampling.temperature, uniform_numbers(row_keys, step)).astype(mx.int32)
    return Drawn(tokens, *token_logps(logits, tokens, sampling.temperature, with_entropy=True))
