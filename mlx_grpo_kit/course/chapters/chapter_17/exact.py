"""The loss of a whole Qwen3 in NumPy, in float64 or in complex numbers for the complex step of chapter 06.

MLX always computes exp in float32, and transformers always computes its norms in float32, so neither is accurate beyond
the seventh digit. Here every operation is analytic and keeps its digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mlx_grpo_kit.qwen3 import Qwen3Config


def exact_loss(
    config: Qwen3Config, params: Mapping[str, np.ndarray], input_ids: np.ndarray, targets: np.ndarray
) -> np.generic:
    """The mean cross-entropy of `targets`, computed in the dtype of `params`.

    Args:
        config: a configuration without `rope_scaling`.
        params: arrays by the kit's names; float64, or complex128 for a complex step.
        input_ids: int [B, T].
        targets: int [B, T].
    """
    x = params["embedding.weight"][input_ids]
    for layer in range(config.num_hidden_layers):
        weights = {
            name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): value
            for name, value in params.items()
            if name.startswith(f"layers.{layer}.")
        }
        x = x + _attention(config, weights, _norm(x, weights["input_layernorm"], config.rms_norm_eps))
        h = _norm(x, weights["post_attention_layernorm"], config.rms_norm_eps)
        gate = h @ weights["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weights["mlp.up_proj"].T)) @ weights["mlp.down_proj"].T
    output = params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]
    logits = _norm(x, params["final_norm.weight"], config.rms_norm_eps) @ output.T
    top = logits.real.max(axis=-1, keepdims=True)
    log_sum = top[..., 0] + np.log(np.exp(logits - top).sum(axis=-1))
    return (log_sum - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]).mean()


def loss_along(
    config: Qwen3Config,
    params: Mapping[str, np.ndarray],
    direction: Mapping[str, np.ndarray],
    input_ids: np.ndarray,
    targets: np.ndarray,
) -> Callable[[complex], np.generic]:
    """The loss as a function of a step: all parameters move by `step` times `direction`. The step may be complex."""
    start = {name: np.asarray(value).astype(np.float64) for name, value in params.items()}
    return lambda step: exact_loss(
        config, {name: value + step * direction[name] for name, value in start.items()}, input_ids, targets
    )


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _rope(x: np.ndarray, theta: float) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[-2])[:, None] * theta ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _attention(config: Qwen3Config, weights: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    batch, length, _ = x.shape

    def heads(name: str) -> np.ndarray:
        projected = (x @ weights[f"self_attn.{name}_proj"].T).reshape(batch, length, -1, config.head_dim)
        if name != "v":
            projected = _norm(projected, weights[f"self_attn.{name}_norm"], config.rms_norm_eps)
        each = projected.swapaxes(1, 2)
        each = each if name == "v" else _rope(each, config.rope_theta)
        return np.repeat(each, config.num_attention_heads // each.shape[1], axis=1)

    scores = heads("q") @ heads("k").swapaxes(-1, -2) / np.sqrt(config.head_dim)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    mixed = powers / powers.sum(axis=-1, keepdims=True) @ heads("v")
    return mixed.swapaxes(1, 2).reshape(batch, length, -1) @ weights["self_attn.o_proj"].T
