"""Sampling with torch on a CPU: the numbers of MLX's decoder, except for rounding, in less time.

torch computes on all cores where MLX's kernels for a CPU use one, and oneDNN keeps large matrices packed as its
products read them, where MKL packs them again for every token. Besides, the maps with the same input are one matrix
here (q, k and v; gate and up), and queries and keys are normalised and rotated together.

Shapes: B rows, T tokens, V vocabulary, H query heads, K heads of keys and values, D head_dim, S positions of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mlx_grpo_kit.generation.batching import TokenIds, pad
from mlx_grpo_kit.generation.decoder import Drawn, uniform_numbers
from mlx_grpo_kit.generation.sampling import LARGEST_UNIFORM, SamplingConfig, filtered
from mlx_grpo_kit.grpo.learners.torch_learner import tensor_of
from mlx_grpo_kit.grpo.learners.torch_qwen3 import output_weight, rope_table, turn
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


@dataclass(frozen=True)
class Layer:
    """The weights of a transformer block. A norm's weight is a factor of the columns of the map that follows it."""

    qkv: Linear
    head_norm: Tensor  # [H + K, D]: of queries, with attention's 1 / sqrt(D), and of keys
    output: Linear
    gate_up: Linear
    down: Linear


def normed(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis, in half of the time of `functional.rms_norm`."""
    squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    return x * squares.mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


def packed(weight: Tensor, num_rows: int) -> Linear:
    """x -> x W^T for x [num_rows, in], or another number of rows, which takes more time."""
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) if torch.backends.mkldnn.is_available() else None
    if pack is None or weight.numel() < PACKED:
        return lambda x: functional.linear(x, weight)
    packed_weight, multiply = pack(weight, num_rows), torch.ops.mkldnn._linear_pointwise
    return lambda x: multiply(x, packed_weight, None, "none", [], "")


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
        self.layers = [self._layer(f"layers.{layer}.", num_rows) for layer in range(config.num_hidden_layers)]
        self.to_logits = packed(output_weight(config, self.params), num_rows)
        uniform = mx.vmap(partial(uniform_numbers, row_keys))(mx.arange(sampling.max_new_tokens))
        self.uniform = torch.from_numpy(np.array(mx.minimum(uniform, LARGEST_UNIFORM)))  # [tokens, B]
        self.length, self.padding = 0, None  # `padding`: bool [B, 1, P], True where a prompt is padded
        self.table: Sequence[Tensor] = ()  # cosines and sines of all positions in the cache
        self.keys: list[Tensor] = []  # per layer [B, K, capacity, D]
        self.values: list[Tensor] = []

    def _layer(self, prefix: str, num_rows: int) -> Layer:
        config = self.config

        def weight(name: str) -> Tensor:
            return self.params[f"{prefix}{name}.weight"]

        def after_norm(norm: str, *names: str) -> Linear:
            return packed(torch.cat([weight(name) for name in names]) * weight(norm), num_rows)

        of_queries = (weight("self_attn.q_norm") * config.head_dim**-0.5).expand(config.num_attention_heads, -1)
        of_keys = weight("self_attn.k_norm").expand(config.num_key_value_heads, -1)
        return Layer(
            qkv=after_norm("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            head_norm=torch.cat([of_queries, of_keys]),
            output=packed(weight("self_attn.o_proj"), num_rows),
            gate_up=after_norm("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj"),
            down=packed(weight("mlp.down_proj"), num_rows),
        )

    def start(self, prompts: Sequence[TokenIds], group_size: int) -> Drawn:
        """Read the prompts and draw the first token of every row."""
        ids, mask = map(torch.from_numpy, pad(prompts, "left"))
        self.padding = None if mask.all() else mask[:, None] == 0
        shape = (len(prompts), self.config.num_key_value_heads, 0, self.config.head_dim)
        self.keys, self.values = ([torch.empty(shape)] * self.config.num_hidden_layers for _ in range(2))
        self.reserve(ids.shape[1])
        with on_cores(self.all_cores), torch.inference_mode():
            logits = self._logits(ids)
            self._change_rows(lambda rows: rows.repeat_interleave(group_size, dim=0))
            return self._draw(logits.repeat_interleave(group_size, dim=0), 0)

    def next(self, tokens: mx.array, step: int) -> Drawn:
        """Append these tokens and draw what follows."""
        with on_cores(self.all_cores), torch.inference_mode():
            return self._draw(self._logits(torch.from_numpy(np.array(tokens))[:, None]), step)

    @property
    def is_full(self) -> bool:
        """True if the cache has no room."""
        return self.length == self.keys[0].shape[2]

    def reserve(self, num_tokens: int) -> None:
        """Make room in the cache for this many more tokens."""
        self.table = rope_table(self.config, torch.arange(self.length + num_tokens))
        room = (0, 0, 0, num_tokens)
        self.keys = [functional.pad(each, room) for each in self.keys]
        self.values = [functional.pad(each, room) for each in self.values]

    def keep(self, rows: np.ndarray) -> None:
        """Keep these rows in the batch."""
        these = torch.from_numpy(rows)
        self.uniform = self.uniform[:, these]
        self._change_rows(lambda each: each[these])

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.keys, self.values = [*map(change, self.keys)], [*map(change, self.values)]
        self.padding = None if self.padding is None else change(self.padding)

    def _logits(self, ids: Tensor) -> Tensor:
        """Append tokens [B, T]; the logits of what follows, [B, V]."""
        config, (num_rows, num_tokens) = self.config, ids.shape
        queries, keys, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        here = slice(self.length, self.length + num_tokens)
        table, hidden_from = [each[here] for each in self.table], self._hidden_from(num_tokens, here.stop)
        x = functional.embedding(ids, self.params["embedding.weight"])
        for layer, all_keys, all_values in zip(self.layers, self.keys, self.values, strict=True):
            heads = layer.qkv(normed(x, config.rms_norm_eps)).unflatten(-1, (-1, head_dim))
            turned = turn(normed(heads[:, :, : queries + keys], config.rms_norm_eps) * layer.head_norm, table)
            all_keys[:, :, here] = turned[:, :, queries:].transpose(1, 2)
            all_values[:, :, here] = heads[:, :, queries + keys :].transpose(1, 2)
            # The query heads that share keys become rows of one matrix product.
            folded = turned[:, :, :queries].transpose(1, 2).reshape(num_rows, keys, -1, head_dim)
            scores = folded @ all_keys[:, :, : here.stop].transpose(-1, -2)
            if hidden_from is not None:
                scores = scores.unflatten(2, (-1, num_tokens)).masked_fill(hidden_from, -1e9).flatten(2, 3)
            mixed = (scores.softmax(-1) @ all_values[:, :, : here.stop]).view(num_rows, queries, num_tokens, head_dim)
            x = x + layer.output(mixed.transpose(1, 2).flatten(2))
            gate, up = layer.gate_up(normed(x, config.rms_norm_eps)).chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate) * up)
        self.length = here.stop
        last = normed(x[:, -1], config.rms_norm_eps)
        return self.to_logits(last * self.params["final_norm.weight"])

    def _hidden_from(self, num_tokens: int, num_keys: int) -> Tensor | None:
        """The keys that a query may not look at, bool [B or 1, 1, 1, T, S], or None if each sees all."""
        later = None
        if num_tokens > 1:
            later = torch.ones(num_tokens, num_keys, dtype=torch.bool).triu(num_keys - num_tokens + 1)[None]
        if self.padding is not None:
            padding = functional.pad(self.padding, (0, num_keys - self.padding.shape[-1]))
            later = padding if later is None else later | padding
        return None if later is None else later[:, None, None]

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
