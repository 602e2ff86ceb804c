"""A process that renders a chat template, bounded in memory and time by the operating system."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlx_grpo_kit.qwen3 import template_renderer

SECONDS = 10.0
"""Processor time that rendering a chat may take, in seconds."""

MEMORY = 512 * 2**20
"""Memory that the process may take in bytes, including Python and Jinja."""

LARGEST = 2**22
"""The maximum number of characters in a rendered chat."""

ENFORCED = sys.platform == "linux"
"""True if the system enforces memory limits. macOS does not: there this file monitors the process."""


class RendererProcess:
    """A `Renderer` in a separate process, which is reused for the next chat and ends with this object.

    A process that exceeds a limit is killed, and the next chat gets another.
    """

    def __init__(self, source: str):
        self._source = source
        self._process: subprocess.Popen | None = None

    def reply(self, values: Mapping[str, Any], needed: Sequence[str] = ()) -> dict[str, Any]:
        """Return the same as `Renderer.reply`; errors may also be "time", "memory", "size" and "ended".

        Raises OSError if no process can be started.
        """
        request = json.dumps({"values": values, "needed": needed, "seconds": SECONDS})
        process = self._running()
        try:
            line = _ask(process, request)
        except BaseException:
            self._end()  # the next request would get this reply
            raise
        if (reply := _parsed(line)) is None:
            return {"error": "time" if self._end() == -signal.SIGPROF else "ended"}
        if reply.get("error") == "memory":
            self._end()
        return reply

    def _running(self) -> subprocess.Popen:
        if self._process is None or self._process.poll() is not None or self._begun_by != os.getpid():
            path = Path(template_renderer.__file__)
            self._process = subprocess.Popen(
                [sys.executable, "-P", path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._begun_by = os.getpid()  # a fork inherits the pipes, and needs its own process
            self._finalizer = weakref.finalize(self, _end, self._process, self._begun_by)
            begin = {"source": self._source, "memory": MEMORY, "largest": LARGEST}
            self._process.stdin.write(f"{json.dumps(begin)}\n".encode())
        return self._process

    def _end(self) -> int | None:
        """End the process; returns its exit status, which is negative if a signal ended it."""
        self._process = None
        return self._finalizer()


def _end(process: subprocess.Popen, begun_by: int) -> int | None:
    if os.getpid() != begun_by:
        return None
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # data that was not written yet
            pipe.close()
    return process.wait()


def _ask(process: subprocess.Popen, request: str) -> bytes:
    """The line that answers a request, or a part of it if the process ends. A "memory" reply if it takes too much."""
    with suppress(BrokenPipeError):
        process.stdin.write(f"{request}\n".encode())
        process.stdin.flush()
    reply, output = bytearray(), process.stdout.fileno()
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    while not reply.endswith(b"\n") and len(reply) <= 12 * LARGEST + 1000:  # twelve: an emoji in JSON
        if not waiting.poll(100):
            if not ENFORCED and _memory_of(process.pid) > MEMORY:
                return b'{"error": "memory"}\n'
        elif part := os.read(output, 2**20):
            reply += part
        else:
            break
    return bytes(reply)


def _memory_of(process_id: int) -> int:
    """Bytes that a process has in memory; 0 if it is gone."""
    found = subprocess.run(["ps", "-o", "rss=", "-p", str(process_id)], capture_output=True, text=True)
    return 1024 * int(found.stdout.strip() or 0)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A reply; None for anything else, such as a part of one."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_reply = isinstance(reply, dict) and any(isinstance(reply.get(key), str) for key in ("text", "error"))
    return reply if is_reply else None
