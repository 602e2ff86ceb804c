"""Folders and files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlx_grpo_kit.files.manifest import MANIFEST, check_replaceable, remove_folder, write_manifest


@contextmanager
def replaced_folder(target: str | os.PathLike) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` once everything in it is listed and on disk.

    An exception or a crash before that leaves `target` as it was. Only a folder that is empty or all the kit's is ever
    replaced. If several writers have the same target, the folder of the one that ends last stays.

    Raises ValueError for a name that is not UTF-8, FileExistsError when `target` is a file or has something in it that
    the kit did not write, and OSError with the name of `target` when it cannot be written.
    """
    target = Path(target).resolve()
    _check_name(target)
    _check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(target.parent, target.name)
    with naming(target), _scratch_folder(target) as scratch:
        new, old = scratch / "new", scratch / "old"
        new.mkdir()
        yield new
        write_manifest(new)
        for path in [*new.rglob("*"), new]:
            _flush(path)
        try:
            while not _take_place(new, target, old):
                if old.exists():  # and another writer has put its folder in the place: that one is replaced next
                    remove_folder(old)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            raise
    _flush(target.parent)


def _check_target(target: Path) -> None:
    """`check_replaceable`; once more if another writer replaces the folder while it is looked at."""
    while True:
        before = _identity(target)
        try:
            return check_replaceable(target)
        except (FileExistsError, FileNotFoundError):
            if before is not None and _identity(target) == before:
                raise


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _take_place(new: Path, target: Path, old: Path) -> bool:
    """Move `target` to `old` and `new` to `target`; False where another writer was there in between."""
    with suppress(FileNotFoundError):  # there is none, or another writer has just moved it
        target.rename(old)
        check_replaceable(old)  # again: something may have been put there since
    try:
        new.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def whole_folder(target: str | os.PathLike) -> Path:
    """The folder to read what was written to `target` from: usually `target` itself.

    A process that was killed between the two renames at the end of `replaced_folder` has left nothing there. Then it
    is the new folder, which was whole by that time.
    """
    target = Path(target)
    _check_name(target)
    if not target.exists():
        for scratch in _scratch_folders(target.parent, target.name):
            if (scratch / "old").exists() and (scratch / "new").exists():
                return scratch / "new"
    return target


def clear_leftovers(parent: Path, name: str = "*") -> None:
    """Finish what a killed process left at `whole_folder`'s one moment, and delete what others left unfinished."""
    for scratch in _scratch_folders(parent, name):
        with locked(scratch) as is_free:
            if is_free:
                target = parent / scratch.name[1 : -len(".12345678.tmp")]
                if whole_folder(target).parent == scratch:
                    (scratch / "new").rename(target)
                _discard(scratch)


def is_scratch(folder: Path) -> bool:
    """True for a folder that a killed writer left, or that one at work uses; both look alike."""
    if not folder.name.endswith(".tmp") or folder.is_symlink() or not folder.is_dir():
        return False
    try:
        return (folder / MANIFEST).is_file() or not any(folder.iterdir())
    except FileNotFoundError:  # its writer has just finished
        return False


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Yield True if this process now has the folder for itself until the end. A killed process gives it back too."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = os.path.samestat(os.fstat(descriptor), os.stat(folder))  # else it was deleted in the meantime
    except (BlockingIOError, FileNotFoundError):
        is_free = False
    try:
        yield is_free
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write_file(file: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all. Raises OSError with its name."""
    new = file.with_name(f".{file.name}.new")
    with naming(file):
        try:
            new.unlink(missing_ok=True)  # what a killed process left, or a link, which is not followed
            with new.open("xb") as opened:
                opened.write(content)
            _flush(new)
            new.replace(file)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        _flush(file.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError that names no file, as that of a full disk does, the name of what was to be written.

    One with the name of a file that was only on its way there gets it too.
    """
    try:
        yield
    except OSError as error:
        in_between = error.filename is None or str(error.filename).startswith(str(path.with_name(f".{path.name}.")))
        if error.errno is None or not in_between:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """A folder of this process's own beside `target`: on one disk, a folder is moved in one go."""
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        with locked(scratch) as is_free:
            if is_free:  # else another writer has taken it for a leftover
                (scratch / MANIFEST).touch()  # says whose it is
                try:
                    yield scratch
                finally:
                    _discard(scratch)
                return


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{str(path)!r} is not UTF-8, and MLX opens no other names. Give another folder.") from None


def _discard(scratch: Path) -> None:
    """Delete a scratch folder; an old folder in it only if it is all the kit's."""
    with suppress(OSError):  # what cannot be deleted stays, under a name that the next writer looks for
        shutil.rmtree(scratch / "new", ignore_errors=True)
        if (scratch / "old").exists():
            remove_folder(scratch / "old")
        (scratch / MANIFEST).unlink(missing_ok=True)
        scratch.rmdir()


def _scratch_folders(parent: Path, name: str) -> list[Path]:
    # Eight characters are mkdtemp's: with a star, those of "best.old" would count as those of "best".
    found = parent.glob(f".{'*' if name == '*' else glob.escape(name)}.????????.tmp")
    return sorted(path for path in found if is_scratch(path))


def _flush(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
