"""Waiting operations of MLX, and a small training run that lets them wait."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mlx_grpo_kit.autograd import graph_text
from mlx_grpo_kit.runtime import mx


def operations_waiting(*arrays: mx.array) -> int:
    """The number of operations that `arrays` still wait for."""
    return graph_text(*arrays).count("[label =")


@dataclass
class WaitingRun:
    """Counts and times of each step of a run.

    Attributes:
        waiting: operations that the parameters wait for after the step, before an evaluation
        writing: milliseconds to write the step down
        computing: milliseconds of MLX's computation, 0 if the step was not evaluated
        memory: peak MB of MLX arrays
    """

    waiting: list[int] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    memory: float = 0.0


def run_evaluating_every(every: int, steps: int = 40, size: int = 128) -> WaitingRun:
    """Train a layer of `size` x `size` numbers for `steps` steps, with an evaluation after every `every` steps."""
    keys = mx.random.split(mx.random.key(0), 2)
    x, target = (mx.random.normal((64, size), key=key) for key in keys)
    w = mx.eye(size)
    mx.eval(x, target, w)
    mx.reset_peak_memory()
    before, run = mx.get_active_memory(), WaitingRun()
    for step in range(1, steps + 1):
        start = time.perf_counter()
        w = w - 0.5 * mx.grad(lambda w: (mx.tanh(x @ w) - target).square().mean())(w)
        run.writing.append(1000 * (time.perf_counter() - start))
        run.waiting.append(operations_waiting(w))
        start = time.perf_counter()
        if step % every == 0 or step == steps:
            mx.eval(w)
            run.computing.append(1000 * (time.perf_counter() - start))
        else:
            run.computing.append(0.0)
    run.memory = (mx.get_peak_memory() - before) / 1e6
    return run
