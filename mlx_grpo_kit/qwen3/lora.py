"""Low-rank adapters (LoRA): train a few additional parameters of a frozen model.

A linear map W [out, in] becomes W + scale (A B)^T with A [in, rank] and B [rank, out] (Hu et al. 2021,
https://arxiv.org/abs/2106.09685). A is random at first and B is 0, so the policy starts as the base model. There are
two pure functions:

    lora = init_lora(config, params, rank=8)       the arrays to train, 3% of Qwen3-0.6B's numbers or fewer
    policy = merge(params, lora, scale)            the policy as ordinary parameters

`adapt` is `merge` without the sums: it keeps A and B separate from W, which may be quantized, and the forward pass
computes x W^T + scale (x A) B. If you differentiate with respect to `lora`, no gradient of W's size ever exists.

Names are the kit's with ".lora_a" and ".lora_b" in place of ".weight"; layouts are mlx-lm's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches

import numpy as np

from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.matrices import ADAPTER, QuantizedMatrix, matrix
from mlx_grpo_kit.qwen3.params import check_weights, param_shapes
from mlx_grpo_kit.runtime import mx

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a layer, all of which may have adapters (PEFT's "all-linear")."""

SCALES = (1.2e-38, 3e38)
"""The smallest and the largest scale of adapters; beyond them a scale is 0 or infinite in float32."""


def adapter_shapes(config: Qwen3Config, rank: int, targets: Collection[str] = TARGETS) -> dict[str, tuple[int, int]]:
    """Every adapter array's name and shape, in the forward pass's order.

    Raises ValueError for an invalid rank or one larger than that of the maps themselves, and for targets that no layer
    has.
    """
    if not (isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1):
        raise ValueError(f"The rank of adapters is {rank!r}; expected a whole number of at least 1, such as 8.")
    check_targets(targets)
    maps = {name.removesuffix(".weight"): shape for name, shape in param_shapes(config).items()}
    maps = {stem: shape for stem, shape in maps.items() if stem.rpartition(".")[2] in targets}
    largest = max(min(shape) for shape in maps.values())
    if rank > largest:
        raise ValueError(
            f"The rank of adapters is {rank}; expected at most {largest}, the largest rank of a linear map of this "
            "model: a product A B of that rank can already be any matrix. The usual rank is 8."
        )
    shapes = {}
    for stem, (out_features, in_features) in maps.items():
        shapes |= {f"{stem}.lora_a": (in_features, rank), f"{stem}.lora_b": (rank, out_features)}
    return shapes


