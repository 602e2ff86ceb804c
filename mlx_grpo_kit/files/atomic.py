"""Folders and files that appear complete or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mlx_grpo_kit.files.manifest import MANIFEST, check_replaceable, remove_folder, write_manifest

LOCK = ".mlx_grpo_kit.lock"  # an empty file that stays: without it, two processes could each lock one of their own
LOCK_SECONDS = 10


@contextmanager
def replaced_folder(target: str | os.PathLike) -> Iterator[Path]:
    """Yield a new folder to write into, which replaces `target` once everything in it is listed and on disk.

    An exception or a crash before that leaves `target` unchanged. Only a folder that is empty or contains only the
    kit's files is ever replaced. If several writers have the same target, the last one to finish wins.

    Raises ValueError for a name that is not UTF-8, FileExistsError if `target` is a file or contains anything that the
    kit did not write, and OSError with the name of `target` if it cannot be written.
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
                if old.exists():  # another writer has put its folder there: replace that one next
                    remove_folder(old)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            raise
    _flush(target.parent)


def _check_target(target: Path) -> None:
    """Call `check_replaceable`, and again if another writer replaces the folder during the check."""
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
    """Move `target` to `old` and `new` to `target`; False if another writer interfered."""
    with suppress(FileNotFoundError):  # it does not exist, or another writer has just moved it
        target.rename(old)
        check_replaceable(old)  # check again: something may have been put there since
    try:
        new.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def whole_folder(target: str | os.PathLike) -> Path:
    """The folder that holds what was written to `target`: usually `target` itself.

    If a process was killed between the two renames at the end of `replaced_folder`, there is nothing at `target`. Then
    the result is the new folder, which was already complete.
    """
    target = Path(target)
    _check_name(target)
    if not target.exists():
        for scratch in _scratch_folders(target.parent, target.name):
            if (scratch / "old").exists() and (scratch / "new").exists():
                return scratch / "new"
    return target


def clear_leftovers(parent: Path, name: str = "*") -> None:
    """Finish a replacement that was killed between its two renames, and delete unfinished scratch folders."""
    for scratch in _scratch_folders(parent, name):
        with locked(scratch) as is_free:
            if is_free:
                target = parent / scratch.name[1 : -len(".12345678.tmp")]
                if whole_folder(target).parent == scratch:
                    (scratch / "new").rename(target)
                _discard(scratch)


def is_scratch(folder: Path) -> bool:
    """True for a scratch folder of a killed or of a running writer, which look alike."""
    if not folder.name.endswith(".tmp") or folder.is_symlink() or not folder.is_dir():
        return False
    try:
        return (folder / MANIFEST).is_file() or not any(folder.iterdir())
    except FileNotFoundError:  # its writer has just finished
        return False


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, and yield True on success. The lock of a killed process is released too."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = os.path.samestat(os.fstat(descriptor), os.stat(folder))  # False if it was deleted in the meantime
    except (BlockingIOError, FileNotFoundError):
        is_free = False
    try:
        yield is_free
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write_file(file: Path, content: bytes) -> None:
    """Write a file that appears complete or not at all. Raises OSError with its name."""
    new = file.with_name(f".{file.name}.new")
    with naming(file):
        try:
            new.unlink(missing_ok=True)  # a killed process's file, or a link, which is not followed
            with new.open("xb") as opened:
                opened.write(content)
            _flush(new)
            new.replace(file)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        _flush(file.parent)


def free_name(folder: Path, stem: str, suffix: str = "") -> Path:
    """The first name in `folder` that nothing has: stem + suffix, then stem2 + suffix, stem3 + suffix, ..."""
    names = (folder / f"{stem}{number}{suffix}" for number in ("", *range(2, 1000)))
    return next(name for name in names if not os.path.lexists(name))


def put_aside(file: Path, content: bytes) -> Path:
    """Write the content of a damaged file next to it, as file.damaged or the first free name after that."""
    aside = free_name(file.parent, f"{file.name}.damaged")
    write_file(aside, content)
    return aside


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """A context that one process or thread at a time enters per folder: read a file, change it, write it.

    If the folder or its disk has no locks, or another holder does not end within LOCK_SECONDS, it is entered all the
    same. Do not nest it.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            # Not the folder itself: NFS, as of many home directories, locks only what is open for writing.
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, lock)
            end = time.monotonic() + LOCK_SECONDS
            while time.monotonic() < end:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
        yield


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to an OSError without one, such as that of a full disk.

    The name of a temporary file is replaced by it too.
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
    """Yield a scratch folder of this process next to `target`: on the same disk, a move is atomic."""
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        with locked(scratch) as is_free:
            if is_free:  # otherwise another writer has treated it as a leftover
                (scratch / MANIFEST).touch()  # marks it as the kit's
                try:
                    yield scratch
                finally:
                    _discard(scratch)
                return


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{str(path)!r} is not UTF-8, and MLX cannot open other names. Choose another folder."
        ) from None


def _discard(scratch: Path) -> None:
    """Delete a scratch folder, and an old folder in it only if it contains only the kit's files."""
    with suppress(OSError):  # if it cannot be deleted, the next writer finds it by its name
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
