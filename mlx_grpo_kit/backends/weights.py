"""Weights of any framework as the kit's parameters: one flat dictionary of arrays, under the kit's names.

Frameworks differ in three ways: the arrays (torch, MLX, JAX, NumPy), the names (the kit's, or those of published
folders and of transformers) and the nesting of the dictionary. So weights move from any backend's checkpoint into
inference engines, and from and to Hugging Face folders, which transformers and mlx-lm read:

    config = await load_hugging_face(backend, "Qwen3-0.6B")
    await save_hugging_face(backend, "outputs/policy", config, tokenizer=load_tokenizer("Qwen3-0.6B"))
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.backends.arrays import array_of, as_numpy, dtype_name, framework_of, plain_name
from mlx_grpo_kit.backends.checkpoints import WAY_OUT
from mlx_grpo_kit.files import whole_folder
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, param_names, save_pretrained, validate_params
from mlx_grpo_kit.qwen3.params import check_finite
from mlx_grpo_kit.qwen3.pretrained import drop_second_embedding
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.qwen3.weight_files import kit_name, load_arrays
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.extras import install

if TYPE_CHECKING:
    from mlx_grpo_kit.backends import TrainingBackend

TORCH, SAFETENSORS, ORBAX = "pytorch_model.bin", "model.safetensors", "orbax"


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


async def load_hugging_face(backend: TrainingBackend, folder: str | os.PathLike) -> Qwen3Config:
    """Load the weights of a folder into a backend, in the backend's dtypes. Returns the model's configuration.

    Raises FileNotFoundError and ValueError like `load_pretrained`, and ValueError if the backend's model differs from
    the folder's. Then the backend is unchanged.
    """
    config, params = load_pretrained(folder, dtype=None)
    template = await backend.get_weights().result()
    await backend.load_weights(from_kit(params, template)).result()
    return config


async def save_hugging_face(
    backend: TrainingBackend, folder: str | os.PathLike, config: Qwen3Config, *, tokenizer: Tokenizer | None = None
) -> Path:
    """Write a backend's weights as a folder, in their dtypes, so that loading gives the same bits.

    Raises ValueError if the weights do not fit `config` or are not finite, and the errors of `save_pretrained`.
    """
    weights = await backend.get_weights().result()
    return save_pretrained(folder, config, to_kit(config, weights), tokenizer=tokenizer)


def read_weights(folder: str | os.PathLike) -> dict[str, Any]:
    """The arrays of any backend's checkpoint by name, as arrays of its framework, read without running pickles.

    `read_metadata` must have checked its files.

    Raises ValueError if they cannot be read, and ImportError if that needs a package which is not installed.
    """
    folder = whole_folder(folder)
    if (folder / TORCH).exists():
        import torch

        try:
            weights = torch.load(folder / TORCH, map_location="cpu", weights_only=True)
        except Exception as error:  # errors of zipfile, pickle and torch, of many kinds
            raise ValueError(f"{folder / TORCH} cannot be read ({type(error).__name__}: {error}). {WAY_OUT}") from error
    elif (folder / SAFETENSORS).exists():
        weights = load_arrays(folder / SAFETENSORS)
        mx.eval(weights)
    elif (folder / ORBAX).exists():
        weights = _read_orbax(folder / ORBAX)
    else:
        raise ValueError(f"{folder} contains no weights; expected {TORCH}, {SAFETENSORS} or a folder {ORBAX}.")
    if not isinstance(weights, dict):
        raise ValueError(f"{folder} contains a {type(weights).__name__}; expected a dictionary of arrays by name.")
    return flat(weights)


def _read_orbax(folder: Path) -> Any:
    try:
        import jax
        import orbax.checkpoint as ocp
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{folder} was written by JAX: reading it needs {error.name}. Install it: {install('backends')}"
        ) from error
    path = folder.absolute()
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            saved = checkpointer.metadata(path).item_metadata.tree
            target = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), saved)
            return checkpointer.restore(path, target)["weights"]
    except Exception as error:  # errors of tensorstore, json and orbax
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error}). {WAY_OUT}") from error
