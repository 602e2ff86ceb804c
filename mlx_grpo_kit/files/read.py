"""Safe reading of files that may have been truncated, changed, or replaced by something else."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

MAX_BYTES = 2**26
"""The limit for files of settings. The largest in a Qwen3 folder is tokenizer.json, with 2^23.5 bytes."""


def check_regular(path: Path) -> os.stat_result:
    """Return the `stat` of a regular file, or of a link to one.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is a folder, a pipe or a device, whose reading fails or never ends.
    """
    found = os.stat(path)
    _check_kind(path, found)
    return found


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is a folder, a pipe or a device, or it has more than `max_bytes` bytes.
    """
    check_regular(path)
    # It may have become a pipe since the check: without O_NONBLOCK, opening it would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        _check_kind(path, os.fstat(descriptor))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes:,} bytes, which no file of its kind has. Copy it again.")
    return content


def read_json(folder: Path, name: str) -> dict:
    """The object in `folder/name`.

    Raises:
        FileNotFoundError: there is no such folder, or no such file in it.
        ValueError: the file is not a JSON object, or not a file that can be read to its end.
    """
    if not folder.is_dir():
        raise FileNotFoundError(no_model_folder(folder))
    path = folder / name
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {name}; expected a Hugging Face model folder: "
            f"config.json, model.safetensors, tokenizer.json.{one_further_in(folder, name)}"
        )
    text = read_file(path)
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of 5000 digits, brackets without end
        raise ValueError(f"{path} is not valid JSON ({error}). It is cut off or corrupt; copy it again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} contains {type(content).__name__}; expected a JSON object.")
    return content


def no_model_folder(folder: Path) -> str:
    """An error message for a model folder that does not exist."""
    if str(folder) in ("tiny", "tiny-chat", "tiny-tools", "tiny-steps", "smollm2"):
        way_out = f'The kit\'s own model of this name is model_folder("{folder}"), from mlx_grpo_kit.grpo.recipe.'
    elif folder.suffix == ".gguf" and folder.is_file():
        way_out = f"A GGUF has to be converted once: python -m mlx_grpo_kit import {folder} --output {folder.stem}"
    else:
        way_out = on_the_hub(folder) or "Pass a Hugging Face model folder, or `tiny` for the kit's own."
    return f"There is no folder {folder}. {way_out}"


def on_the_hub(folder: str | os.PathLike) -> str:
    """Advice on downloading a folder whose name could be a model's on the Hugging Face Hub; else empty."""
    name = os.path.relpath(folder)
    owner, _, model = name.partition("/")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) or os.path.exists(owner):
        return ""
    return (
        "Nothing is downloaded here. If this is a model on the Hugging Face Hub, get it with "
        f"`hf download {name} --local-dir {model}`, and pass that folder."
    )


def one_further_in(folder: Path, name: str) -> str:
    """A hint if a subfolder is the model folder, such as policy/ in a run's folder; else an empty text."""
    found = sorted(folder.glob(f"*/{name}"))
    return f" {found[0].parent} has one: pass that folder." if found else ""


def _check_kind(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise ValueError(f"{path} is {kind}; expected a file.")
