"""Sampling with torch on a CPU: the numbers of MLX's decoder, except for rounding, in less time.

torch computes on all cores where MLX's kernels for a CPU use one, and oneDNN keeps large matrices packed as its
products read them, where MKL packs them again for every token. Besides, the maps with the same input are one matrix
here (q, k and v; gate and up), and queries and keys are normalised and rotated together.

Shapes: B rows, T tokens, V vocabulary, H query heads, K heads of keys and values, D head_dim, S positions of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mlx_grpo_kit.generation.decoder import Drawn, uniform_numbers
from mlx_grpo_kit.generation.padding import TokenIds, pad
from mlx_grpo_kit.generation.sampling import LARGEST_UNIFORM, SamplingConfig, filtered
from mlx_grpo_kit.grpo.learners.torch_learner import tensor_of
from mlx_grpo_kit.grpo.learners.torch_operations import has_packed_products
from mlx_grpo_kit.grpo.learners.torch_qwen3 import AFTER, Layer, attention, hidden_from, output_weight, rope_table, turn
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.matrices import ADAPTER
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.torch_threads import on_cores

Linear = Callable[[Tensor], Tensor]

PACKED = 2**17
"""From this many elements on oneDNN's packed product takes less time than MKL's."""

MANY_PRODUCTS = 6e7
"""torch uses all cores if a batch has more rows times parameters than this."""

LOWEST = -200.0
"""A bound for logits below the largest: e to the power of it is 0 in float32, and 0 times it is 0 (not so -inf)."""


def normed(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis, in half of the time of `functional.rms_norm`."""
    squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    return x * squares.mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


def packed(weight: Tensor, num_rows: int, bias: Tensor | None = None) -> Linear:
    """x -> x W^T + bias for x [num_rows, in], or another number of rows, which takes more time."""
    if weight.numel() < PACKED or not has_packed_products():
        return lambda x: functional.linear(x, weight, bias)
    packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda x: multiply(x, packed_weight, bias, "none", [], "")


