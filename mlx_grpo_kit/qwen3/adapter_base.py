"""The base model of adapters, found through their folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import on_the_hub, one_further_in, read_json

SETTINGS = "adapter_config.json"
LONGEST_PATH = 4096


def base_of(folder: str | os.PathLike) -> Path:
    """The folder of the base model that an adapters' folder names.

    Raises the errors of `bases_of`, and FileNotFoundError if there are no adapters.
    """
    adapter_settings(Path(folder))
    return bases_of(folder)[0]


def bases_of(folder: str | os.PathLike) -> list[Path]:
    """Every other folder that a model needs: the base of its adapters, the base of that model's adapters, and so on.

    Empty for a model without adapters.

    Raises:
        FileNotFoundError: a base is not in the folder that the adapters name.
        ValueError: the bases form a circle.
    """
    bases: list[Path] = []
    last = Path(folder)
    while (last / SETTINGS).exists():
        base = _named_base(last)
        if base.resolve() in [each.resolve() for each in (Path(folder), *bases)]:
            raise ValueError(f"{folder} contains adapters of a model in {str(base)!r}, which leads back to {last}.")
        bases.append(base)
        last = base
    return bases


def _named_base(folder: str | os.PathLike) -> Path:
    settings = adapter_settings(Path(folder))
    named = settings.get("base_model_name_or_path") or settings.get("model")  # mlx-lm writes its --model
    is_path = isinstance(named, str) and 0 < len(named) <= LONGEST_PATH and "\0" not in named
    if not is_path or not Path(named).is_dir():
        download = f" {on_the_hub(named)}" if is_path else ""
        raise FileNotFoundError(
            f"{folder} contains adapters of a model in {named!r:.200}, and there is no such folder.{download} Name the "
            f"folder: python -m mlx_grpo_kit fuse --adapter {os.path.abspath(folder)} --model MODEL --output FOLDER."
        )
    return Path(named)


def adapter_settings(folder: Path) -> dict[str, Any]:
    """The content of a folder's adapter_config.json. Raises FileNotFoundError if there is none."""
    if not (folder / SETTINGS).exists():
        what = f"no {SETTINGS}" if folder.is_dir() else "no folder of this name"
        way_out = one_further_in(folder, SETTINGS) or " The kit, mlx-lm and PEFT write one."
        raise FileNotFoundError(f"There are no adapters in {folder}: {what}.{way_out}")
    return read_json(folder, SETTINGS)
