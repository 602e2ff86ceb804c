"""Limits for a process that runs a stranger's answer.

On Linux the kernel enforces them, where it can: no other program, no child process, no network, no signal to another
process (seccomp), files only where they are allowed (Landlock), bounded memory and time. Everywhere an audit hook of
Python refuses the same acts, which stops ordinary code and not an attacker who looks for a way around it. This is not a
sandbox against experts: compiled code in the process may find a hole. Grade on a machine whose loss you could bear.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

FORBIDDEN_EVENTS = (
    "socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
    "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "pty.spawn",
)  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILE_LIMIT = 64 * 2**20  # bytes of one file that it may write, and so of its results


def limit(seconds: float, memory: int) -> None:
    """Bound the processor's time, the memory beyond what is used now, the size of files, and forbid core dumps."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _lower(resource.RLIMIT_CPU, int(used + seconds) + 1, int(used + seconds) + 3)
    _lower(resource.RLIMIT_FSIZE, FILE_LIMIT)
    _lower(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        data = int(status.partition("VmData:")[2].split()[0]) * 1024
        _lower(resource.RLIMIT_DATA, data + memory)


def _lower(name: int, value: int, highest: int | None = None) -> None:
    _, most = resource.getrlimit(name)
    both = [value, value if highest is None else highest]
    resource.setrlimit(name, tuple(each if most == resource.RLIM_INFINITY else min(each, most) for each in both))


def confine(folder: Path, secret: Sequence[Path]) -> list[str]:
    """Confine this process for the rest of its life; return what the kernel could not enforce, in words.

    Args:
        folder: the only folder that it may write to.
        secret: files that it may not read.
    """
    missing = []
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which both of the following need root
        if not _landlock(libc, folder, secret):
            missing.append("which files an answer reads and writes (Landlock)")
        if not _seccomp(libc):
            missing.append("that an answer starts no process and uses no network (seccomp)")
    else:
        missing.append("files, processes, network and memory, which only Linux limits")
    _audit(folder, secret)
    return missing


def _audit(folder: Path, secret: Sequence[Path]) -> None:
    inside, hidden = os.path.realpath(folder), {os.path.realpath(path) for path in secret}
    names = {Path(path).parent for path in hidden}

    def hook(event: str, arguments: tuple) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            writes = isinstance(arguments[2], int) and arguments[2] & WRITES
            if writes and not path.startswith(inside + os.sep) and path != os.devnull:
                raise PermissionError(f"an answer may not write {path}")
            if path in hidden or (Path(path).name.startswith("exercises.") and Path(path).parent.parent in names):
                raise PermissionError(f"an answer may not read {path}")
        elif event.startswith(FORBIDDEN_EVENTS):
            path = os.path.realpath(os.fsdecode(arguments[0])) if arguments and isinstance(arguments[0], str) else ""
            if not path.startswith(inside + os.sep):
                raise PermissionError(f"an answer may not do this: {event}")

    sys.addaudithook(hook)


def _landlock(libc: ctypes.CDLL, folder: Path, secret: Sequence[Path]) -> bool:
    """Allow files below `folder`, and reading where Python and its packages are, except for `secret`."""
    create, add, restrict = 444, 445, 446  # the numbers of the system calls on every architecture
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return False
    everything = (1 << (13 + (version >= 2) + (version >= 3))) - 1
    read, read_file = 1 | 4 | 8, 1 | 4  # execute (libraries), read files, list folders
    ruleset = libc.syscall(create, ctypes.byref(ctypes.c_uint64(everything)), 8, 0)
    if ruleset < 0:
        return False

    def allow(path: Path, rights: int) -> None:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, opened))
        libc.syscall(add, ruleset, 1, rule, 0)
        os.close(opened)

    for path in _parts(_readable(), [each.resolve() for each in secret]):
        allow(path, read if path.is_dir() else read_file)
    allow(Path(os.devnull), 2 | 4)
    allow(folder, everything)
    done = libc.syscall(restrict, ruleset, 0) == 0
    os.close(ruleset)
    return done


def _readable() -> list[Path]:
    paths = [
        *sysconfig.get_paths().values(),
        sys.prefix,
        sys.base_prefix,
        *Path("/").glob("lib*"),
        "/usr",
        "/etc/ld.so.cache",
    ]
    paths += ["/proc", "/sys/devices/system/cpu", "/dev/urandom", "/dev/shm", Path(__file__).parents[2]]
    paths += [path for path in sys.path if "site-packages" in path or "dist-packages" in path]
    paths += filter(None, [os.environ.get("MLX_GRPO_KIT_MODELS"), os.environ.get("MLX_GRPO_KIT_EXERCISES")])
    return [path for each in paths if (path := Path(each).resolve()).exists() and path != Path("/")]


def _parts(paths: Iterable[Path], secret: Sequence[Path]) -> set[Path]:
    """`paths`, with each folder that contains something secret replaced by its other parts."""
    found: set[Path] = set()
    for path in paths:
        if path in secret:
            continue
        if any(each.is_relative_to(path) for each in secret):
            found |= _parts([child for child in path.iterdir() if not child.is_symlink()], secret)
        else:
            found.add(path)
    return found


# Numbers of system calls: execve, execveat, fork, vfork, kill, tkill, ptrace, process_vm_writev, socket, socketpair.
DENIED = {
    "x86_64": (0xC000003E, 56, (59, 322, 57, 58, 62, 200, 101, 311, 41, 53)),
    "aarch64": (0xC00000B7, 220, (221, 281, 129, 130, 117, 271, 198, 199)),
}
CLONE3, CLONE_THREAD, EPERM, ENOSYS = 435, 0x10000, 1, 38


def _seccomp(libc: ctypes.CDLL) -> bool:
    """Refuse the system calls of DENIED, and `clone` unless it makes a thread."""
    if platform.machine() not in DENIED:
        return False
    architecture, clone, numbers = DENIED[platform.machine()]
    load, equal, any_bit, done = 0x20, 0x15, 0x45, 0x06  # instructions of a classic BPF filter
    allowed, refused, unknown = 0x7FFF0000, 0x00050000 | EPERM, 0x00050000 | ENOSYS
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (done, 0, 0, refused), (load, 0, 0, 0)]
    program += [(0x35, 0, 1, 0x40000000), (done, 0, 0, refused)]  # the second set of numbers of x86_64
    for number in numbers:
        program += [(equal, 0, 1, number), (done, 0, 0, refused)]
    program += [(equal, 0, 1, CLONE3), (done, 0, 0, unknown)]  # then the C library calls clone, whose flags can be seen
    program += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, CLONE_THREAD), (done, 0, 0, refused)]
    program += [(done, 0, 0, allowed)]
    code = b"".join(struct.pack("=HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code)
    head = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    return libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0) == 0