class PackedLayer(Layer):
    """A layer whose norms' weights are factors of the columns of the maps that follow them."""

    def __init__(self, config: Qwen3Config, params: Mapping[str, Tensor], prefix: str, num_rows: int):
        super().__init__(config, params, prefix)
        self.maps = {name: packed(self.weight(name), num_rows) for name in ("self_attn.o_proj", "mlp.down_proj")}
        self.sizes = {}
        for norm, names in AFTER.items():
            *weights, last = map(self.weight, names)
            biases = [each for each in map(self.bias, names) if each is not None]
            self.maps[norm] = packed(
                torch.cat([*weights, last]) * self.weight(norm), num_rows, torch.cat(biases) if biases else None
            )
            self.sizes[norm] = [sum(map(len, weights)), len(last)]
        of_queries, of_keys = [torch.ones(config.head_dim)] * 2
        if self.has_head_norms:
            of_queries, of_keys = self.weight("self_attn.q_norm"), self.weight("self_attn.k_norm")
        heads = config.num_attention_heads, config.num_key_value_heads
        of_queries = of_queries * config.head_dim**-0.5
        self.head_scale = torch.cat([of_queries.expand(heads[0], -1), of_keys.expand(heads[1], -1)])  # [H + K, D]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return self.maps[name](x)

    def after_norm(self, norm: str, x: Tensor) -> Sequence[Tensor]:
        """All maps but the last in one tensor, and the last."""
        return self.maps[norm](normed(x, self.config.rms_norm_eps)).split(self.sizes[norm], dim=-1)

    def turned(self, projected: Sequence[Tensor], table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        both, values = (each.unflatten(-1, (-1, self.config.head_dim)) for each in projected)
        if self.has_head_norms:
            both = normed(both, self.config.rms_norm_eps)
        both = turn(both * self.head_scale, table)
        return *both.split([self.config.num_attention_heads, self.config.num_key_value_heads], dim=2), values


class TorchDecoder:
    """A `Decoder` (generation/decoder.py) for float32 parameters without adapters, on the CPU.

    A row's random numbers are those of MLX's decoder, so both draw the same tokens unless rounding decides.

    Raises ValueError for parameters of another dtype, quantized ones, and adapters.
    """

    def __init__(
        self, config: Qwen3Config, params: Mapping[str, mx.array], sampling: SamplingConfig, row_keys: mx.array
    ):
        for name, value in params.items():
            if value.dtype != mx.float32 or name.endswith(ADAPTER):
                kind = "an adapter" if name.endswith(ADAPTER) else str(value.dtype).rpartition(".")[2]
                raise ValueError(
                    f"torch samples from plain float32 parameters, and {name} is {kind}. Sample with "
                    "decoder=MLXDecoder, the default of generate."
                )
        self.config, self.sampling = config, sampling
        self.params = {name: tensor_of(value) for name, value in params.items()}
        num_rows = len(row_keys)
        self.all_cores = num_rows * sum(each.numel() for each in self.params.values()) > MANY_PRODUCTS
        prefixes = [f"layers.{layer}." for layer in range(config.num_hidden_layers)]
        self.layers = [PackedLayer(config, self.params, prefix, num_rows) for prefix in prefixes]
        self.to_logits = packed(output_weight(config, self.params), num_rows)
        uniform = mx.vmap(partial(uniform_numbers, row_keys))(mx.arange(sampling.max_new_tokens))
        self.uniform = torch.from_numpy(np.array(mx.minimum(uniform, LARGEST_UNIFORM)))  # [tokens, B]
        self.length, self.mask = 0, None  # `mask`: [B, P], 0 where a prompt is padded; None if none is
        self.table: Sequence[Tensor] = ()  # cosines and sines of all positions in the cache
        self.keys: list[Tensor] = []  # per layer [B, K, capacity, D]
        self.values: list[Tensor] = []

    def start(self, prompts: Sequence[TokenIds], group_size: int) -> Drawn:
        ids, mask = map(torch.from_numpy, pad(prompts, "left"))
        self.mask = None if mask.all() else mask
        shape = (len(prompts), self.config.num_key_value_heads, 0, self.config.head_dim)
        self.keys, self.values = ([torch.empty(shape)] * self.config.num_hidden_layers for _ in range(2))
        self.reserve(ids.shape[1])
        with on_cores(self.all_cores), torch.inference_mode():
            logits = self._logits(ids)
            self._change_rows(lambda rows: rows.repeat_interleave(group_size, dim=0))
            return self._draw(logits.repeat_interleave(group_size, dim=0), 0)

    def next(self, tokens: mx.array, step: int) -> Drawn:
        with on_cores(self.all_cores), torch.inference_mode():
            return self._draw(self._logits(torch.from_numpy(np.array(tokens))[:, None]), step)

    @property
    def is_full(self) -> bool:
        return self.length == self.keys[0].shape[2]

    def reserve(self, num_tokens: int) -> None:
        self.table = rope_table(self.config, torch.arange(self.length + num_tokens))
        room = (0, 0, 0, num_tokens)
        self.keys = [functional.pad(each, room) for each in self.keys]
        self.values = [functional.pad(each, room) for each in self.values]

    def keep(self, rows: np.ndarray) -> None:
        these = torch.from_numpy(rows)
        self.uniform = self.uniform[:, these]
        self._change_rows(lambda each: each[these])

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.keys, self.values = [*map(change, self.keys)], [*map(change, self.values)]
        self.mask = None if self.mask is None else change(self.mask)

    def _logits(self, ids: Tensor) -> Tensor:
        """Append tokens [B, T]; the logits of what follows, [B, V]."""
        here, hidden, mask = slice(self.length, self.length + ids.shape[1]), None, self.mask
        if mask is not None:
            mask = functional.pad(mask, (0, here.stop - mask.shape[1]), value=1)
        if mask is not None or ids.shape[1] > 1:
            hidden = hidden_from(ids.shape[1], here.stop, mask, ids.device)
        table = [each[here] for each in self.table]
        x = functional.embedding(ids, self.params["embedding.weight"])
        for layer, *cache in zip(self.layers, self.keys, self.values, strict=True):
            x = layer(x, table, partial(self._attend, cache, here, hidden))
        self.length = here.stop
        last = normed(x[:, -1], self.config.rms_norm_eps)
        return self.to_logits(last * self.params["final_norm.weight"])

    @staticmethod
    def _attend(cache: Sequence[Tensor], here: slice, hidden: Tensor | None, queries: Tensor, *own: Tensor) -> Tensor:
        """Append keys and values [B, T, K, D] to a layer's cache, and mix its values: [B, T, H, D] for such queries."""
        for kept, each in zip(cache, own, strict=True):
            kept[:, :, here] = each.transpose(1, 2)
        keys, values = (kept[:, :, : here.stop] for kept in cache)
        return attention(queries.transpose(1, 2), keys, values, hidden).transpose(1, 2)

    def _draw(self, logits: Tensor, step: int) -> Drawn:
        """Draw a token per row of [B, V], by the formulas of `draw` and `token_logps` in generation/sampling.py."""
        how = self.sampling
        scaled = (logits - logits.amax(-1, keepdim=True)) * (1 / (how.temperature or 1.0))
        powers = scaled.clamp_(min=LOWEST).exp()
        kept, kept_powers = logits, powers
        if how.top_p < 1 or how.top_k or how.min_p:
            kept = torch.from_numpy(np.array(filtered(mx.array(logits.numpy()), how.top_p, how.top_k, how.min_p)))
            kept_powers = torch.where(kept > -torch.inf, powers, 0.0)
        if how.temperature == 0:
            tokens = kept.argmax(-1)
        else:
            sums = kept_powers.cumsum(-1)
            tokens = (sums <= self.uniform[step][:, None] * sums[:, -1:]).sum(-1)
        total = powers.sum(-1)
        log_total = total.log()
        logps = scaled.gather(-1, tokens[:, None])[:, 0] - log_total
        entropies = log_total - (powers * scaled).sum(-1) / total
        return Drawn(*(mx.array(each.numpy()) for each in (tokens.int(), logps, entropies)))
