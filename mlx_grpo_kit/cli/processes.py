"""`train --processes N`: the same command N times on this machine, and a parent that watches over them.

The parent does no work of its own. It passes signals on, and when one process ends before its time it ends the others
within seconds and says which one it was.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

LOST = 75
"""Exit status of a process that ended because another one did (EX_TEMPFAIL)."""

SECONDS_TO_END = 5.0
"""How long the others have after one process has ended before its time."""


PER_CORE = 4
"""Processes that are started for each core at most: a process takes a core, and more of them only wait."""

PREFIX = "mlx_grpo_kit-"
"""The beginning of the name of the temporary folder that holds the ring's list of hosts."""


class ProcessDiedError(RuntimeError):
    """One of the processes ended before its time; the message names it."""


def run_processes(arguments: Sequence[str], count: int) -> int:
    """Run the kit's command line in `count` processes that make up one world; returns the first one's exit status.

    The first has this process's output, the others none; all have its standard error.

    Raises ValueError, with nothing started, for more processes than PER_CORE allows, and ProcessDiedError for one that
    was killed, or that failed where the others did not.
    """
    cores = os.cpu_count() or 1
    if count > PER_CORE * cores:
        raise ValueError(
            f"--processes is {count}, and each takes a core, of which this machine has {cores}; expected at most "
            f"{PER_CORE * cores}."
        )
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
        processes: list[subprocess.Popen] = []
        relays: list[threading.Thread] = []
        with _passed_on(processes) as signals:
            for rank, environment in enumerate(ring(count, folder)):
                process = subprocess.Popen(
                    [sys.executable, "-m", "mlx_grpo_kit", *arguments],
                    env=environment,
                    stdin=subprocess.PIPE,  # closed by our death, however we die: `end_with_parent`
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    process_group=0,  # a Ctrl-C in the terminal comes to us alone, and from us to each of them once
                )
                processes.append(process)
                relays.append(threading.Thread(target=_relay, args=[process.stderr], daemon=True))
                relays[-1].start()
            _wait(processes)
            for relay in relays:
                relay.join(1.0)
        if signals:
            return processes[0].returncode if processes[0].returncode >= 0 else 128 - processes[0].returncode
        _raise_for_death(processes)
        return processes[0].returncode


def ring(count: int, folder: str | os.PathLike) -> list[dict[str, str]]:
    """The environment of each of `count` processes on this machine that MLX's ring is to connect."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))  # some free port
        hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    file = Path(folder, "hosts.json")
    file.write_text(json.dumps(hosts))
    # A process takes a core: threads of several would wait for each other.
    one_thread = {"OMP_NUM_THREADS": "1"} if count > 1 else {}
    common = one_thread | os.environ | {"MLX_HOSTFILE": str(file)}
    return [{**common, "MLX_RANK": str(rank)} for rank in range(count)]


def end_with_parent() -> None:
    """In a child: SIGTERM, which saves, when the parent is gone and its end of standard input with it.

    A parent that was killed has left its temporary folder behind, so the children remove it.
    """
    hosts = Path(os.environ.get("MLX_HOSTFILE", ""))

    def watch() -> None:
        while os.read(0, 4096):
            pass
        if hosts.parent.name.startswith(PREFIX):  # not a file that mlx.launch or a user wrote
            with suppress(OSError):  # another child was faster
                hosts.unlink()
                hosts.parent.rmdir()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent read it
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _relay(errors: IO[bytes]) -> None:
    """Pass on the standard error of a process, without the lines in which MLX's ring repeats that it broke."""
    for line in errors:
        if not line.startswith(b"[ring] "):
            with suppress(OSError):  # a full disk: the process would wait for ever if nobody read on
                os.write(2, line)


@contextmanager
def _passed_on(processes: list[subprocess.Popen]):
    """While this is open, Ctrl-C and SIGTERM go to the processes; gives the list of those that came."""
    signals: list[int] = []

    def take(number: int, frame: Any) -> None:
        signals.append(number)
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen]) -> None:
    """Until all have ended; those that go on after another has failed are killed, and have the exit status LOST."""
    deadline = None
    while running := [process for process in processes if process.poll() is None]:
        if deadline is None and any(process.returncode for process in processes):
            deadline = time.monotonic() + SECONDS_TO_END
        if deadline is not None and time.monotonic() > deadline:
            for process in running:
                process.kill()
                process.wait()
                process.returncode = LOST
        time.sleep(0.05)


def _raise_for_death(processes: Sequence[subprocess.Popen]) -> None:
    died = {rank: each.returncode for rank, each in enumerate(processes) if each.returncode not in (0, LOST)}
    killed = [rank for rank, status in died.items() if status < 0]
    if not died and processes[0].returncode == 0:
        return
    if died and not killed and 0 in died:
        return  # it has said why
    rank = (killed or [*died] or [0])[0]
    status = processes[rank].returncode
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    raise ProcessDiedError(
        f"Process {rank} of {len(processes)} (the first is 0; number {processes[rank].pid}) {how}, and the others were "
        "ended."
    )
