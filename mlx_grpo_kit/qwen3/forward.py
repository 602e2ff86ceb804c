"""Qwen3 and its relatives as pure functions, from parameters to logits, without any state.

Every building block takes its weights as arguments, and `qwen3_forward` takes them all as one dictionary, so
`value_and_grad` sees the whole path params -> logits -> log-probs -> loss. Weights of linear maps have PyTorch's
layout, [out_features, in_features], unless they are quantized or have an adapter (`matrices.py`). Device-specific
computations are in `kernels.py`. What distinguishes a Qwen2 or a Llama is which parameters they have: a Qwen3 has
`q_norm` and `k_norm`, a Qwen2 has biases on queries, keys and values instead, and a Llama has neither.

Shapes: B rows, T tokens, V vocabulary, H query heads, K heads of keys and values, D head_dim, S positions of keys.

To look inside, pass a `watch`: it is called with every inner value and its name, and its result replaces the value.
`record = {}; qwen3_forward(config, params, ids, watch=record.setdefault)` records them all.

    embedding                                             [B, T, hidden]
    layers.0.input_layernorm                              [B, T, hidden]
    layers.0.self_attn.q_proj, k_proj, v_proj             [B, T, H or K, D]
    layers.0.self_attn.q_norm, k_norm                     [B, T, H or K, D], in a Qwen3
    layers.0.self_attn.q_rope, k_rope                     [B, H or K, T, D]
    layers.0.self_attn.scores, weights                    [B, H, T, S] around softmax; masked scores near -1e9
    layers.0.self_attn.mixed                              [B, H, T, D], sums of values with these weights
    layers.0.self_attn.o_proj                             [B, T, hidden]
    layers.0.attended                                     [B, T, hidden], the residual stream after attention
    layers.0.post_attention_layernorm                     [B, T, hidden]
    layers.0.mlp.gate_proj, up_proj, gated                [B, T, intermediate]
    layers.0.mlp.down_proj                                [B, T, hidden]
    layers.0                                              [B, T, hidden], the residual stream after the layer
    final_norm                                            [B, T, hidden]
    logits                                                [B, T, V]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlx_grpo_kit.qwen3.cache import KVCache
from mlx_grpo_kit.qwen3.config import Qwen3Config, RopeScaling
from mlx_grpo_kit.qwen3.kernels import attention_scores, gated_silu, mix_values, scaled_dot_product_attention, softmax
from mlx_grpo_kit.qwen3.matrices import Matrix, linear, matrix
from mlx_grpo_kit.qwen3.rope_scaling import rope_attention_factor, rope_wavelengths
from mlx_grpo_kit.runtime import mx

Watch = Callable[[str, mx.array], mx.array]
"""A function (name, value) -> the value to use."""


def unwatched(name: str, value: mx.array) -> mx.array:
    """The default `Watch`, which returns every value unchanged."""
    return value


def _below(watch: Watch, prefix: str) -> Watch:
    """`watch` for a part of the model, whose names begin with `prefix`."""
    return watch if watch is unwatched else lambda name, value: watch(prefix + name, value)


class Weights:
    """The parameters of one part of the model: `Weights(params, "layers.3.")["input_layernorm.weight"]`."""

    def __init__(self, params: Mapping[str, mx.array] | Weights, prefix: str):
        self._params, self._prefix = params, prefix

    def __getitem__(self, name: str) -> mx.array:
        return self._params[self._prefix + name]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._params


def embedding(weight: Matrix, input_ids: mx.array) -> mx.array:
    """Rows of `weight` [V, hidden]: [B, T] -> [B, T, hidden]."""
    return weight[input_ids]


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019)."""
    return mx.fast.rms_norm(x, weight, eps)


