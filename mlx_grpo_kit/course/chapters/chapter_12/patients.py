"""Five Qwen3 models for chapter 12 that are almost right: each has one mistake inside. (No peeking.)

Each is the kit's own forward pass with a `watch` that replaces one inner value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlx_grpo_kit.qwen3 import Qwen3Config, qwen3_forward
from mlx_grpo_kit.qwen3.forward import rms_norm, rope
from mlx_grpo_kit.runtime import mx

Record = dict[str, mx.array]
Mistake = Callable[[Qwen3Config, Record, Record, str, mx.array], mx.array]

CAUSES = {
    "A": "the final norm is left out",
    "B": "rotary embeddings rotate the pairs (0, 1), (2, 3), ... instead of (0, D/2), (1, D/2 + 1), ...",
    "C": "rotary embeddings count positions from 1 instead of 0",
    "D": "a query may look at later tokens",
    "E": "scores are divided by D instead of its root",
    "F": "the norm before the MLP gets the stream from before attention",
    "G": "silu is applied to `up` instead of `gate`",
    "H": "the weights of q_norm and k_norm are swapped",
}
DIAGNOSIS = "ECGFB"


def almost_right(config: Qwen3Config, params: dict[str, mx.array], input_ids: mx.array) -> list[dict[str, np.ndarray]]:
    """Record every inner value of each patient for int [B, T], by name, in the order of computation."""
    return [_watched(config, params, input_ids, MISTAKES[letter]) for letter in DIAGNOSIS]


def _watched(
    config: Qwen3Config, params: dict[str, mx.array], input_ids: mx.array, mistake: Mistake
) -> dict[str, np.ndarray]:
    record: Record = {}

    def watch(name: str, value: mx.array) -> mx.array:
        record[name] = mistake(config, params, record, name, value)
        return record[name]

    qwen3_forward(config, params, input_ids, watch=watch)
    return {name: np.array(value) for name, value in record.items()}


def _divided_twice(config, params, record, name, value):
    return value * config.head_dim**-0.5 if name.endswith(".scores") else value


def _from_one(config, params, record, name, value):
    if not name.endswith("_rope"):
        return value
    normed = record[name.replace("_rope", "_norm")].swapaxes(1, 2)
    return rope(normed, 1, config.rope_theta, config.rope_scaling)


def _neighbours(config, params, record, name, value):
    if not name.endswith("_rope"):
        return value
    normed = record[name.replace("_rope", "_norm")].swapaxes(1, 2)
    return mx.fast.rope(normed, config.head_dim, traditional=True, base=config.rope_theta, scale=1.0, offset=0)


def _other_silu(config, params, record, name, value):
    if not name.endswith(".gated"):
        return value
    at = name.removesuffix("gated")
    up = record[f"{at}up_proj"]
    return record[f"{at}gate_proj"] * up * mx.sigmoid(up)


def _earlier_stream(config, params, record, name, value):
    if not name.endswith(".post_attention_layernorm"):
        return value
    layer = int(name.split(".")[1])
    before = record[f"layers.{layer - 1}"] if layer else record["embedding"]
    return rms_norm(before, params[f"{name}.weight"], config.rms_norm_eps)


MISTAKES: dict[str, Mistake] = {
    "B": _neighbours,
    "C": _from_one,
    "E": _divided_twice,
    "F": _earlier_stream,
    "G": _other_silu,
}
