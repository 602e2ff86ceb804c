"""The parameters of a Qwen3 or a relative: their names, shapes and number, random initialization, and checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

import numpy as np

from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.matrices import QuantizedMatrix
from mlx_grpo_kit.runtime import mx

T = TypeVar("T")


def param_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape, in the forward pass's order. Linear maps are [out_features, in_features]."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layer_shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        layer_shapes[f"self_attn.{name}.weight"] = (size, hidden)
        if config.family.biases:
            layer_shapes[f"self_attn.{name}.bias"] = (size,)
    if config.family.head_norms:
        layer_shapes |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (config.head_dim,))
    layer_shapes |= {
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    shapes = {"embedding.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_hidden_layers):
        shapes.update({f"layers.{layer}.{name}": shape for name, shape in layer_shapes.items()})
    shapes["final_norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def param_names(config: Qwen3Config) -> list[str]:
    """Every parameter's name, in the order of the forward pass."""
    return list(param_shapes(config))


def decays(name: str) -> bool:
    """True if weight decay acts on a parameter of this name: not on norms and biases, as in transformers and TRL.

    The patterns are those of `transformers.Trainer.get_decay_parameter_names`. The kit's names, those of published
    folders and those of PEFT's adapters give the same answer; both matrices of an adapter decay.
    """
    return re.search(r"bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.)", name.lower()) is None


def count_total_parameters(config: Qwen3Config) -> int:
    """The number of parameters of the model. A tied output layer is the embedding, counted once."""
    return sum(math.prod(shape) for shape in param_shapes(config).values())


def init_params(config: Qwen3Config, seed: int = 0, scale: float = 0.02) -> dict[str, mx.array]:
    """Random float32 parameters, equal for equal seeds, as in transformers.

    Matrices are normal(0, scale), norms are 1 and biases 0.
    """
    keys = mx.random.split(mx.random.key(seed), len(param_shapes(config)))
    params = {
        name: mx.random.normal(shape, scale=scale, key=key)
        if len(shape) == 2
        else (mx.zeros if name.endswith(".bias") else mx.ones)(shape)
        for key, (name, shape) in zip(keys, param_shapes(config).items(), strict=True)
    }
    mx.eval(params)
    return params


def map_params_to_dict(params: Sequence[mx.array], names: Sequence[str]) -> dict[str, mx.array]:
    """A flat list of arrays under their names.

    Raises:
        ValueError: the lengths differ, or a name occurs twice.
    """
    if len(params) != len(names):
        raise ValueError(f"There are {len(params)} arrays for {len(names)} names; expected one name for each array.")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        raise ValueError(f"Parameter name {twice[0]!r} occurs more than once; expected each name once.")
    return dict(zip(names, params, strict=True))


def validate_param_names(names: Iterable[str], config: Qwen3Config) -> None:
    """Raise ValueError unless `names` are exactly the parameters of this configuration."""
    given, expected = set(names), set(param_shapes(config))
    missing, unknown = sorted(expected - given), sorted(given - expected)
    if unknown:
        near = get_close_matches(unknown[0], missing or expected, n=1)
        reason = f" Did you mean {near[0]!r}?" if near else ""
        kind = unknown[0].rpartition(".")[2]
        if kind in ("scales", "biases"):
            reason = " The weights are quantized, but floats are required here: call dequantize(config, params)."
        elif kind in ("lora_a", "lora_b"):
            reason = " It is an adapter, but only parameters are allowed here: call merge(params, lora, scale)."
        elif unknown[0] == "lm_head.weight":
            reason = " tie_word_embeddings is true, so the embedding is the output layer too."
        raise ValueError(f"Unknown parameter {_first(unknown)}.{reason}")
    if missing:
        raise ValueError(
            f"Missing parameter {_first(missing)}. Qwen3Config expects {len(expected)} parameters in total."
        )


def validate_params(params: Mapping[str, mx.array], config: Qwen3Config) -> None:
    """Raise ValueError for `params` that do not fit this configuration: other names, shapes, or non-float dtypes."""
    validate_param_names(params, config)
    for name, shape in param_shapes(config).items():
        if tuple(params[name].shape) != shape:
            raise ValueError(
                f"Parameter {name!r} has shape {tuple(params[name].shape)}; Qwen3Config("
                f"hidden_size={config.hidden_size}, intermediate_size={config.intermediate_size}, "
                f"vocab_size={config.vocab_size}, num_attention_heads={config.num_attention_heads}, "
                f"num_key_value_heads={config.num_key_value_heads}, head_dim={config.head_dim}) expects {shape}."
            )
        if not mx.issubdtype(params[name].dtype, mx.floating):
            raise ValueError(
                f"Parameter {name!r} has dtype {params[name].dtype}; expected float32, float16 or bfloat16. Quantized "
                "weights must be dequantized first."
            )


def check_weights(params: Mapping[str, mx.array], config: Qwen3Config) -> None:
    """`validate_params` that also allows quantized matrices (`matrices.py`)."""
    shapes, found = param_shapes(config), dict(params)
    for scales in [name for name in params if name.endswith(".scales")]:
        stem = scales.removesuffix(".scales")
        name, biases = f"{stem}.weight", f"{stem}.biases"
        if len(shapes.get(name, ())) != 2 or not {name, biases} <= params.keys():
            raise ValueError(f"{scales!r} has no matching matrix; expected its weight and its biases too.")
        quantized = QuantizedMatrix(params[name], found.pop(scales), found.pop(biases), shapes[name][1])
        if not quantized.is_whole:
            raise ValueError(
                f"Parameter {name!r} is quantized and has shape {tuple(params[name].shape)}, with scales of shape "
                f"{tuple(params[scales].shape)}; for {shapes[name]} numbers expected groups of 32, 64 or 128 that "
                "share a scale, and 2 to 8 bits per number."
            )
        found[name] = quantized
    validate_params(found, config)


def in_groups(items: Iterable[T], size_of: Callable[[T], int], most: int) -> list[list[T]]:
    """Adjacent items in groups, so that the sizes of a group add up to `most` or less; a larger item is alone."""
    groups: list[list[T]] = []
    room = 0
    for item in items:
        if not groups or size_of(item) > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= size_of(item)
    return groups


def cast_floats(params: Mapping[str, mx.array], dtype: mx.Dtype) -> dict[str, mx.array]:
    """The same arrays in another dtype; packed numbers of quantized matrices are unchanged."""
    return {
        name: value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
        for name, value in params.items()
    }


def check_finite(params: Mapping[str, mx.array]) -> None:
    """Raise ValueError for parameters that contain NaN or an infinity, which would make every output NaN."""
    for name, value in params.items():
        if not mx.issubdtype(value.dtype, mx.floating):  # packed numbers: every bit pattern is valid
            continue
        wrong = value.size - np.isfinite(np.asarray(value.astype(mx.float32))).sum()  # 16 times as fast as MLX's
        if wrong:
            raise ValueError(
                f"Parameter {name!r} has {wrong:,} of {value.size:,} numbers that are NaN or infinite as "
                f"{str(value.dtype).rpartition('.')[2]}. Training diverged before it was saved, or the file is corrupt."
            )


def _first(names: list[str]) -> str:
    return repr(names[0]) + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
