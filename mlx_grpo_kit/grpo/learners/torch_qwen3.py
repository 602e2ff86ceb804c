"""Qwen3 in torch, over the kit's own dictionary of parameters: the same names, the same shapes, the same numbers.

    logits = qwen3_forward(config, params, input_ids)         # params: {"embedding.weight": tensor, ...}
    model = Qwen3(config, params)                             # the same as a module

It is a pure function, so `torch.func.functional_call`, `torch.func.grad` and torchax accept it. The transformer works
on a flat list of tokens, [N, hidden], because only attention needs to know which of them form a sequence, and gets that
as an argument (`attend`). So a prompt is computed once for all of its completions, and in one pass with them
(`completion_logps`), and padding is computed in attention only.

Shapes: B rows, T tokens, V vocabulary, H query heads, K heads of keys and values, D head_dim, N tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.rope_scaling import rope_attention_factor, rope_wavelengths

WHOLE = 2**26
"""The most numbers in a table of logits that is computed at once: 256 MB."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [N, H, D], keys and values [N, K, D] -> for each query the values that it mixes: [N, H, D]."""

AFTER = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
"""The linear maps that follow a norm."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def rope_table(config: Qwen3Config, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles by which pairs of numbers are rotated at these positions: [N, 1, D] twice.

    The sine of the first half is negative: `turn` adds, while a rotation subtracts.
    """
    if config.rope_scaling is None:
        pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device)
        frequencies, factor = config.rope_theta ** (-pairs / config.head_dim), 1.0
    else:
        wavelengths = rope_wavelengths(config.rope_scaling, config.head_dim, config.rope_theta)
        frequencies = 1 / torch.tensor(wavelengths, device=positions.device)
        factor = rope_attention_factor(config.rope_scaling)
    angles = (positions[:, None].float() * frequencies)[:, None]
    cos, sin = factor * angles.cos(), factor * angles.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def turn(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (x[i], x[i + D/2]) of [N, heads, D] by the angles of `rope_table`."""
    cos, sin = table
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def hidden_from(num_queries: int, num_keys: int, attention_mask: Tensor | None, device: torch.device) -> Tensor:
    """The keys that the last `num_queries` positions may not look at: bool [1 or B, 1, num_queries, num_keys].

    These are the keys after a query's own position, and those where `attention_mask` [B, num_keys] is 0.
    """
    later = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).triu(num_keys - num_queries + 1)
    return later[None, None] if attention_mask is None else later | (attention_mask == 0)[:, None, None]


def attention(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
    """softmax(Q K^T) V with grouped queries: [B, H, T, D], [B, K, S, D] twice -> [B, H, T, D].

    The queries are divided by sqrt(D) already. `hidden` is as `hidden_from` returns it; None hides no key. The formula
    is written out, because torch's fused kernel is slower on a CPU for short rows.
    """
    (num_rows, num_heads, num_queries, head_dim), num_keys = queries.shape, keys.shape[2]
    # The query heads that share keys become rows of one matrix product.
    sharing = num_heads // keys.shape[1] * num_queries
    scores = queries.reshape(num_rows, keys.shape[1], sharing, head_dim) @ keys.transpose(-1, -2)
    if hidden is not None:
        # The score is finite even if a row sees nothing: a padded row whose scores were all -inf would give NaN, and so
        # would its gradient.
        each = scores.view(num_rows, num_heads, num_queries, num_keys).masked_fill(hidden, -1e9)
        scores = each.view(scores.shape)
    return (scores.softmax(-1) @ values).view(num_rows, num_heads, num_queries, head_dim)


class Layer:
    """A layer, [..., hidden] -> [..., hidden]: x + attention(norm(x)), then x + mlp(norm(x)) (pre-norm).

    `after_norm`, `turned` and `linear` are all that it does with its weights; a subclass may do it in another way.
    """

    def __init__(self, config: Qwen3Config, params: Mapping[str, Tensor], prefix: str):
        self.config, self.weight = config, lambda name: params[f"{prefix}{name}.weight"]
        self.bias = lambda name: params.get(f"{prefix}{name}.bias")
        self.has_head_norms = f"{prefix}self_attn.q_norm.weight" in params

    def __call__(self, x: Tensor, table: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        queries, keys, values = self.turned(self.after_norm("input_layernorm", x), table)
        x = x + self.linear("self_attn.o_proj", attend(queries, keys, values).flatten(-2))
        gate, up = self.after_norm("post_attention_layernorm", x)
        return x + self.linear("mlp.down_proj", functional.silu(gate) * up)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight(name), self.bias(name))

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight(name), self.config.rms_norm_eps)

    def after_norm(self, norm: str, x: Tensor) -> Sequence[Tensor]:
        normed = self.norm(norm, x)
        return [self.linear(name, normed) for name in AFTER[norm]]

    def turned(self, projected: Sequence[Tensor], table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of queries divided by sqrt(D), of keys and of values, from the maps that follow the first norm."""
        queries, keys, values = (each.unflatten(-1, (-1, self.config.head_dim)) for each in projected)
        if self.has_head_norms:
            queries, keys = self.norm("self_attn.q_norm", queries), self.norm("self_attn.k_norm", keys)
        return turn(queries, table) * self.config.head_dim**-0.5, turn(keys, table), values


def transformer(
    config: Qwen3Config,
    params: Mapping[str, Tensor],
    input_ids: Tensor,
    positions: Tensor,
    attend: Attend,
) -> Tensor:
    """All but the output layer: token ids [N] at their positions [N] -> [N, hidden], after the final norm."""
    table = rope_table(config, positions)
    x = functional.embedding(input_ids, params["embedding.weight"])
    for layer in range(config.num_hidden_layers):
        x = Layer(config, params, f"layers.{layer}.")(x, table, attend)
    return rms_norm(x, params["final_norm.weight"], config.rms_norm_eps)


def output_weight(config: Qwen3Config, params: Mapping[str, Tensor]) -> Tensor:
    """The output layer's [V, hidden]: the embedding's matrix if the two are tied."""
    return params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]


