"""What waits to be computed: operations of MLX, and a small training run that lets them wait."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mlx_grpo_kit.autograd import graph_text
from mlx_grpo_kit.runtime import mx


def operations_waiting(*arrays: mx.array) -> int:
    """How many operations `arrays` still wait for."""
    return graph_text(*arrays).count("[label =")


@dataclass
class WaitingRun:
    """What happened in each step of a run.

    Attributes:
        waiting: operations that wait for the parameters behind the step, before an evaluation
        writing: milliseconds in which the step was written down
        computing: milliseconds in which MLX computed, 0 where it was not asked to
        memory: MB of arrays that MLX held at the same time, at most
    """

    waiting: list[int] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    memory: float = 0.0


def run_evaluating_every(every: int, steps: int = 40, size: int = 128) -> WaitingRun:
    """Train a layer of `size` x `size` numbers for `steps` steps, with an evaluation after each `every` of them."""
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