def rope(x: mx.array, offset: int | mx.array, theta: float, scaling: RopeScaling | None = None) -> mx.array:
    """Rotate the pairs (x[i], x[i + D/2]) of [B, heads, T, D] by position * theta^(-2i/D) (RoFormer, equation 34).

    The first of the T positions is `offset`. Attention's scores depend only on differences of positions, so a row
    padded on the left needs no separate offset. `scaling` changes the speeds of rotation, and the length of the
    pairs.
    """
    head_dim = x.shape[-1]
    if scaling is None:
        return mx.fast.rope(x, head_dim, traditional=False, base=theta, scale=1.0, offset=offset)
    freqs = mx.array(rope_wavelengths(scaling, head_dim, theta))  # MLX's name for the divisors of positions
    scaled = x * rope_attention_factor(scaling)
    return mx.fast.rope(scaled, head_dim, traditional=False, base=None, scale=1.0, offset=offset, freqs=freqs)


def mlp(x: mx.array, gate_weight: Matrix, up_weight: Matrix, down_weight: Matrix, watch: Watch = unwatched) -> mx.array:
    """SwiGLU: down(silu(gate(x)) * up(x)), [..., hidden] -> [..., hidden] (Shazeer 2020)."""
    gate, up = watch("gate_proj", linear(x, gate_weight)), watch("up_proj", linear(x, up_weight))
    return watch("down_proj", linear(watch("gated", gated_silu(gate, up)), down_weight))


def visible(
    num_queries: int, num_keys: int, offset: int | mx.array, attention_mask: mx.array | None = None
) -> mx.array:
    """The keys that each query may look at: bool [1 or B, 1, num_queries, num_keys].

    Query i is at position offset + i and sees keys at its own position and before (causal), except where
    `attention_mask` [B, <= num_keys] is 0 (padding). Only this function decides it.
    """
    positions = mx.arange(num_queries)[:, None] + offset
    mask = (mx.arange(num_keys)[None, :] <= positions)[None, None]
    if attention_mask is None:
        return mask
    room = num_keys - attention_mask.shape[1]
    real = attention_mask.astype(mx.bool_)
    if room:
        real = mx.pad(real, [(0, 0), (0, room)], constant_values=True)
    return mask & real[:, None, None, :]


def attention(
    config: Qwen3Config,
    params: Mapping[str, mx.array] | Weights,
    prefix: str,
    x: mx.array,
    mask: mx.array,
    cache: KVCache | None = None,
    layer: int = 0,
    watch: Watch = unwatched,
) -> mx.array:
    """Attention, [B, T, hidden] -> [B, T, hidden]: project, normalise per head (Qwen3), rotate, attend, project.

    Args:
        prefix: the beginning of the names of its weights in `params`, such as "layers.3.self_attn.".
        mask: the keys that each query may look at, as `visible` returns them.
        layer: the index of this layer in the cache.
    """
    weights = Weights(params, prefix)
    batch, num_tokens, _ = x.shape

    def heads(name: str, count: int) -> mx.array:
        projected = linear(x, matrix(weights, name, x.shape[-1]))
        if f"{name}.bias" in weights:
            projected = projected + weights[f"{name}.bias"]
        return watch(name, projected.reshape(batch, num_tokens, count, config.head_dim))

    queries, keys = heads("q_proj", config.num_attention_heads), heads("k_proj", config.num_key_value_heads)
    if "q_norm.weight" in weights:
        queries = watch("q_norm", rms_norm(queries, weights["q_norm.weight"], config.rms_norm_eps))
        keys = watch("k_norm", rms_norm(keys, weights["k_norm.weight"], config.rms_norm_eps))
    values = heads("v_proj", config.num_key_value_heads).swapaxes(1, 2)
    offset = cache.length if cache is not None else 0
    queries = watch("q_rope", rope(queries.swapaxes(1, 2), offset, config.rope_theta, config.rope_scaling))
    keys = watch("k_rope", rope(keys.swapaxes(1, 2), offset, config.rope_theta, config.rope_scaling))
    if cache is not None:
        keys, values = cache.append(layer, keys, values)
    if watch is unwatched:
        mixed = scaled_dot_product_attention(queries, keys, values, mask)
    else:
        shares = watch("weights", softmax(watch("scores", attention_scores(queries, keys, mask))))
        mixed = watch("mixed", mix_values(shares, values))
    mixed = mixed.swapaxes(1, 2).reshape(batch, num_tokens, -1)
    return watch("o_proj", linear(mixed, matrix(weights, "o_proj", mixed.shape[-1])))