def check_targets(targets: Collection[str]) -> None:
    """Raise ValueError for targets that are not linear maps of a layer, and for no targets at all."""
    if isinstance(targets, str) or not targets:
        raise ValueError(f"The targets of adapters are {targets!r}; expected some of {', '.join(TARGETS)}.")
    for target in targets:
        if target not in TARGETS:
            near = get_close_matches(str(target), TARGETS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            hint = " Without a choice, all of them get adapters." if target == "all-linear" else hint  # PEFT's
            raise ValueError(f"There is no linear map {target!r} in a layer; expected {', '.join(TARGETS)}.{hint}")


def init_lora(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    rank: int = 8,
    targets: Collection[str] = TARGETS,
    seed: int = 0,
) -> dict[str, mx.array]:
    """New adapters, which do not change the model yet: A random, B zero, float32. Equal for equal seeds.

    A is uniform within 1 / sqrt(in_features), as in PEFT and mlx-lm.

    Args:
        config, params: the base model, in floats or quantized.
        rank: the rank of the product A B.
        targets: the linear maps of every layer that get an adapter, some of `TARGETS`.

    Raises:
        ValueError: `params` do not fit `config`, or rank, targets or seed are invalid.
    """
    check_weights(params, config)
    shapes = adapter_shapes(config, rank, targets)
    if not (isinstance(seed, int) and 0 <= seed < 2**64):
        raise ValueError(f"The seed of adapters is {seed!r}; expected a whole number from 0.")
    keys = mx.random.split(mx.random.key(seed), len(shapes))
    lora = {}
    for key, (name, shape) in zip(keys, shapes.items(), strict=True):
        bound = 1 / math.sqrt(shape[0])
        is_a = name.endswith(ADAPTER[0])
        lora[name] = mx.random.uniform(-bound, bound, shape, key=key) if is_a else mx.zeros(shape)
    mx.eval(lora)
    return lora


def adapt(params: Mapping[str, mx.array], lora: Mapping[str, mx.array], scale: float = 1.0) -> dict[str, mx.array]:
    """The policy as base and separate adapters, in the form that `qwen3_forward` takes and learning differentiates.

    Args:
        params: the base model, in floats or quantized.
        lora: as `init_lora` returns it.
        scale: the factor of the product A B; lora_alpha / rank in PEFT's terms.
    """
    return {**params, **{name: value * scale if name.endswith(ADAPTER[1]) else value for name, value in lora.items()}}


def merge(params: Mapping[str, mx.array], lora: Mapping[str, mx.array], scale: float = 1.0) -> dict[str, mx.array]:
    """The policy as ordinary parameters: W + scale (A B)^T if W has an adapter. Arguments as in `adapt`.

    The sum is taken in float32, and has the dtype of W. A quantized W becomes floats; a map without an adapter is
    returned unchanged.

    Raises ValueError for adapters that do not fit `params`: other names, other shapes, an A without its B.
    """
    merged = dict(params)
    for stem in sorted({name.rpartition(".")[0] for name in lora}):
        base, a, b = _fitting(params, lora, stem)
        if isinstance(base, QuantizedMatrix):
            base = base[:]
            del merged[f"{stem}.scales"], merged[f"{stem}.biases"]
        product = (a.astype(mx.float32) @ b.astype(mx.float32)).T
        merged[f"{stem}.weight"] = (base.astype(mx.float32) + scale * product).astype(base.dtype)
    return merged


def _fitting(
    params: Mapping[str, mx.array], lora: Mapping[str, mx.array], stem: str
) -> tuple[mx.array | QuantizedMatrix, mx.array, mx.array]:
    """A linear map, and the two arrays of its adapter. Raises ValueError if their shapes do not match."""
    names = [f"{stem}.weight", *(stem + end for end in ADAPTER)]
    missing = [name for name in names if name not in {**params, **lora}]
    if missing:
        there = next(name for name in lora if name.rpartition(".")[0] == stem)
        raise ValueError(f"{there!r} has no matching {missing[0]!r}. Are these the adapters of another model?")
    a, b = (lora[name] for name in names[1:])
    base = matrix(params, stem, a.shape[0]) if a.ndim == b.ndim == 2 and a.size else None
    whole = base is not None and (not isinstance(base, QuantizedMatrix) or base.is_whole)
    if not whole or tuple(base.shape) != (b.shape[1], a.shape[0]) or a.shape[1] != b.shape[0]:
        packed = ", packed" * (f"{stem}.scales" in params)
        raise ValueError(
            f"The adapter of {stem!r} has the shapes {tuple(a.shape)} and {tuple(b.shape)} for a weight of shape "
            f"{tuple(params[names[0]].shape)}{packed}: expected (in, rank) and (rank, out) for (out, in). Are these "
            "the adapters of another model?"
        )
    return base, a, b


def dequantize(config: Qwen3Config, params: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """`params` with all quantized matrices converted to floats of their scales' dtype."""
    dense = {}
    for name, shape in param_shapes(config).items():
        is_bias = name.endswith(".bias")
        value = params[name] if is_bias else matrix(params, name.removesuffix(".weight"), shape[-1])
        dense[name] = value[:] if isinstance(value, QuantizedMatrix) else value
    return dense


def check_adapters(lora: Mapping[str, mx.array], config: Qwen3Config) -> None:
    """Raise ValueError for adapters that do not fit a configuration: other names, other shapes, an A without its B."""
    shapes = param_shapes(config)
    if not lora:
        raise ValueError("There are no adapters; expected arrays such as layers.0.self_attn.q_proj.lora_a.")
    for name, value in lora.items():
        stem, _, kind = name.rpartition(".")
        base = shapes.get(f"{stem}.weight")
        if f".{kind}" not in ADAPTER or base is None or stem.rpartition(".")[2] not in TARGETS:
            raise ValueError(
                f"{name!r} is not an adapter of a linear map of this model; expected names such as "
                "layers.0.self_attn.q_proj.lora_a. Are these the adapters of another model?"
            )
        partner = lora.get(f"{stem}.{'lora_b' if kind == 'lora_a' else 'lora_a'}")
        if partner is None:
            raise ValueError(f"{name!r} has no counterpart; expected {stem}.lora_a and {stem}.lora_b.")
        rank = value.shape[1 if kind == "lora_a" else 0] if value.ndim == 2 else 0
        expected = (base[1], rank) if kind == "lora_a" else (rank, base[0])
        if (
            value.ndim != 2
            or not rank
            or value.shape != expected
            or (kind == "lora_a" and partner.shape[:1] != (rank,))
        ):
            raise ValueError(
                f"Adapter {name!r} has shape {tuple(value.shape)} for a linear map from {base[1]} to {base[0]} numbers:"
                f" expected {'(' + str(base[1]) + ', rank)' if kind == 'lora_a' else f'(rank, {base[0]})'}, with the "
                "same rank in both of its arrays. Are these the adapters of another model?"
            )
        if not mx.issubdtype(value.dtype, mx.floating):
            raise ValueError(f"Adapter {name!r} has dtype {value.dtype}; expected floating-point numbers.")


def fingerprint(params: Mapping[str, mx.array]) -> str:
    """Two hashes that identify a model, separated by a space: of names, shapes and some 64 numbers of each array.

    The first uses the numbers rounded to bfloat16, the second the numbers rounded to float16 and then to bfloat16. A
    copy in bfloat16 shares the first hash with its float32 original, and a copy in float16 the second. Adapters only
    fit their base model, and make nonsense of any other model of its shape.
    """
    as_bfloat16, as_float16 = hashlib.sha256(), hashlib.sha256()
    for name, value in sorted(params.items()):
        some = value.reshape(-1)[:: value.size // 64 + 1]
        is_float = mx.issubdtype(value.dtype, mx.floating)
        for said, dtype in ((as_bfloat16, value.dtype), (as_float16, mx.float16)):
            rounded = some.astype(dtype).astype(mx.bfloat16).astype(mx.float32) if is_float else some
            said.update(f"{name} {tuple(value.shape)}".encode() + np.array(rounded).tobytes())
    return f"{as_bfloat16.hexdigest()} {as_float16.hexdigest()}"
