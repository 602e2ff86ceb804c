"""The manifest of a folder that the kit wrote: its files with their hashes.

    mlx_grpo_kit.json   {"files": {"config.json": "9f2c...", "model/mlx_grpo_kit.json": "07a1...", ...}}

The kit may replace listed files; anything else in the folder belongs to the user, and is never touched. Before a file
is read, its hash is checked. A folder inside may have its own manifest, which the outer one lists in place of its
files. transformers and mlx-lm ignore the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mlx_grpo_kit.files.read import check_regular, read_json

MANIFEST = "mlx_grpo_kit.json"
IGNORED = (".DS_Store",)  # macOS writes this into folders that are opened in Finder


def write_manifest(folder: Path) -> None:
    """Write the manifest of a folder and its subfolders; for a subfolder with a manifest, list only that manifest."""
    files = {name: sha256_of(folder / name) for name in _names(folder)}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=2) + "\n")


def _names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path.name
        elif (path / MANIFEST).exists():
            yield f"{path.name}/{MANIFEST}"
        else:
            yield from (f"{path.name}/{name}" for name in _names(path))


def read_manifest(folder: Path) -> dict[str, str] | None:
    """The hash of each file that the kit saved in a folder; None if it has saved nothing there.

    Raises ValueError if the manifest cannot be read.
    """
    if not os.path.lexists(folder / MANIFEST):
        return None
    files = read_json(folder, MANIFEST).get("files")
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise ValueError(f"{folder / MANIFEST} lists no files. It is corrupt; copy the folder again.")
    return files


def check_saved(folder: Path, names: Iterable[str]) -> None:
    """Check that these files of a folder are unchanged since they were saved, or never existed.

    A folder without a manifest, such as a downloaded model, is not checked.

    Raises FileNotFoundError for a missing file, and ValueError for one that was changed or added.
    """
    saved = read_manifest(folder)
    if saved is None:
        return
    way_out = f"Take another copy, or remove {MANIFEST} beside it if the change was meant."
    for name in names:
        exists = os.path.lexists(folder / name)
        if name in saved and not exists:
            raise FileNotFoundError(f"{folder} has lost {name}, which was saved there. {way_out}")
        if exists and name not in saved:
            raise ValueError(f"{folder / name} came after the rest was saved: {MANIFEST} does not list it. {way_out}")
        if exists and sha256_of(folder / name) != saved[name]:
            if _sha256_with_lf(folder / name) == saved[name]:
                raise ValueError(
                    f"{folder / name} has Windows line endings (CRLF), and was saved with LF. git (core.autocrlf) "
                    f"or an editor has converted it, and perhaps other files. Convert it back (dos2unix {name}), or "
                    "take a copy that git does not convert: git clone -c core.autocrlf=false, or a line `* -text` in "
                    ".gitattributes."
                )
            raise ValueError(f"{folder / name} is not what was saved: it is cut off, corrupt or changed. {way_out}")


def foreign(folder: Path) -> Iterator[str]:
    """Yield the names in a folder that the kit did not write. A file that was changed later counts as the kit's."""
    try:
        saved = read_manifest(folder)
    except ValueError:
        saved = None
    return _unlisted(folder, set() if saved is None else {MANIFEST, *saved})


def _unlisted(folder: Path, listed: Collection[str]) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        inside = {name.partition("/")[2] for name in listed if name.startswith(f"{path.name}/")}
        if path.is_symlink() or not path.is_dir():
            if path.is_symlink() or not path.is_file() or path.name not in (*listed, *IGNORED):
                yield path.name
        elif inside:
            names = foreign(path) if MANIFEST in inside else _unlisted(path, inside)
            yield from (f"{path.name}/{name}" for name in names)
        else:
            yield f"{path.name}/"


def check_replaceable(folder: Path) -> None:
    """Raise FileExistsError unless `folder` is a new name, an empty folder, or a folder with only the kit's files."""
    if folder.is_symlink() or not folder.is_dir():
        if os.path.lexists(folder):
            raise FileExistsError(f"{folder} is a file; expected a folder to write, or a new name.")
        return
    others = list(foreign(folder))
    if others:
        shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
        raise FileExistsError(
            f"{folder} contains {shown}, which the kit did not write ({MANIFEST} lists its files), so it is not "
            "replaced. Choose another folder, or move those files away first."
        )


def remove_folder(folder: Path) -> None:
    """Delete a folder with only the kit's files. Raises FileExistsError, and deletes nothing, if it contains others."""
    check_replaceable(folder)
    _delete(folder)


def _delete(folder: Path) -> None:
    # The manifest last, so that after a kill the rest is still the kit's:
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
        if path.is_dir():
            _delete(path)
        else:
            path.unlink()
    folder.rmdir()


def sha256_of(path: Path) -> str:
    """The hash of a file's content. Raises ValueError for anything but a regular file."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_with_lf(path: Path) -> str:
    """The hash that a file would have with the line ending LF in place of each CRLF."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for line in file:
            digest.update(line[:-2] + b"\n" if line.endswith(b"\r\n") else line)
    return digest.hexdigest()
