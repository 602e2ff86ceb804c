"""A contest: every contestant works in a fresh process of its own, and the contestants take turns.

What one contestant leaves behind (threads, garbage, settings of a library) cannot slow another one down, and whatever
else the machine does falls on all of them alike. A contestant is made in its process; then each call of `turn()` does
the work once, and `evidence()` shows afterwards that it was the same work.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import pickle
import resource
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol
from unittest.mock import patch


class Worker(Protocol):
    """What a contestant is while it works."""

    def turn(self) -> float | None:
        """Do the work once; returns its seconds if it keeps the time itself."""

    def evidence(self) -> Any:
        """Anything that can be pickled and shows what the turns did."""


@dataclass(frozen=True)
class Contestant:
    """Who takes part.

    Attributes:
        make: a class or function of a module that makes the worker.
        options: its keyword arguments. They have to be picklable.
        first: the modules that its process imports before all others.
        environment: variables of its process.
    """

    make: Callable[..., Worker]
    options: Mapping[str, Any] = field(default_factory=dict)
    first: Sequence[str] = ("mlx_grpo_kit.runtime.blas",)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What a contestant did.

    Attributes:
        seconds: of each turn, without those that warm up.
        memory: MiB of RAM that its process held at most.
        libraries: MiB of RAM that the imported libraries held before the contestant was made.
        evidence: what the worker returned as evidence, after every process that it had.
    """

    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0
    libraries: float = 0.0
    evidence: list[Any] = field(default_factory=list)

    def row(self, name: str, target: float | None) -> dict[str, Any]:
        """A line of the table. The spread is the distance between the quartiles as a share of the median."""
        middle = median(self.seconds)
        low, _, high = quantiles(self.seconds, method="inclusive") if len(self.seconds) > 1 else (middle,) * 3
        numbers = {"best": min(self.seconds), "median": middle, "spread": (high - low) / middle}
        return {"name": name, "target": target, "memory": self.memory, "libraries": self.libraries, **numbers}


def contest(
    contestants: Mapping[str, Contestant], *, rounds: int, warmup_rounds: int = 2, libraries: Sequence[str] = ()
) -> dict[str, Result]:
    """Start a process for each contestant and let them take turns.

    Args:
        rounds: the turns of each contestant that count.
        warmup_rounds: turns before those, in which compilers, caches and pools of threads start.
        libraries: modules that every process imports, so that all of them carry the same.
    """
    seats = {name: _Seat(each, libraries) for name, each in contestants.items()}
    results = {name: Result() for name in contestants}
    try:
        for seat in seats.values():  # only here do they work at the same time
            seat.receive()
        for number in range(warmup_rounds + rounds):
            for name, seat in seats.items():
                seconds = seat.turn()
                if number >= warmup_rounds:
                    results[name].seconds.append(seconds)
        for name, seat in seats.items():
            seat.finish(results[name])
    finally:
        for seat in seats.values():
            seat.end()
    return results


def contest_apart(
    contestants: Mapping[str, Contestant], *, rounds: int, warmup_rounds: int = 0, libraries: Sequence[str] = ()
) -> dict[str, Result]:
    """As `contest`, for what is too large or too long: a new process for every turn that counts, one at a time.

    Each round also has a number that makes its random numbers: the contestants get it as the option `seed`.
    """
    results = {name: Result() for name in contestants}
    for seed in range(rounds):
        for name, each in contestants.items():
            seeded = Contestant(each.make, {**each.options, "seed": seed}, each.first, each.environment)
            found = contest({name: seeded}, rounds=1, warmup_rounds=warmup_rounds, libraries=libraries)[name]
            result = results[name]
            result.seconds += found.seconds
            result.evidence += found.evidence
            result.memory = max(result.memory, found.memory)
            result.libraries = found.libraries
    return results


def peak_memory() -> float:
    """MiB of RAM that this process has held at most."""
    try:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    except OSError:  # macOS. (On Linux this number begins with the parent's.)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class _Seat:
    """The parent's end of a contestant's process."""

    def __init__(self, contestant: Contestant, libraries: Sequence[str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        work = pickle.dumps((contestant.make, dict(contestant.options)))
        self.process = spawn.Process(target=_work, args=(theirs, [*contestant.first, *libraries], work), daemon=True)
        with patch.dict(os.environ, contestant.environment):
            self.process.start()
        theirs.close()

    def receive(self) -> Any:
        try:
            failure, value = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"a contestant's process ended with {self.process.exitcode}") from None
        if failure:
            raise RuntimeError(f"a contestant failed:\n{failure}")
        return value

    def turn(self) -> float:
        self.pipe.send("turn")
        return self.receive()

    def finish(self, result: Result) -> None:
        self.pipe.send("finish")
        result.libraries, result.memory, evidence = self.receive()
        result.evidence.append(evidence)

    def end(self) -> None:
        self.pipe.close()  # the process then reads the end of the pipe
        self.process.join(10)
        self.process.kill()


def _work(pipe: Connection, modules: Sequence[str], work: bytes) -> None:
    """A contestant's process: import the libraries, make the worker, and do what the parent says."""
    try:
        for module in modules:
            importlib.import_module(module)
        make, options = pickle.loads(work)
        libraries = peak_memory()
        worker = make(**options)
        pipe.send((None, None))
        while (command := pipe.recv()) == "turn":
            pipe.send((None, timed(worker)))
        assert command == "finish"
        memory = peak_memory()
        pipe.send((None, (libraries, memory, worker.evidence())))
        pipe.recv()
    except EOFError:
        pass  # the parent needs no more
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        raise


def timed(worker: Worker) -> float:
    """The seconds of a turn."""
    gc.collect()
    started = time.perf_counter()
    own = worker.turn()
    elapsed = time.perf_counter() - started
    return elapsed if own is None else own
