"""Shared parts of all folders of weights: names of parameters, safetensors files, config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.files import check_regular
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx

if TYPE_CHECKING:
    from mlx_grpo_kit.qwen3.tokenizer import Tokenizer


def hugging_face_name(name: str) -> str:
    """The name of a parameter in a published folder, and in transformers' model."""
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


def save_arrays(file: Path, arrays: Mapping[str, mx.array]) -> None:
    """Write a safetensors file."""
    with file.open("wb") as opened:  # with Python's open, because MLX's does not report the reason, such as a full disk
        mx.save_safetensors(opened, dict(arrays), metadata={"format": "pt"})


def config_json(config: Qwen3Config, dtype: mx.Dtype, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of a folder's config.json: the model's configuration, and its tokenizer's special ids."""
    name = str(dtype).rpartition(".")[2]
    settings = config.to_dict() | {"dtype": name, "torch_dtype": name}
    if tokenizer is not None:
        settings |= {"eos_token_id": tokenizer.eos_token_ids, "pad_token_id": tokenizer.pad_token_id}
    return settings
