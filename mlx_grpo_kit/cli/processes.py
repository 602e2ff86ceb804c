"""`train --processes N`: the same command N times on this machine, and a parent process that supervises them.

The parent only supervises. It passes signals on. If one process ends early, it ends the others within seconds and
reports which one it was.
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
"""The exit status of a process that ended because another one did (EX_TEMPFAIL)."""

SECONDS_TO_END = 5.0
"""Seconds for the others to end after one process has ended early."""


PER_CORE = 4
"""The maximum number of processes per core: a process uses one core, and more of them only wait."""

PREFIX = "mlx_grpo_kit-"
"""The beginning of the name of the temporary folder that holds the ring's list of hosts."""


class ProcessDiedError(RuntimeError):
    """One of the processes ended early; the message names it."""


def run_processes(arguments: Sequence[str], count: int) -> int:
    """Run the kit's command line in `count` processes that form one world; return the exit status of the first.

    The first process inherits this process's output, the others have none; all inherit its standard error.

    Raises ValueError, with nothing started, for more processes than PER_CORE allows, and ProcessDiedError for a process
    that was killed, or that failed when the others did not.
    """
    cores = os.cpu_count() or 1
    if count > PER_CORE * cores:
        raise ValueError(
            f"--processes is {count}, but each uses one core and this machine has {cores}; expected at most "
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
                    stdin=subprocess.PIPE,  # closed when this process dies for any reason: see `end_with_parent`
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    process_group=0,  # so that only this process gets Ctrl-C, and passes it on once
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
    """The environment of each of `count` processes on this machine, for MLX's ring."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))  # any free port
        hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    file = Path(folder, "hosts.json")
    file.write_text(json.dumps(hosts))
    # Each process uses one core: more threads would wait for each other.
    one_thread = {"OMP_NUM_THREADS": "1"} if count > 1 else {}
    common = one_thread | os.environ | {"MLX_HOSTFILE": str(file)}
    return [{**common, "MLX_RANK": str(rank)} for rank in range(count)]


def end_with_parent() -> None:
    """In a child: send SIGTERM, which saves, when the parent is gone and so standard input is closed.

    A killed parent leaves its temporary folder, so the children remove it.
    """
    hosts = Path(os.environ.get("MLX_HOSTFILE", ""))

    def watch() -> None:
        while os.read(0, 4096):
            pass
        if hosts.parent.name.startswith(PREFIX):  # never a file that mlx.launch or a user wrote
            with suppress(OSError):  # another child was faster
                hosts.unlink()
                hosts.parent.rmdir()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent was reading it
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _relay(errors: IO[bytes]) -> None:
    """Pass on the standard error of a process, without the repeated lines of MLX's ring about its failure."""
    for line in errors:
        if not line.startswith(b"[ring] "):
            with suppress(OSError):  # on a full disk, keep reading, or the process would wait forever
                os.write(2, line)


@contextmanager
def _passed_on(processes: list[subprocess.Popen]):
    """In this context, pass Ctrl-C and SIGTERM on to the processes; yield the list of received signals."""
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
    """Wait until all have ended. Kill those that continue after another has failed; their exit status is LOST."""
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
        return  # it has reported the reason
    rank = (killed or [*died] or [0])[0]
    status = processes[rank].returncode
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    raise ProcessDiedError(
        f"Process {rank} of {len(processes)} (the first is 0; number {processes[rank].pid}) {how}, and the others were "
        "ended."
    )
