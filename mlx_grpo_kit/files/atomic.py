"""Folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_folder(target: str | os.PathLike, marker: str) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` once everything in it is on disk.

    An exception or a crash before that leaves `target` as it was. Only an empty folder, or one with a file called
    `marker` in it, which says that it is of the same kind, is ever replaced: what the old one held is then gone.

    Raises FileExistsError when `target` is a file or another kind of folder.
    """
    target = Path(target).resolve()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; expected a folder to write, or a free name.")
    if target.exists() and any(target.iterdir()) and not (target / marker).exists():
        raise FileExistsError(
            f"{target} has files in it but no {marker}. It would be replaced as a whole, so only a folder that was "
            "written like this before is. Give a free name."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(target)
    # Beside the target, so that everything lies on one disk, where a folder is moved in one go.
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    new, old = scratch / "new", scratch / "old"
    new.mkdir()
    lock = os.open(scratch, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # ends with this process, however that ends
    try:
        yield new
        for path in [*new.rglob("*"), new]:
            _flush(path)
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    finally:
        os.close(lock)
        shutil.rmtree(scratch, ignore_errors=True)
    _flush(target.parent)


def whole_folder(target: str | os.PathLike) -> Path:
    """Where to read what was written to `target`: there, as a rule.

    A process that was killed between the two renames at the end of `replaced_folder` has left nothing there. Then it
    is the new folder, which was whole by that time.
    """
    target = Path(target)
    if not target.exists():
        for scratch in _scratch_folders(target):
            if (scratch / "old").exists() and (scratch / "new").exists():
                return scratch / "new"
    return target


def _clear_leftovers(target: Path) -> None:
    """Finish what a killed process left at `whole_folder`'s one moment, and delete what others left unfinished."""
    unfinished = whole_folder(target)
    for scratch in _scratch_folders(target):
        if _is_in_use(scratch):
            continue
        if unfinished.parent == scratch:
            unfinished.rename(target)
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch_folders(target: Path) -> list[Path]:
    # Eight characters are mkdtemp's: with a star, those of "best.old" would count as those of "best".
    return sorted(target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"))


def _is_in_use(scratch: Path) -> bool:
    descriptor = os.open(scratch, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _flush(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
