"""The key-value cache: the keys and values of the tokens so far."""

from __future__ import annotations

from collections.abc import Callable

from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx


def kv_cache_bytes_per_position(config: Qwen3Config, dtype: mx.Dtype = mx.float32) -> int:
    """Bytes of one position of one row: a key and a value in every layer."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.size


class KVCache:
    """Keys and values of every layer for the tokens so far, in buffers that may have room for more.

    If you create a cache inside a loss function, gradients flow through it as through any other array.

    Attributes:
        keys: per layer, [B, num_key_value_heads, capacity, head_dim]; None before the first tokens.
        values: the same shapes.
        length: the number of filled positions; attention ignores the rest. An int, or a scalar int32 array
            inside a compiled step: one compiled graph then serves every position.
    """

    def __init__(self, num_hidden_layers: int):
        self.keys: list[mx.array | None] = [None] * num_hidden_layers
        self.values: list[mx.array | None] = [None] * num_hidden_layers
        self.length: int | mx.array = 0

    @property
    def capacity(self) -> int:
        """Positions that the buffers hold, filled or not."""
        return 0 if self.keys[0] is None else self.keys[0].shape[2]

    def append(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write keys and values [B, K, T, D] after position `length`; return the layer's buffers, [B, K, capacity, D].

        If there is room, the buffer is written in place (MLX donates a buffer without other references), so the cost of
        a step does not depend on the length so far. Without room, the new positions are concatenated. `advance` then
        increases `length` once for all layers.
        """
        self.keys[layer] = self._write(self.keys[layer], keys)
        self.values[layer] = self._write(self.values[layer], values)
        return self.keys[layer], self.values[layer]

    def _write(self, buffer: mx.array | None, new: mx.array) -> mx.array:
        if buffer is None:
            return new
        if isinstance(self.length, int) and self.length + new.shape[2] > buffer.shape[2]:
            return mx.concatenate([buffer[:, :, : self.length], new], axis=2)
        return mx.slice_update(buffer, new, mx.array(self.length).reshape(1), axes=(2,))

    def advance(self, num_tokens: int) -> None:
        """Increase `length` after `num_tokens` positions were appended in every layer."""
        self.length = self.length + num_tokens

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions in total, so that the following `append`s write in place."""
        room = capacity - self.capacity
        if room > 0:
            pad = [(0, 0), (0, 0), (0, room), (0, 0)]
            self.keys = [mx.pad(keys, pad) for keys in self.keys]
            self.values = [mx.pad(values, pad) for values in self.values]

    def rows(self, which: mx.array) -> KVCache:
        """A cache of the rows with the indices `which`, int32 [rows]."""
        return self._changed(lambda buffer: buffer[which])

    def repeat(self, times: int) -> KVCache:
        """A cache with every row repeated `times`, so that a prompt is computed once for its whole group."""
        return self._changed(lambda buffer: mx.repeat(buffer, times, axis=0))

    def _changed(self, change: Callable[[mx.array], mx.array]) -> KVCache:
        cache = KVCache(len(self.keys))
        cache.length, cache.keys, cache.values = self.length, [*map(change, self.keys)], [*map(change, self.values)]
        return cache
