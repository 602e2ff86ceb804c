"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_folder(target: str | os.PathLike) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` once everything in it is on disk.

    An exception or a crash before that leaves `target` as it was. Raises FileExistsError when `target` is a file.
    """
    target = Path(target)
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; expected a folder to write, or a free name.")
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
    new.chmod(0o755)  # mkdtemp's 0o700 would lock other users out of the result
    try:
        yield new
        for path in [*new.rglob("*"), new]:
            _flush(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if target.exists():
        old = new.with_suffix(".old")
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
    else:
        new.rename(target)
    _flush(target.parent)


def _flush(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
