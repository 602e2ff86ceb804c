"""The `fuse` command: adapters and their base model become one plain Hugging Face folder."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.qwen3 import dequantize, load_adapters, load_pretrained, load_tokenizer, merge, save_pretrained
from mlx_grpo_kit.qwen3.adapter_base import base_of, bases_of
from mlx_grpo_kit.qwen3.adapters import warn_of_rounding
from mlx_grpo_kit.qwen3.params import cast_floats, check_finite
from mlx_grpo_kit.runs.folder import check_writable
from mlx_grpo_kit.runtime import mx


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    check_writable(options.output)
    folder = fuse(options.adapter, options.output, options.model and model_folder(options.model), options.dtype)
    print(f"{folder} is now a Hugging Face folder.")
    return 0


def fuse(
    adapter: str | os.PathLike,
    output: str | os.PathLike,
    model: str | os.PathLike | None = None,
    dtype: str | None = None,
) -> Path:
    """Write the policy of `model` with `adapter` merged in. Returns the folder's path.

    A quantized model becomes floats, because the adapters' changes are finer than the steps of quantization.

    Args:
        adapter: a folder that the kit, mlx-lm or PEFT wrote.
        output: the folder to write; it appears complete or not at all.
        model: the folder of the base model; None takes the one that `adapter` names.
        dtype: "float32", "bfloat16" or "float16"; None takes the model's.

    Warns (RuntimeWarning) if rounding to the dtype takes away much of the adapters' change.

    Raises:
        FileNotFoundError: a folder or a file is missing.
        ValueError: the adapters belong to another model, `output` is one of the input folders, or numbers overflow.
        FileExistsError: `output` contains anything that the kit did not write.
    """
    model = base_of(adapter) if model is None else model
    beside = "their base model"
    for what, folder in (("the adapters", adapter), *((beside, each) for each in (model, *bases_of(model)))):
        read, written = Path(folder).resolve(), Path(output).resolve()
        if read.is_relative_to(written) or written.is_relative_to(read):
            change = "be written into" if read in written.parents else "replace"
            raise ValueError(f"--output {output} would {change} {what}, in {folder}. Choose another folder.")
    config, params = load_pretrained(model, dtype=None)
    adapters = load_adapters(adapter, config)
    adapters.check_base(params)
    if dtype is not None:
        params = cast_floats(params, mx.float32)
    fused = dequantize(config, merge(params, adapters.lora, adapters.scale))
    if dtype is not None:
        fused = cast_floats(fused, getattr(mx, dtype))
    warn_of_rounding(params, fused, adapters)
    try:
        check_finite(fused)
    except ValueError as error:
        raise ValueError(f"{model} with {adapter} merged in cannot be used. {error}") from error
    return save_pretrained(output, config, fused, tokenizer=load_tokenizer(model))