def transformer_block(
    config: Qwen3Config,
    params: dict[str, mx.array],
    layer: int,
    x: mx.array,
    mask: mx.array,
    cache: KVCache | None = None,
    watch: Watch = unwatched,
) -> mx.array:
    """One layer, [B, T, hidden] -> [B, T, hidden]: x + attention(norm(x)), then x + mlp(norm(x)) (pre-norm)."""
    weights, inside = Weights(params, f"layers.{layer}."), _below(watch, f"layers.{layer}.")

    def norm(name: str, x: mx.array) -> mx.array:
        return inside(name, rms_norm(x, weights[f"{name}.weight"], config.rms_norm_eps))

    normed = norm("input_layernorm", x)
    x = x + attention(config, weights, "self_attn.", normed, mask, cache, layer, _below(inside, "self_attn."))
    x = inside("attended", x)
    normed = norm("post_attention_layernorm", x)
    gate = matrix(weights, "mlp.gate_proj", config.hidden_size)
    up = matrix(weights, "mlp.up_proj", config.hidden_size)
    down = matrix(weights, "mlp.down_proj", config.intermediate_size)
    return watch(f"layers.{layer}", x + mlp(normed, gate, up, down, _below(inside, "mlp.")))


def qwen3_hidden_states(
    config: Qwen3Config,
    params: dict[str, mx.array],
    input_ids: mx.array,
    *,
    cache: KVCache | None = None,
    attention_mask: mx.array | None = None,
    watch: Watch = unwatched,
) -> mx.array:
    """All but the output layer: int [B, T] -> [B, T, hidden], after the final norm. Arguments as in `qwen3_forward`."""
    num_tokens = input_ids.shape[1]
    offset = cache.length if cache is not None else 0
    num_keys = num_tokens
    if cache is not None:  # in a compiled step the length is an array, and the buffers always have room
        num_keys = cache.capacity if not isinstance(offset, int) else max(cache.capacity, offset + num_tokens)
    mask = visible(num_tokens, num_keys, offset, attention_mask)
    x = watch("embedding", embedding(matrix(params, "embedding", config.hidden_size), input_ids))
    for layer in range(config.num_hidden_layers):
        x = transformer_block(config, params, layer, x, mask, cache, watch)
    if cache is not None:
        cache.advance(num_tokens)
    return watch("final_norm", rms_norm(x, params["final_norm.weight"], config.rms_norm_eps))


def output_weight(config: Qwen3Config, params: dict[str, mx.array]) -> Matrix:
    """The output layer's [V, hidden]: the embedding's matrix if the two are tied."""
    return matrix(params, "embedding" if config.tie_word_embeddings else "lm_head", config.hidden_size)


def output_logits(config: Qwen3Config, params: dict[str, mx.array], hidden_states: mx.array) -> mx.array:
    """[..., hidden] -> [..., V]."""
    return linear(hidden_states, output_weight(config, params))


def qwen3_forward(
    config: Qwen3Config,
    params: dict[str, mx.array],
    input_ids: mx.array,
    *,
    cache: KVCache | None = None,
    attention_mask: mx.array | None = None,
    watch: Watch = unwatched,
) -> mx.array:
    """Logits of the next token after every position: int [B, T] -> [B, T, V].

    Args:
        params: every weight by its name in the kit.
        cache: the keys and values of the tokens before `input_ids`; it is read and extended.
        attention_mask: [B, S] with 1 for a token and 0 for padding. It includes the cached positions; positions beyond
            its end count as tokens.
        watch: a function that gets every inner value (see the head of this file).
    """
    hidden_states = qwen3_hidden_states(
        config, params, input_ids, cache=cache, attention_mask=attention_mask, watch=watch
    )
    return watch("logits", output_logits(config, params, hidden_states))
