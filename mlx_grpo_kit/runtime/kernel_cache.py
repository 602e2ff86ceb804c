"""The folder of the functions that MLX compiles on Linux. Only this user can write to it.

`mx.compile` has g++ make a shared library of every fused function. MLX looks for it, and puts it, in `mlx/VERSION/cpu`
under the folder for temporary files, whenever a function is needed that this process has not loaded yet. In a /tmp for
all, that belongs to the user who came first: everybody else fails to compile, and runs what that user has left there.

The folder for temporary files is C++'s: TMPDIR, TMP, TEMP, TEMPDIR, the first that is set, else /tmp. Python does not
know the last of them, so where the first three are not set, TEMPDIR gives a folder to MLX and to nobody else. Where one
is, and its folder is this user's alone, nothing has to be done. Otherwise TMPDIR is set, but only for C and C++:
`os.environ` and `tempfile` stay as they are. Programs that are started without an environment of their own get it too.
"""

import os
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

UNKNOWN_USER = 65534
"""Whom files belong to that a container's users do not include: as a rule, the machine's root."""

SECONDS_TO_WRITE = 10
"""A compiled function has some 16 kB, which the linker writes within milliseconds."""


def use_private_folder() -> tuple[Path | None, str]:
    """Have MLX keep its compiled functions where only this user can write; -> (folder, one sentence why).

    The folder is None where there is no such place, or, on other systems than Linux, no need for one.
    """
    if sys.platform != "linux":
        return None, "only Linux needs it: elsewhere temporary files are the user's own, or nothing is compiled"
    chosen = next((name for name in ("TMPDIR", "TMP", "TEMP") if name in os.environ), None)
    if chosen:
        try:
            folder = _check_private(Path(os.environ[chosen]))
            _remove_cut_off(folder)
            return folder, f"{chosen} names it, and it is this user's alone"
        except OSError:
            pass
    try:
        folder = _cache_folder()
        _remove_cut_off(folder)
    except OSError as error:
        return None, str(error)
    os.putenv("TMPDIR" if chosen else "TEMPDIR", str(folder))
    return folder, f"{chosen} names a folder that is not this user's alone" if chosen else "the user's cache"


def _cache_folder() -> Path:
    """The kit's own folder in the user's cache, made if it is not there; OSError where it cannot be used."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")
    if not base.is_absolute():
        raise OSError(f"there is no home folder and no XDG_CACHE_HOME ({base})")
    kit = base / "mlx_grpo_kit"
    base.mkdir(parents=True, exist_ok=True)
    kit.mkdir(mode=0o700, exist_ok=True)
    _check_private(kit)
    # A home may be shared by machines of several kinds.
    folder = kit / f"kernels-{os.uname().machine}-{os.confstr('CS_GNU_LIBC_VERSION') or ''}".replace(" ", "-")
    folder.mkdir(mode=0o700, exist_ok=True)
    return _check_private(folder)


def _check_private(folder: Path) -> Path:
    """`folder`, if only this user can write to it or put another in its place; OSError says what is wrong."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is no folder of its own")
    if found.st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to another user")
    if found.st_mode & 0o077:
        raise OSError(f"{folder} is open to other users")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"{folder} cannot be written to")
    for parent in folder.resolve().parents:
        above = os.stat(parent)
        if above.st_uid not in (0, os.geteuid(), UNKNOWN_USER):
            raise OSError(f"{parent}, above {folder}, belongs to another user")
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            raise OSError(f"everybody can write to {parent}, above {folder}")
    return folder


def _remove_cut_off(folder: Path) -> None:
    """Delete libraries that a kill or a full disk left half-written: MLX would try to load them for ever after."""
    for library in folder.glob("mlx/*/cpu/*.so"):
        with suppress(OSError):  # another process may have renamed this file since it was listed
            if _is_cut_off(library):
                library.unlink()


def _is_cut_off(library: Path) -> bool:
    found = library.stat()
    with library.open("rb") as file:
        header = file.read(64)
    # The table of sections comes last in an ELF file. Its place, the size of an entry, and their number:
    is_elf = len(header) == 64 and header[:5] == b"\x7fELF\x02"
    start, size, number = struct.unpack_from("<40xQ10xHH", header) if is_elf else (0, 0, 0)
    whole = is_elf and 0 < start + size * number <= found.st_size
    # Another process may still be writing a younger file.
    return not whole and time.time() - found.st_mtime > SECONDS_TO_WRITE
