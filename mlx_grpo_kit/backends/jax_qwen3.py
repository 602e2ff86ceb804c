"""Qwen3 in JAX: `qwen3/forward.py` once more, over the same dictionary of names.

Every function is pure, so `jax.jit`, `jax.grad` and a mesh of devices take it as it stands. Shapes are known while a
function is traced; that is why positions and their angles are plain NumPy here, and constants of the compiled program.

Shapes: B rows, T tokens, S positions of keys, V vocabulary, H query heads, K heads of keys and values, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.yarn import yarn_attention_factor, yarn_wavelengths

Params = Mapping[str, jax.Array]
Past = list[tuple[jax.Array, jax.Array]]
"""Every layer's keys and values for the tokens before: [B, S, K, D] twice."""


def qwen3_forward(
    config: Qwen3Config, params: Params, input_ids: jax.Array, attention_mask: jax.Array | None = None
) -> jax.Array:
    """Logits of the next token after every position: int [B, T] -> [B, T, V].

    `attention_mask` is [B, T], 1 for a token and 0 for padding.
    """
    hidden, _ = hidden_states(config, params, input_ids, attention_mask)
    return output_logits(config, params, hidden)


def completion_logits(
    config: Qwen3Config,
    params: Params,
    prompt_ids: jax.Array,
    completion_ids: jax.Array,
    prompt_mask: jax.Array | None = None,
) -> jax.Array:
    """Logits that predict each completion token: [B, T, V], the first of a row by the last position of its prompt.

    Args:
        prompt_ids: int [B / group size, P], padded on the left. Each is computed once and serves the completions of its
            group, which stand next to each other.
        completion_ids: int [B, T], padded on the right.
        prompt_mask: [B / group size, P], 0 for padding; None where no prompt is padded.
    """
    group_size = completion_ids.shape[0] // prompt_ids.shape[0]
    hidden, past = hidden_states(config, params, prompt_ids, prompt_mask)
    hidden = jnp.repeat(hidden[:, -1:], group_size, axis=0)
    if completion_ids.shape[1] > 1:
        past, prompt_mask = jax.tree.map(lambda each: jnp.repeat(each, group_size, axis=0), (past, prompt_mask))
        after, _ = hidden_states(config, params, completion_ids[:, :-1], prompt_mask, past)
        hidden = jnp.concatenate([hidden, after], axis=1)
    return output_logits(config, params, hidden)


def hidden_states(
    config: Qwen3Config,
    params: Params,
    input_ids: jax.Array,
    attention_mask: jax.Array | None = None,
    past: Past | None = None,
) -> tuple[jax.Array, Past]:
    """All but the output layer: [B, T] -> [B, T, hidden] after the final norm, and the keys and values of every layer.

    Args:
        attention_mask: [B, <= S], 0 for padding; positions that it is too short for count as tokens.
        past: what this function returned for the tokens before.
    """
    num_tokens, num_past = input_ids.shape[1], past[0][0].shape[1] if past else 0
    mask = visible(num_tokens, num_past, attention_mask)
    angles = rope_angles(config, num_past, num_tokens)
    x, present = params["embedding.weight"][input_ids], []
    for layer in range(config.num_hidden_layers):
        x, keys_and_values = transformer_block(config, params, layer, x, mask, angles, past[layer] if past else None)
        present.append(keys_and_values)
    return rms_norm(x, params["final_norm.weight"], config.rms_norm_eps), present


def transformer_block(config, params, layer, x, mask, angles, past=None):
    """One layer, [B, T, hidden] -> [B, T, hidden], and its keys and values."""

    def weight(name: str) -> jax.Array:
        return params[f"layers.{layer}.{name}.weight"]

    def heads(name: str, count: int) -> jax.Array:
        return linear(normed, weight(f"self_attn.{name}_proj")).reshape(*x.shape[:2], count, config.head_dim)

    normed = rms_norm(x, weight("input_layernorm"), config.rms_norm_eps)
    queries = rms_norm(heads("q", config.num_attention_heads), weight("self_attn.q_norm"), config.rms_norm_eps)
    keys = rms_norm(heads("k", config.num_key_value_heads), weight("self_attn.k_norm"), config.rms_norm_eps)
    queries, keys, values = rope(queries, angles), rope(keys, angles), heads("v", config.num_key_value_heads)
    if past is not None:
        keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(past, (keys, values), strict=True))
    mixed = attention(queries, keys, values, mask).reshape(*x.shape[:2], -1)
    x = x + linear(mixed, weight("self_attn.o_proj"))
    normed = rms_norm(x, weight("post_attention_layernorm"), config.rms_norm_eps)
    gated = jax.nn.silu(linear(normed, weight("mlp.gate_proj"))) * linear(normed, weight("mlp.up_proj"))
    return x + linear(gated, weight("mlp.down_proj")), (keys, values)


def attention(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """softmax(Q K^T / sqrt(D)) V with grouped queries: [B, T, H, D], [B, S, K, D] twice -> [B, T, H, D]."""
    batch, num_queries, _, head_dim = queries.shape
    groups = (queries * head_dim**-0.5).reshape(batch, num_queries, keys.shape[2], -1, head_dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", groups, keys).astype(jnp.float32)
    # Finite where nothing is to be seen: a padded row whose scores were all -inf would be NaN, and its gradient too.
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, values).reshape(queries.shape)


def visible(num_queries: int, num_past: int, attention_mask: jax.Array | None = None) -> jax.Array:
    """Which keys each query may look at: bool [1 or B, 1, 1, T, S]; its own position and those before, no padding."""
    num_keys = num_past + num_queries
    causal = np.tri(num_queries, num_keys, num_past, dtype=bool)[None, None, None]
    if attention_mask is None:
        return causal
    room = num_keys - attention_mask.shape[1]
    real = jnp.pad(attention_mask.astype(bool), [(0, 0), (0, room)], constant_values=True)
    return causal & real[:, None, None, None]


def rope_angles(config: Qwen3Config, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of position * theta^(-2i/D) for `count` positions, or YaRN's: [count, 1, D/2]."""
    if config.rope_scaling is None:
        wavelengths, factor = config.rope_theta ** (np.arange(0, config.head_dim, 2) / config.head_dim), 1.0
    else:
        wavelengths = np.array(yarn_wavelengths(config.rope_scaling, config.head_dim, config.rope_theta))
        factor = yarn_attention_factor(config.rope_scaling)
    angles = np.arange(first, first + count)[:, None, None] / wavelengths
    return factor * np.cos(angles), factor * np.sin(angles)


def rope(x: jax.Array, angles: tuple[np.ndarray, np.ndarray]) -> jax.Array:
    """Turn the pairs (x[i], x[i + D/2]) of [B, T, heads, D] (RoFormer, equation 34)."""
    cos, sin = (jnp.asarray(each, x.dtype) for each in angles)
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, the mean in float32 (Zhang & Sennrich 2019)."""
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True) + eps)
    return x * scale.astype(x.dtype) * weight


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x W^T: [..., in] -> [..., out]."""
    return x @ weight.T


def output_logits(config: Qwen3Config, params: Params, hidden: jax.Array) -> jax.Array:
    """[..., hidden] -> [..., V], through the embedding's own matrix where the two are tied."""
    return linear(hidden, params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"])
