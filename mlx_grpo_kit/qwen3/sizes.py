"""The size of a Qwen3 or a relative, computed from its configuration: parameters, floating-point operations, bytes.

No array is created, so Qwen3-32B takes as little time as the smallest model.

One multiplication and the addition that follows it count as two operations (FLOPs), and only matrix products are
counted, as in PyTorch's `FlopCounterMode`. The rest (norms, exponentials and rotations) is below 2% for a hidden size
of a thousand.
"""

from __future__ import annotations

import math

from mlx_grpo_kit.qwen3.cache import kv_cache_bytes_per_position
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.params import count_total_parameters, param_shapes
from mlx_grpo_kit.runtime import mx

PARTS = ("embedding", "attention", "mlp", "norms", "output layer")


def part_of(name: str) -> str:
    """The part in `PARTS` that a parameter belongs to, by its name in the kit."""
    if "norm" in name:
        return "norms"
    inner = {"self_attn": "attention", "mlp": "mlp", "embedding": "embedding", "lm_head": "output layer"}
    return next(part for key, part in inner.items() if key in name.split("."))


def parameters_by_part(config: Qwen3Config) -> dict[str, int]:
    """The number of parameters in each of `PARTS`. A tied output layer has no parameters of its own."""
    parts = dict.fromkeys(PARTS, 0)
    for name, shape in param_shapes(config).items():
        parts[part_of(name)] += math.prod(shape)
    return parts


def forward_flops(config: Qwen3Config, batch: int, tokens: int, cached: int = 0) -> dict[str, int]:
    """Floating-point operations of one forward pass over [batch, tokens], by part.

    "attention" is its four matrix products with weights. "scores" is the products of queries with keys and of weights
    with values, and is the only part that grows with the square of the length. Every query is compared with every key,
    as in dense kernels; the masked half is counted too.

    Args:
        batch, tokens: shape of the input.
        cached: positions before the input whose keys and values come from a cache.
    """
    matrices = dict.fromkeys(PARTS, 0)
    for name, shape in param_shapes(config).items():
        matrices[part_of(name)] += math.prod(shape) if len(shape) == 2 else 0
    per_key = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    return {
        "attention": 2 * batch * tokens * matrices["attention"],
        "scores": 4 * batch * tokens * (cached + tokens) * per_key,
        "mlp": 2 * batch * tokens * matrices["mlp"],
        "output layer": 2 * batch * tokens * config.vocab_size * config.hidden_size,
    }


def training_flops(config: Qwen3Config, batch: int, tokens: int, gradient_checkpointing: bool = False) -> int:
    """Floating-point operations of a forward and a backward pass over [batch, tokens].

    For each matrix product the backward pass has two of the same size, one for the gradient of each factor, so the
    total is three times the forward pass. With `gradient_checkpointing` all layers are computed once more, except for
    their last product, the MLP's third, whose result the backward pass does not need.
    """
    forward = forward_flops(config, batch, tokens)
    again = forward["attention"] + forward["scores"] + forward["mlp"] * 2 // 3
    return 3 * sum(forward.values()) + (again if gradient_checkpointing else 0)


def inner_values(config: Qwen3Config, batch: int, tokens: int) -> dict[str, int]:
    """The count of numbers that a forward pass over [batch, tokens] produces: per layer, and outside of the layers.

    These are the values that `watch` gets in `qwen3_forward`. A backward pass needs about all of them.
    """
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    attended = 2 * config.num_attention_heads * tokens  # scores and weights
    of_heads = (4 if config.family.head_norms else 3) * (queries + keys)  # projected, normalised, rotated; v and mixed
    a_layer = 6 * config.hidden_size + of_heads + attended + 3 * config.intermediate_size
    return {
        "a layer": batch * tokens * a_layer,
        "outside": batch * tokens * (2 * config.hidden_size + config.vocab_size),
    }


def memory(config: Qwen3Config, batch: int, tokens: int, dtype: mx.Dtype = mx.float32) -> dict[str, int]:
    """Bytes of a model that reads [batch, tokens], by purpose.

    "parameters", "KV cache" and "kept for backward" (every inner value, all held at once) are exact. "forward pass" is
    the peak of a pass that keeps nothing: the inner values of one layer, and those outside of the layers. On a CPU, MLX
    was measured at 0.8 to 1.6 times that, because it works on several operations at a time.
    """
    inner = inner_values(config, batch, tokens)
    return {
        "parameters": dtype.size * count_total_parameters(config),
        "KV cache": batch * tokens * kv_cache_bytes_per_position(config, dtype),
        "forward pass": dtype.size * (inner["a layer"] + inner["outside"]),
        "kept for backward": dtype.size * (config.num_hidden_layers * inner["a layer"] + inner["outside"]),
    }
