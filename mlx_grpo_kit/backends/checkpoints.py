"""Checkpoints of training backends: their files, and checks that they are complete.

    checkpoints/step_0100/
      pytorch_model.bin, optimizer.bin, training_state.bin     the files of the backend
      metadata.json        step, current_step, weight_version, timestamp, metrics, backend; size and sha256 of every
                           file above
      mlx_grpo_kit.json    the kit's list, by which it recognizes a folder that it may replace

metadata.json is written after everything that it describes, and the folder gets its name when all of it is on disk. So
a folder with this name is complete, unless it was changed later. `read_metadata` checks that.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import (
    MANIFEST,
    check_regular,
    check_saved,
    clear_leftovers,
    read_json,
    replaced_folder,
    whole_folder,
)
from mlx_grpo_kit.files.manifest import IGNORED, sha256_of, write_manifest

METADATA = "metadata.json"
MAX_METRICS = 2**20
"""The limit for metrics, in bytes of JSON: metadata must be small."""
WAY_OUT = "Take another checkpoint: newest_checkpoint(folder) finds the newest complete one."


def write_checkpoint(folder: Path, about: Mapping[str, Any], write: Callable[[Path], None]) -> None:
    """Let `write(new)` fill a new folder, describe it, and rename it to `folder`, completely or not at all.

    Raises FileExistsError if `folder` contains anything that the kit did not write, and OSError if it cannot be
    written.
    """
    clear_leftovers(folder.parent)  # those of every step, because a killed process may never save the same step again
    with replaced_folder(folder) as new:
        try:
            write(new)
        except OSError:
            raise
        except Exception as error:  # on a full disk torch raises RuntimeError, and orbax ValueError
            raise OSError(f"{folder} could not be written ({type(error).__name__}: {error}).") from error
        for inner in sorted((path for path in new.rglob("*") if path.is_dir()), reverse=True):
            write_manifest(inner)
        files = {name: {"size": (new / name).stat().st_size, "sha256": sha256_of(new / name)} for name in _files(new)}
        metadata = {**about, "timestamp": time.time(), "files": files}
        (new / METADATA).write_text(json.dumps(metadata, indent=2, allow_nan=False) + "\n")


def read_metadata(folder: str | os.PathLike) -> dict[str, Any]:
    """Check every file of the checkpoint against metadata.json, and return its content.

    Raises:
        FileNotFoundError: there is no such folder, it contains no checkpoint, or a file is missing.
        ValueError: something in it was truncated, changed, added, or replaced by a link, a pipe or a folder.
    """
    folder = whole_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; expected a checkpoint that save_checkpoint wrote.")
    if not os.path.lexists(folder / METADATA):
        raise FileNotFoundError(f"{folder} is not a checkpoint: it has no {METADATA}, which save_checkpoint writes.")
    _check_plain(folder / METADATA)
    check_saved(folder, [METADATA])
    metadata = read_json(folder, METADATA)
    _check_metadata(folder / METADATA, metadata)
    files = metadata["files"]
    added = sorted(set(_files(folder)) - files.keys())
    if added:
        raise ValueError(f"{folder / added[0]} is not part of this checkpoint: {METADATA} does not list it. {WAY_OUT}")
    for name, expected in files.items():
        path = folder / name
        if not os.path.lexists(path):
            raise FileNotFoundError(f"{folder} lacks {name}, which was saved there. {WAY_OUT}")
        _check_plain(path)
        size = check_regular(path).st_size
        if size != expected["size"]:
            raise ValueError(f"{path} has {size:,} bytes; {expected['size']:,} were saved. {WAY_OUT}")
        if sha256_of(path) != expected["sha256"]:
            raise ValueError(
                f"{path} differs from the saved file: its sha256 is another. It is corrupt or changed. {WAY_OUT}"
            )
    return metadata


def newest_checkpoint(folder: str | os.PathLike) -> Path | None:
    """The complete checkpoint of the highest step in a folder; None if there is none. Incomplete ones are skipped.

    Every file of it is read and checked.
    """
    folder = Path(folder)
    found: dict[int, Path] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        # The second form is left by a process that was killed while it replaced a checkpoint: `whole_folder`.
        name = re.fullmatch(r"(step_(\d{4,}))|\.(step_(\d{4,}))\.\w{8}\.tmp", path.name)
        if name:
            found[int(name[2] or name[4])] = folder / (name[1] or name[3])
    for _, path in sorted(found.items(), reverse=True):
        try:
            read_metadata(path)
        except (OSError, ValueError):
            continue
        return path
    return None


def kept_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics for metadata.json: `plain` values, without arrays.

    Raises TypeError for values that are neither numbers nor text, and ValueError for more than MAX_METRICS bytes.
    """
    found = plain(metrics)
    sizes = {name: len(json.dumps(value, allow_nan=False)) for name, value in found.items()}
    if sum(sizes.values()) > MAX_METRICS:
        largest = max(sizes, key=sizes.get)
        size = sum(sizes.values())
        raise ValueError(
            f"The metrics take {size:,} bytes, most of them for {largest!r}; expected at most {MAX_METRICS:,}."
        )
    return found


def plain(value: Any, where: str = "metrics") -> Any:
    """A metric for JSON: numbers of NumPy and any framework become Python's, NaN and inf become null.

    Arrays in a dictionary are left out. Raises TypeError for anything else, with its name.
    """
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"{where} has the key {wrong[0]!r}; expected the name of a metric.")
        return {key: plain(each, f"{where}[{key!r}]") for key, each in value.items() if not getattr(each, "ndim", 0)}
    if isinstance(value, list | tuple):
        return [plain(each, where) for each in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # a scalar of NumPy, torch, MLX or JAX
        return plain(value.tolist(), where)
    raise TypeError(f"{where} is of type {type(value).__name__}; expected a number or text.")


def _check_metadata(path: Path, metadata: dict[str, Any]) -> None:
    kinds = {"step": int, "weight_version": int, "timestamp": int | float, "metrics": dict, "files": dict}
    kinds |= {"backend": str, "optimizer": str}
    if "current_step" in metadata:  # older checkpoints lack it
        kinds["current_step"] = int
    for key, kind in kinds.items():
        if key not in metadata:
            raise ValueError(f"{path} lacks {key!r}; it is not the metadata of a training backend's checkpoint.")
        value = metadata[key]
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
            raise ValueError(f"{path} has {key!r}: {value!r}, which save_checkpoint never writes. {WAY_OUT}")
    for name, entry in metadata["files"].items():
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        known = isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)
        if not (inside and known):
            raise ValueError(f"{path} lists {name!r} as {entry!r}, which save_checkpoint never writes. {WAY_OUT}")


def _check_plain(path: Path) -> None:
    if path.is_symlink():
        raise ValueError(f"{path} is a link; expected the saved file. {WAY_OUT}")
    check_regular(path)


def _files(folder: Path) -> list[str]:
    """The files of a checkpoint, without metadata.json and the kit's own lists; links to folders count."""
    names = []
    for path in sorted(folder.rglob("*")):
        is_folder = path.is_dir() and not path.is_symlink()
        name = path.relative_to(folder).as_posix()
        if not is_folder and path.name not in (MANIFEST, *IGNORED) and name != METADATA:
            names.append(name)
    return names