def qwen3_forward(
    config: Qwen3Config, params: Mapping[str, Tensor], input_ids: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    """Logits of the next token after every position: int [B, T] -> [B, T, V].

    `attention_mask` is [B, T], 1 for a token and 0 for padding on either side.
    """
    num_rows, num_tokens = input_ids.shape
    hidden = hidden_from(num_tokens, num_tokens, attention_mask, input_ids.device)

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows = (each.unflatten(0, (num_rows, num_tokens)).transpose(1, 2) for each in (queries, keys, values))
        return attention(*rows, hidden).transpose(1, 2).flatten(0, 1)

    positions = torch.arange(num_tokens, device=input_ids.device).repeat(num_rows)
    states = transformer(config, params, input_ids.flatten(), positions, attend)
    return functional.linear(states, output_weight(config, params)).unflatten(0, (num_rows, num_tokens))


def spread(x: Tensor, places: Tensor, count: int) -> Tensor:
    """[n, ...] -> [count, ...]: the rows of `x` at n different `places`, and zeros elsewhere."""
    return x if len(places) == count else x.new_zeros(count, *x.shape[1:]).index_copy(0, places, x)


def picked(x: Tensor, places: Tensor) -> Tensor:
    """[count, ...] -> [n, ...]: the rows of `x` at n different `places`, in order."""
    return x if len(places) == len(x) else x.index_select(0, places)


def completion_hidden_states(config: Qwen3Config, params: Mapping[str, Tensor], batch: PaddedBatch) -> Tensor:
    """The hidden states that give the logits of every completion token: [B, T, hidden].

    The arrays of `batch` are tensors. A prompt is computed once for all of its completions. What comes after the last
    token of a row that counts is not computed; it is 0.
    """
    prompt_ids, completion_ids, prompt_mask = batch.prompt_ids, batch.completion_ids, batch.prompt_mask
    (num_prompts, prompt_length), (num_rows, length) = prompt_ids.shape, completion_ids.shape
    group_size, device = batch.group_size, prompt_ids.device
    of_prompts = hidden_from(prompt_length, prompt_length, prompt_mask, device)
    if prompt_mask is not None:
        prompt_mask = functional.pad(prompt_mask.repeat_interleave(group_size, dim=0), (0, length - 1), value=1)
    of_completions = hidden_from(length - 1, prompt_length + length - 1, prompt_mask, device)
    # The completions' tokens that are computed, among all [B, T - 1] that predict another: those with one behind them
    # that counts.
    places = batch.completion_mask[:, 1:].flip(1).cumsum(1).flip(1).flatten().nonzero()[:, 0]
    count = num_rows * (length - 1)
    split = [num_prompts * prompt_length, len(places)]

    def rows(heads: Tensor) -> tuple[Tensor, Tensor]:
        """[N, heads, D] -> [B / group size, heads, P, D], [B, heads, T - 1, D]."""
        prompt, completion = heads.split(split)
        return (
            prompt.unflatten(0, (num_prompts, prompt_length)).transpose(1, 2),
            spread(completion, places, count).unflatten(0, (num_rows, length - 1)).transpose(1, 2),
        )

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        (query, own_query), (key, own_key), (value, own_value) = map(rows, (queries, keys, values))
        all_keys, all_values = (
            torch.cat([of_prompt.repeat_interleave(group_size, dim=0), own], dim=2)
            for of_prompt, own in ((key, own_key), (value, own_value))
        )
        mixed = (attention(query, key, value, of_prompts), attention(own_query, all_keys, all_values, of_completions))
        of_prompt, of_completion = (each.transpose(1, 2).flatten(0, 1) for each in mixed)
        return torch.cat([of_prompt, picked(of_completion, places)])

    input_ids = torch.cat([prompt_ids.flatten(), picked(completion_ids[:, :-1].flatten(), places)])
    positions = torch.arange(prompt_length + length - 1, device=device)
    own_positions = picked(positions[prompt_length:].repeat(num_rows), places)
    positions = torch.cat([positions[:prompt_length].repeat(num_prompts), own_positions])
    hidden, rest = transformer(config, params, input_ids, positions, attend).split(split)
    first = hidden.unflatten(0, (num_prompts, prompt_length))[:, -1].repeat_interleave(group_size, dim=0)
    rest = spread(rest, places, count).view(num_rows, length - 1, config.hidden_size)
    return torch.cat([first[:, None], rest], dim=1)


def completion_logps(
    config: Qwen3Config,
    params: Mapping[str, Tensor],
    batch: PaddedBatch,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    again: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[Tensor, Tensor]:
    """Log-probability of every completion token, and the entropy of its distribution: [B, T] twice.

    The same as `mlx_grpo_kit.grpo.logps.batch_logps` in MLX. Both are 0 for tokens that do not count: padding is not
    computed, nor are logits for a token that a tool wrote.

    Args:
        temperature: the temperature that the completions were sampled with.
        entropy_gradient: True to make the entropy differentiable.
        again: a function that returns the context for recomputation in the backward pass. If a function mode was on in
            the forward pass, pass it here too, because torch leaves every mode for a backward pass.
    """
    hidden = completion_hidden_states(config, params, batch)
    counted = batch.completion_mask.flatten().nonzero()[:, 0]
    hidden, labels = picked(hidden.flatten(0, 1), counted), picked(batch.completion_ids.flatten().long(), counted)
    weight = output_weight(config, params)

    def of_tokens(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = (functional.linear(hidden, weight) / temperature).log_softmax(-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropies = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, labels[:, None])[:, 0], entropies

    # With a large vocabulary, compute some tokens at a time: their table of logits is freed, and the backward pass
    # recomputes it.
    num_tokens = max(WHOLE // len(weight), 1)
    if len(labels) <= num_tokens:
        found = of_tokens(hidden, weight, labels)
    else:
        chunks = zip(hidden.split(num_tokens), labels.split(num_tokens), strict=True)
        modes = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), again())}
        parts = [checkpoint(of_tokens, chunk, weight, ids, **modes) for chunk, ids in chunks]
        found = (torch.cat(each) for each in zip(*parts, strict=True))
    shape = batch.completion_ids.shape
    logps, entropies = (spread(each, counted, shape.numel()).view(shape) for each in found)
    return logps, entropies


class Qwen3(nn.Module):
    """`qwen3_forward` as a module, whose state_dict has the kit's names.

    Args:
        params: arrays of MLX, NumPy or torch by their names in the kit; they are copied, as float32.
    """

    def __init__(self, config: Qwen3Config, params: Mapping[str, Any]):
        super().__init__()
        self.config = config
        for name, value in params.items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:  # a parameter's name may not contain dots; nested modules produce them
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, nn.Parameter(torch.tensor(np.array(value), dtype=torch.float32)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits like `qwen3_forward`."""
        return qwen3_forward(self.config, dict(self.named_parameters()), input_ids, attention_mask)
