"""The `fuse` command: adapters and the model that they stand beside become one plain Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path

from mlx_grpo_kit.qwen3 import dequantize, load_adapters, load_pretrained, load_tokenizer, merge, save_pretrained
from mlx_grpo_kit.qwen3.adapter_base import base_of, bases_of
from mlx_grpo_kit.qwen3.params import check_finite


def fuse(adapter: str | os.PathLike, output: str | os.PathLike, model: str | os.PathLike | None = None) -> Path:
    """Write the policy that `adapter` makes of `model`, in the model's dtype. Returns the folder's path.

    A quantized model gives float numbers: what the adapters add is finer than the steps between packed ones.

    Args:
        adapter: a folder that the kit, mlx-lm or PEFT wrote.
        output: the folder to write; it appears whole or not at all.
        model: the model's folder; None takes the one that `adapter` names.

    Raises:
        FileNotFoundError: a folder or a file is missing.
        ValueError: the adapters are another model's, `output` is one of the folders that are read, or numbers overflow.
        FileExistsError: `output` holds anything that the kit did not write.
    """
    model = base_of(adapter) if model is None else model
    beside = "the model that they stand beside"
    for what, folder in (("the adapters", adapter), *((beside, each) for each in (model, *bases_of(model)))):
        read, written = Path(folder).resolve(), Path(output).resolve()
        if read.is_relative_to(written) or written.is_relative_to(read):
            change = "be written into" if read in written.parents else "replace"
            raise ValueError(f"--output {output} would {change} {what}, in {folder}. Give another folder.")
    config, params = load_pretrained(model, dtype=None)
    adapters = load_adapters(adapter, config)
    adapters.check_base(params)
    fused = dequantize(config, merge(params, adapters.lora, adapters.scale))
    try:
        check_finite(fused)
    except ValueError as error:
        raise ValueError(f"What {adapter} makes of {model} cannot be used. {error}") from error
    return save_pretrained(output, config, fused, tokenizer=load_tokenizer(model))
