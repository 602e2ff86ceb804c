"""Reading files that somebody else may have cut off, changed or never written."""

from __future__ import annotations

import json
from pathlib import Path


def read_json(folder: Path, name: str) -> dict:
    """The object in `folder/name`. Raises FileNotFoundError or ValueError with what to look for."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder}. Give a Hugging Face model folder, or `tiny` for the kit's own."
        )
    if not (folder / name).exists():
        raise FileNotFoundError(
            f"{folder} has no {name}; expected a Hugging Face model folder: "
            "config.json, model.safetensors, tokenizer.json."
        )
    try:
        content = json.loads((folder / name).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{folder / name} is not valid JSON ({error}). It is cut off or corrupt; copy it again."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{folder / name} holds {type(content).__name__}; expected a JSON object.")
    return content
