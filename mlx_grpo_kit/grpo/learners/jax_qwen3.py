"""Qwen3 in JAX: the functions of `qwen3/forward.py`, over the same dictionary of parameters.

Every function is pure, so `jax.jit`, `jax.grad` and a mesh of devices take it unchanged. Shapes are known while a
function is traced, so positions and their angles are plain NumPy here, and become constants of the compiled program.
Layers are written out: `jax.lax.scan` over them is no faster to compile on CPUs, and a quarter slower to run.

The transformer works on a flat list of tokens, [N, hidden]. Only attention needs to know which of them form a sequence,
so it is an argument (`attend`). So a prompt is computed once for all of its completions, and in one pass with them.

Shapes: B rows, T tokens, S positions of keys, V vocabulary, H query heads, K heads of keys and values, D head_dim, N
tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.rope_scaling import rope_attention_factor, rope_wavelengths

Params = Mapping[str, jax.Array]
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Queries [N, H, D], keys and values [N, K, D] -> for each query the values that it mixes: [N, H, D]."""


def qwen3_forward(
    config: Qwen3Config, params: Params, input_ids: jax.Array, attention_mask: jax.Array | None = None
) -> jax.Array:
    """Logits of the next token after every position: int [B, T] -> [B, T, V].

    `attention_mask` is [B, T], 1 for a token and 0 for padding on either side.
    """
    batch, num_tokens = input_ids.shape
    mask = visible(num_tokens, 0, attention_mask)

    def attend(*heads: jax.Array) -> jax.Array:
        rows = (each.reshape(batch, num_tokens, *each.shape[1:]) for each in heads)
        return attention(*rows, mask).reshape(heads[0].shape)

    positions = np.tile(np.arange(num_tokens), batch)
    hidden = transformer(config, params, input_ids.reshape(-1), positions, attend)
    return output_logits(config, params, hidden.reshape(batch, num_tokens, -1))


