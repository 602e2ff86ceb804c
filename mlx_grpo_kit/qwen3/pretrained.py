"""Models in Hugging Face folders: reading and writing config.json, model.safetensors (or shards), tokenizer files.

transformers and mlx-lm can read folders that this file writes, and it can read theirs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mlx_grpo_kit.files import check_saved, read_json, replaced_folder, whole_folder
from mlx_grpo_kit.qwen3.adapter_base import base_of
from mlx_grpo_kit.qwen3.adapters import load_adapters, warn_of_rounding
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.lora import merge
from mlx_grpo_kit.qwen3.params import cast_floats, check_finite, check_weights, in_groups, param_names, validate_params
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.qwen3.weight_files import config_json, hugging_face_name, kit_name, load_arrays, save_arrays
from mlx_grpo_kit.runtime import mx

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def load_pretrained(
    folder: str | os.PathLike, dtype: mx.Dtype | None = mx.float32
) -> tuple[Qwen3Config, dict[str, mx.array]]:
    """Read a Hugging Face folder: its configuration, and its parameters under the kit's names.

    The folder contains one `model.safetensors` or shards with an index, in float32, float16 or bfloat16. Parameters are
    returned as `dtype` (float32 is the fast and exact choice on a CPU; None keeps the dtype of the file). Matrices that
    mlx-lm has quantized stay quantized, with ".scales" and ".biases" in addition to the packed ".weight"
    (`matrices.py`): such a model can generate and train adapters; `dequantize` converts it to floats. For a folder of
    adapters, the result is their base model with the adapters merged into it. In a folder that the kit wrote, the hash
    of each file is checked.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is truncated, corrupt or changed, or belongs to another model; or a parameter is not finite.
            The message names the file or the parameter.
    """
    folder = whole_folder(folder)
    if (folder / "adapter_config.json").exists():
        return _load_merged(folder, dtype)
    check_saved(folder, ["config.json", INDEX, WEIGHTS])
    config = Qwen3Config.from_dict(read_json(folder, "config.json"))
    stored: dict[str, mx.array] = {}
    for file in _weight_files(folder):
        stored |= load_arrays(file)
    params = {kit_name(name): value for name, value in stored.items() if not name.endswith("rotary_emb.inv_freq")}
    try:
        if config.tie_word_embeddings:
            drop_second_embedding(params)
        check_weights(params, config)
    except ValueError as error:
        raise ValueError(f"The weights in {folder} do not fit its config.json. {error}") from error
    params = {name: params[name] for name in _in_order(config, params)}
    if dtype is not None:
        params = cast_floats(params, dtype)
    mx.eval(params)
    try:
        check_finite(params)
    except ValueError as error:
        raise ValueError(f"The weights in {folder} cannot be used. {error}") from error
    return config, params


def save_pretrained(
    folder: str | os.PathLike,
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    *,
    tokenizer: Tokenizer | None = None,
    max_shard_size: int = 5 * 2**30,
    documents: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a Hugging Face folder that transformers, mlx-lm and `load_pretrained` read. Returns its path.

    With a `tokenizer` the folder includes its files, and with `documents` those files too, such as README.md. Weights
    above `max_shard_size` bytes are split into shards with an index. The folder appears complete or not at all, with a
    list of its files (mlx_grpo_kit.json). It replaces a folder
    that was saved like this before.

    Raises ValueError if `params` do not fit `config`, FileExistsError if `folder` is a file or contains anything that
    the kit did not write (even a downloaded model), and OSError if it cannot be written.
    """
    validate_params(params, config)
    folder = Path(folder)
    settings = config_json(config, next(iter(params.values())).dtype, tokenizer)
    with replaced_folder(folder) as new:
        if tokenizer is not None:
            tokenizer.save(new)
        for name, content in (documents or {}).items():
            (new / name).write_bytes(content)
        (new / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        _write_weights(new, {hugging_face_name(name): value for name, value in params.items()}, max_shard_size)
    return folder


def _load_merged(folder: Path, dtype: mx.Dtype | None) -> tuple[Qwen3Config, dict[str, mx.array]]:
    config, params = load_pretrained(base_of(folder), dtype)
    adapters = load_adapters(folder, config)
    adapters.check_base(params)
    merged = merge(params, adapters.lora, adapters.scale)
    warn_of_rounding(params, merged, adapters)
    return config, merged


def _in_order(config: Qwen3Config, params: Mapping[str, mx.array]) -> Iterator[str]:
    """The names of `params` in the forward pass's order, with scales and biases after their weight."""
    for name in param_names(config):
        yield name
        parts = (f"{name.removesuffix('.weight')}.{part}" for part in ("scales", "biases"))
        yield from (part for part in parts if part in params)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        weight_map = read_json(folder, INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{folder / INDEX} has no 'weight_map'; copy it again.")
        names = weight_map.values()
        outside = [name for name in names if not (isinstance(name, str) and re.fullmatch(r"[^/]*\.safetensors", name))]
        if outside:
            raise ValueError(f"{folder / INDEX} names {outside[0]!r}; expected the name of a file in {folder}.")
        check_saved(folder, set(names))
        files = [folder / name for name in sorted(set(names))]
    else:
        files = [folder / WEIGHTS]
    for file in files:
        if not file.exists():
            kept = sorted(path.name for path in folder.glob("*.bin"))
            advice = f" It contains {kept[0]}, an older format: save it again as safetensors." if kept else ""
            raise FileNotFoundError(f"{folder} has no {file.name}, which contains the weights.{advice}")
    return files


def drop_second_embedding(params: dict[str, mx.array]) -> None:
    """Remove a tied embedding's second copy, which some writers store as the output layer, quantized or not.

    If it differs, raise ValueError.
    """
    parts = ("weight", "scales", "biases")
    output = {part: params.pop(f"lm_head.{part}") for part in parts if f"lm_head.{part}" in params}
    embedding = {part: params[f"embedding.{part}"] for part in parts if f"embedding.{part}" in params}
    equal = output.keys() == embedding.keys() and all(
        mx.array_equal(output[part], embedding[part], equal_nan=mx.issubdtype(output[part].dtype, mx.floating)).item()
        for part in output
    )
    if output and embedding and not equal:
        raise ValueError(
            "tie_word_embeddings is true, but lm_head.weight is not the embedding. Set it to false if the model was "
            "trained with a separate output layer."
        )


def _write_weights(folder: Path, weights: dict[str, mx.array], max_shard_size: int) -> None:
    shards = in_groups(weights, lambda name: weights[name].nbytes, max_shard_size)
    if len(shards) == 1:
        save_arrays(folder / WEIGHTS, weights)
        return
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_arrays(folder / file, {name: weights[name] for name in names})
        weight_map.update(dict.fromkeys(names, file))
    total = sum(value.nbytes for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
