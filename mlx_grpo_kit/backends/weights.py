"""Weights of any framework as the kit's parameters: one flat dictionary of arrays, under the kit's names.

Frameworks differ in three ways: the arrays (torch, MLX, JAX, NumPy), the names (the kit's, or those of published
folders and of transformers) and the nesting of the dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_grpo_kit.backends.arrays import array_of, as_numpy, dtype_name, framework_of, plain_name
from mlx_grpo_kit.qwen3 import Qwen3Config, param_names, validate_params
from mlx_grpo_kit.qwen3.params import check_finite
from mlx_grpo_kit.qwen3.pretrained import drop_second_embedding
from mlx_grpo_kit.qwen3.weight_files import kit_name
from mlx_grpo_kit.runtime import mx


def flat(weights: Mapping[str, Any]) -> dict[str, Any]:
    """{"layers": {"0": {"weight": a}}} -> {"layers.0.weight": a}, without the prefixes of compiled modules."""
    found: dict[str, Any] = {}
    for name, value in weights.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            found[plain_name(name)] = value
    return found


def to_kit(config: Qwen3Config, weights: Mapping[str, Any]) -> dict[str, mx.array]:
    """Weights of any framework as the parameters of `config`: evaluated copies of the same dtype under the kit's names.

    Raises ValueError, which names the parameter, for weights that do not fit `config`: other names, other shapes, other
        dtypes than floating-point, numbers that are not finite, or a different second copy of a tied embedding.
    """
    params: dict[str, mx.array] = {}
    for name, value in flat(weights).items():
        own = kit_name(name)
        if own in params:
            raise ValueError(f"Parameter {own!r} occurs twice, once as {name!r}; expected each parameter once.")
        dtype = getattr(mx, dtype_name(value), None)
        if not isinstance(dtype, mx.Dtype):
            raise ValueError(
                f"Parameter {own!r} has dtype {dtype_name(value)}; expected an array of floating-point numbers."
            )
        # float64 is converted to float32 here, because MLX supports it only on CPUs.
        params[own] = mx.array(as_numpy(value)).astype(mx.float32 if dtype == mx.float64 else dtype)
    if config.tie_word_embeddings:
        drop_second_embedding(params)
    validate_params(params, config)
    params = {name: params[name] for name in param_names(config)}
    mx.eval(params)
    check_finite(params)
    return params


def from_kit(params: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The kit's parameters in the form of `template`: with its names, nesting, framework and dtypes.

    Raises ValueError for a name that only one of the two has, or a different shape.
    """
    unused = set(params)

    def fill(template: Mapping[str, Any], path: str) -> dict[str, Any]:
        filled: dict[str, Any] = {}
        for name, value in template.items():
            if isinstance(value, Mapping):
                filled[name] = fill(value, f"{path}{name}.")
                continue
            own = kit_name(path + name)
            # transformers' state_dict contains a tied embedding twice.
            source = "embedding.weight" if own == "lm_head.weight" and own not in params else own
            unused.discard(source)
            if source not in params:
                raise ValueError(f"The model has a parameter {path + name!r}, which the folder does not have.")
            if tuple(params[source].shape) != tuple(value.shape):
                raise ValueError(
                    f"Parameter {path + name!r} has shape {tuple(value.shape)} in the model and "
                    f"{tuple(params[source].shape)} in the folder."
                )
            filled[name] = array_of(framework_of(value), as_numpy(params[source]), value.dtype)
        return filled

    filled = fill(template, "")
    if unused:
        raise ValueError(f"The folder has a parameter {min(unused)!r}, which the model does not have.")
    return filled