def completion_logits(
    config: Qwen3Config,
    params: Params,
    prompt_ids: jax.Array,
    completion_ids: jax.Array,
    prompt_mask: jax.Array | None = None,
) -> jax.Array:
    """The logits that predict each completion token, [B, T, V]. The prompt's last position predicts the first one.

    Args:
        prompt_ids: int [B / group size, P], padded on the left. Each is computed once for all completions of its group,
            which are adjacent.
        completion_ids: int [B, T], padded on the right.
        prompt_mask: [B / group size, P], 0 for padding; None if no prompt is padded.
    """
    (num_prompts, prompt_length), (batch, length) = prompt_ids.shape, completion_ids.shape
    split = [num_prompts * prompt_length]  # tokens of prompts come first, then those of completions

    def for_completions(of_prompts: jax.Array) -> jax.Array:
        return jnp.repeat(of_prompts, batch // num_prompts, axis=0)

    prompt_sees = visible(prompt_length, 0, prompt_mask)
    completion_sees = visible(length - 1, prompt_length, None if prompt_mask is None else for_completions(prompt_mask))

    def attend(*heads: jax.Array) -> jax.Array:
        both = [jnp.split(each, split) for each in heads]
        ours = [each.reshape(num_prompts, prompt_length, *each.shape[1:]) for each, _ in both]
        own = [each.reshape(batch, length - 1, *each.shape[1:]) for _, each in both]
        keys, values = (
            jnp.concatenate([for_completions(each), other], axis=1)
            for each, other in zip(ours[1:], own[1:], strict=True)
        )
        mixed = attention(*ours, prompt_sees), attention(own[0], keys, values, completion_sees)
        return jnp.concatenate([jax.lax.collapse(each, 0, 2) for each in mixed])

    input_ids = jnp.concatenate([prompt_ids.reshape(-1), completion_ids[:, :-1].reshape(-1)])
    positions = np.arange(prompt_length + length - 1)
    positions = [np.tile(positions[:prompt_length], num_prompts), np.tile(positions[prompt_length:], batch)]
    hidden, rest = jnp.split(transformer(config, params, input_ids, np.concatenate(positions), attend), split)
    first = for_completions(hidden.reshape(num_prompts, prompt_length, -1)[:, -1:])
    rest = rest.reshape(batch, length - 1, config.hidden_size)
    return output_logits(config, params, jnp.concatenate([first, rest], axis=1))


def transformer(
    config: Qwen3Config, params: Params, input_ids: jax.Array, positions: np.ndarray, attend: Attend
) -> jax.Array:
    """All but the output layer: token ids [N] at their positions [N] -> [N, hidden], after the final norm."""
    x = params["embedding.weight"][input_ids]
    angles = tuple(jnp.asarray(each, x.dtype) for each in rope_angles(config, positions))
    for layer in range(config.num_hidden_layers):
        x = transformer_block(config, params, f"layers.{layer}.", x, angles, attend)
    return rms_norm(x, params["final_norm.weight"], config.rms_norm_eps)


def transformer_block(
    config: Qwen3Config,
    params: Params,
    prefix: str,
    x: jax.Array,
    angles: tuple[jax.Array, jax.Array],
    attend: Attend,
) -> jax.Array:
    """One layer, [N, hidden] -> [N, hidden]: x + attention(norm(x)), then x + mlp(norm(x)) (pre-norm)."""

    def linear(name: str, x: jax.Array) -> jax.Array:
        product, bias = x @ params[f"{prefix}{name}.weight"].T, params.get(f"{prefix}{name}.bias")
        return product if bias is None else product + bias

    def norm(name: str, x: jax.Array) -> jax.Array:
        return rms_norm(x, params[f"{prefix}{name}.weight"], config.rms_norm_eps)

    def heads(name: str) -> jax.Array:
        return linear(f"self_attn.{name}_proj", normed).reshape(len(x), -1, config.head_dim)

    normed = norm("input_layernorm", x)
    queries, keys = heads("q"), heads("k")
    if f"{prefix}self_attn.q_norm.weight" in params:
        queries, keys = norm("self_attn.q_norm", queries), norm("self_attn.k_norm", keys)
    queries, keys = rope(queries, angles), rope(keys, angles)
    x = x + linear("self_attn.o_proj", attend(queries, keys, heads("v")).reshape(len(x), -1))
    normed = norm("post_attention_layernorm", x)
    gated = jax.nn.silu(linear("mlp.gate_proj", normed)) * linear("mlp.up_proj", normed)
    return x + linear("mlp.down_proj", gated)


def attention(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """softmax(Q K^T / sqrt(D)) V with grouped queries: [B, T, H, D], [B, S, K, D] twice -> [B, T, H, D]."""
    *rows, num_heads, head_dim = queries.shape
    num_groups = keys.shape[2]
    groups = (queries * head_dim**-0.5).reshape(*rows, num_groups, num_heads // num_groups, head_dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", groups, keys).astype(jnp.float32)
    # The score is finite even if a row sees nothing: a padded row whose scores were all -inf would give NaN, and so
    # would its gradient.
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, values).reshape(queries.shape)


def visible(num_queries: int, num_past: int, attention_mask: jax.Array | None = None) -> jax.Array:
    """The keys that each query may look at: bool [1 or B, 1, 1, T, S]; its own position and earlier ones, no padding.

    `attention_mask` is [B, <= S]; positions beyond its end count as tokens.
    """
    num_keys = num_past + num_queries
    causal = np.tri(num_queries, num_keys, num_past, dtype=bool)[None, None, None]
    if attention_mask is None:
        return causal
    room = num_keys - attention_mask.shape[1]
    real = jnp.pad(attention_mask.astype(bool), [(0, 0), (0, room)], constant_values=True)
    return causal & real[:, None, None, None]


def rope_angles(config: Qwen3Config, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of position * theta^(-2i/D), or of YaRN's angles, at positions [N]: [N, 1, D/2] twice."""
    if config.rope_scaling is None:
        wavelengths, factor = config.rope_theta ** (np.arange(0, config.head_dim, 2) / config.head_dim), 1.0
    else:
        wavelengths = np.array(rope_wavelengths(config.rope_scaling, config.head_dim, config.rope_theta))
        factor = rope_attention_factor(config.rope_scaling)
    angles = positions[:, None, None] / wavelengths
    return factor * np.cos(angles), factor * np.sin(angles)


def rope(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turn the pairs (x[i], x[i + D/2]) of [N, heads, D] (RoFormer, equation 34)."""
    cos, sin = angles
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, the mean in float32 (Zhang & Sennrich 2019)."""
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True) + eps)
    return x * scale.astype(x.dtype) * weight


def output_logits(config: Qwen3Config, params: Params, hidden: jax.Array) -> jax.Array:
    """[..., hidden] -> [..., V], through the embedding's matrix if the two are tied."""
    return hidden @ params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"].T
