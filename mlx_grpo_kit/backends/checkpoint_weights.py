"""The weights in a checkpoint of any backend, read without its model or optimizer, and without running pickles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mlx_grpo_kit.backends.checkpoints import WAY_OUT
from mlx_grpo_kit.backends.weights import flat
from mlx_grpo_kit.files import whole_folder
from mlx_grpo_kit.qwen3.weight_files import load_arrays
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.extras import install

TORCH, SAFETENSORS, ORBAX = "pytorch_model.bin", "model.safetensors", "orbax"


def read_weights(folder: str | os.PathLike) -> dict[str, Any]:
    """The arrays of a checkpoint by name, as arrays of its framework. `read_metadata` must have checked its files.

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
