"""Shared parts of all folders of weights: names of parameters, safetensors files, config.json."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlx_grpo_kit.files import check_regular
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx

if TYPE_CHECKING:
    from mlx_grpo_kit.qwen3.tokenizer import Tokenizer


KINDS = {"float32": "F32", "uint64": "U64"}
"""The dtypes of a `LaterArray` by their names in safetensors."""


def hugging_face_name(name: str) -> str:
    """The name of a parameter in a published folder, and in transformers' `Qwen3ForCausalLM`."""
    if name == "lm_head.weight":
        return name
    return "model." + name.replace("embedding.", "embed_tokens.", 1).replace("final_norm.", "norm.", 1)


def kit_name(name: str) -> str:
    """The kit's name of a parameter with a Hugging Face name. A name of the kit is returned unchanged."""
    name = name.removeprefix("model.")
    return re.sub(r"^norm\.", "final_norm.", re.sub(r"^embed_tokens\.", "embedding.", name))


def load_arrays(file: Path) -> dict[str, mx.array]:
    """The arrays of a safetensors file, read on first use. Raises ValueError with the name of the file."""
    size = check_regular(file).st_size
    if size < 8:
        raise ValueError(f"{file} has {size} bytes. It is cut off; copy it again.")
    try:
        return mx.load(str(file), format="safetensors")
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}). It is cut off or corrupt; copy it again.") from error


class LaterArray(NamedTuple):
    """An array that is computed when it is written, so that a file's arrays never exist all at once."""

    dtype: np.dtype
    shape: tuple[int, ...]
    collect: Callable[[], np.ndarray]


def save_arrays(file: Path, arrays: Mapping[str, mx.array] | Mapping[str, LaterArray]) -> None:
    """Write a safetensors file."""
    if any(isinstance(value, LaterArray) for value in arrays.values()):
        _save_one_by_one(file, arrays)
        return
    with file.open("wb") as opened:  # with Python's open, because MLX's does not report the reason, such as a full disk
        mx.save_safetensors(opened, dict(arrays), metadata={"format": "pt"})


def _save_one_by_one(file: Path, arrays: Mapping[str, LaterArray]) -> None:
    """Write the format by hand: the header's length in 8 bytes, the header as JSON, and the arrays' bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, _) in arrays.items():
        start, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": KINDS[dtype.name], "shape": [*shape], "data_offsets": [start, end]}
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    with file.open("wb") as opened:
        opened.write(len(words).to_bytes(8, "little") + words)
        for value in arrays.values():
            opened.write(np.ascontiguousarray(value.collect()).data)


def config_json(config: Qwen3Config, dtype: mx.Dtype, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of a folder's config.json: the model's configuration, and its tokenizer's special ids."""
    name = str(dtype).rpartition(".")[2]
    settings = config.to_dict() | {"dtype": name, "torch_dtype": name}
    if tokenizer is not None:
        settings |= {"eos_token_id": tokenizer.eos_token_ids, "pad_token_id": tokenizer.pad_token_id}
    return settings
