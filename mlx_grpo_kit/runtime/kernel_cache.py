"""A folder for the functions that MLX compiles on Linux, which only this user can write to.

`mx.compile` calls g++ to make a shared library of every fused function. MLX stores it, and looks for it whenever this
process needs a function for the first time, in `mlx/VERSION/cpu` under the folder for temporary files. In a shared /tmp
that folder belongs to the first user: everyone else fails to compile, and runs the files that the first user left
there.

C++'s folder for temporary files is the first of TMPDIR, TMP, TEMP and TEMPDIR that is set, else /tmp. Python does not
use TEMPDIR, so if the first three are not set, TEMPDIR sets a folder for MLX only. If one of them is set, and its
folder belongs only to this user, nothing needs to be done. Otherwise TMPDIR is set, but only for C and C++:
`os.environ` and `tempfile` do not change. Programs that are started with this process's C environment inherit it.
"""

import os
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

UNKNOWN_USER = 65534
"""The owner of files whose user does not exist in a container: usually the machine's root."""

SECONDS_TO_WRITE = 10
"""A compiled function has some 16 kB, which the linker writes within milliseconds."""


def use_private_folder() -> tuple[Path | None, str]:
    """Make MLX store its compiled functions in a private folder; return (folder, the reason in one sentence).

    The folder is None if there is no such place, or if it is not needed, as on other systems than Linux.
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
    """The kit's folder in the user's cache, created if necessary. Raises OSError if it cannot be used."""
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
    """Return `folder` if only this user can write to it or replace it. Raises OSError, which names the problem."""
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
    """Delete libraries that a kill or a full disk left half-written, or MLX would keep trying to load them."""
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
