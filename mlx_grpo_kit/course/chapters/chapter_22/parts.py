"""The shipped model in five frameworks, and tools to watch the thread of a backend."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlx_grpo_kit.backends.padded_batch import padded_batch
from mlx_grpo_kit.backends.weights import array_of, as_numpy, flat
from mlx_grpo_kit.course.chapters.chapter_22.pictures.timeline import Bar
from mlx_grpo_kit.grpo import GRPOConfig, GRPOLossConfig, GRPOTrainer, draw_batch
from mlx_grpo_kit.grpo.loss_of_logits import grpo_loss_fn
from mlx_grpo_kit.qwen3 import Qwen3Config, qwen3_forward
from mlx_grpo_kit.runtime import mx

PACKAGES = {
    "PyTorch": ("torch",),
    "MLX": ("mlx",),
    "torch.func": ("torch", "torchopt"),
    "JAX": ("jax", "optax", "orbax.checkpoint"),
    "torchax": ("jax", "optax", "torchax"),
}
"""The packages that each backend imports."""


def absent(name: str) -> str:
    """A message that names the missing package of a backend, or of a package; empty if nothing is missing."""
    for package in PACKAGES.get(name, (name,)):
        try:
            found = importlib.util.find_spec(package)
        except (ModuleNotFoundError, ValueError):  # the package around it is missing, or hidden
            found = None
        if found is None:
            return f"skipped: {package} is not installed (pip install 'mlx_grpo_kit[backends]')"
    return ""


@cache
def _checkpoints() -> tempfile.TemporaryDirectory:
    """A folder that is removed when Python ends."""
    return tempfile.TemporaryDirectory(prefix="mlx_grpo_kit-")


def make_backend(name: str, config: Qwen3Config, params: Mapping[str, mx.array], learning_rate: float = 1e-3) -> Any:
    """A backend that trains this model with AdamW and the GRPO loss; its checkpoints go to a temporary folder."""
    folder, loss_fn = Path(tempfile.mkdtemp(dir=_checkpoints().name)), grpo_loss_fn(GRPOLossConfig())
    if name == "MLX":
        import mlx.optimizers as optim

        from mlx_grpo_kit.backends import MLXTrainingBackend

        optimizer = optim.AdamW(learning_rate, weight_decay=0.0, bias_correction=True)
        return MLXTrainingBackend(partial(qwen3_forward, config), dict(params), optimizer, loss_fn, folder)
    if name == "JAX":
        import optax

        from mlx_grpo_kit.backends import JAXTrainingBackend
        from mlx_grpo_kit.grpo.learners.jax_qwen3 import qwen3_forward as forward

        weights = {each: np.array(value) for each, value in params.items()}
        optimizer = optax.adamw(learning_rate, weight_decay=0.0)
        return JAXTrainingBackend(
            partial(forward, config), weights, optimizer, loss_fn, folder, learning_rate=learning_rate
        )
    from mlx_grpo_kit.grpo.learners.torch_qwen3 import Qwen3

    model = Qwen3(config, params)
    if name == "PyTorch":
        import torch

        from mlx_grpo_kit.backends import PyTorchTrainingBackend

        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        return PyTorchTrainingBackend(model, optimizer, loss_fn, folder)
    if name == "torch.func":
        import torchopt

        from mlx_grpo_kit.backends import TorchFuncTrainingBackend

        optimizer = torchopt.adamw(learning_rate, weight_decay=0.0)
        return TorchFuncTrainingBackend.from_model(model, optimizer, loss_fn, folder, learning_rate=learning_rate)
    import optax

    from mlx_grpo_kit.backends import TorchaxTrainingBackend

    optimizer = optax.adamw(learning_rate, weight_decay=0.0)
    return TorchaxTrainingBackend(model, optimizer, loss_fn, folder, learning_rate=learning_rate)


def write_answers(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Any,
    task: Any,
    num_prompts: int,
    group: int,
    seed: int,
) -> list[Any]:
    """The answers of a step, with rewards and advantages, sampled as the kit's trainer samples them."""
    args = GRPOConfig(num_generations=group, per_device_train_batch_size=num_prompts * group, seed=seed)
    trainer = GRPOTrainer(config, params, tokenizer, task, args)
    return draw_batch(trainer.parts, trainer.policy, step=0).records()


def as_batch(framework: str, completions: Sequence[Any]) -> dict[str, Any]:
    """Answers as arrays for a backend, which is given by its name in `PACKAGES`."""
    library = {"MLX": "mlx", "JAX": "jax"}.get(framework, "torch")
    return {name: array_of(library, values) for name, values in padded_batch(completions).items()}


def gradient_of(backend: Any) -> dict[str, np.ndarray]:
    """The gradient that a backend holds between its two operations. No method of the protocol returns it."""
    backend.get_weights().wait()  # wait for earlier operations
    grads = getattr(backend, "_grads", None)
    if grads is None:
        grads = {name: parameter.grad for name, parameter in backend.model.named_parameters()}
    return {name: as_numpy(value) for name, value in flat(grads).items()}


class Mark(NamedTuple):
    """The times of an operation: its submission, its start in the thread, and its end."""

    operation: str
    submitted: float
    start: float
    end: float


@contextmanager
def watched(backend: Any) -> Iterator[list[Mark]]:
    """Record the marks of all operations that are submitted to a backend inside the `with` block."""
    marks: list[Mark] = []
    submit = backend._worker.submit

    def watching(operation: str, function: Callable[[], Any]) -> Any:
        submitted = time.perf_counter()

        def timed() -> Any:
            start = time.perf_counter()
            try:
                return function()
            finally:
                marks.append(Mark(operation, submitted, start, time.perf_counter()))

        return submit(operation, timed)

    backend._worker.submit = watching
    try:
        yield marks
    finally:
        del backend._worker.submit


NAMES = {"forward_backward": "forward and backward", "optim_step": "optimizer step", "get_weights": "weights copied"}


def bars_of(marks: Sequence[Mark], others: Sequence[Bar], began: float) -> list[Bar]:
    """The bars of the backend's thread and of others, in milliseconds after `began`."""
    bars = [Bar("backend's thread", NAMES.get(mark.operation, mark.operation), mark.start, mark.end) for mark in marks]
    return [bar._replace(start=1000 * (bar.start - began), end=1000 * (bar.end - began)) for bar in (*others, *bars)]


def quickest(learn: Callable, batches: Sequence[Any], ahead: int, times: int = 4) -> Any:
    """The fastest of several results of `learn(batches, ahead)`, because other programs use the cores too."""
    return min((learn(batches, ahead) for _ in range(times)), key=lambda found: max(bar.end for bar in found[0]))


def pipeline(schedule: Callable, fetch: float, compute: float, ahead: int, num_steps: int = 8) -> list[Bar]:
    """A loop that fetches batches and a thread that learns from them, if the loop may be `ahead` steps ahead.

    Args:
        schedule: the function of exercise 22.3.
        fetch, compute: milliseconds per batch in the loop and in the thread.
        ahead: before it fetches batch k, the loop waits for step k - 1 - ahead.
    """
    bars, submitted, times, free = [], [], [], 0.0
    for number in range(num_steps):
        waits_for = number - 1 - ahead
        start = max(free, times[waits_for][1]) if waits_for >= 0 else free
        if start > free:
            bars.append(Bar("loop", "waits for a result", free, start))
        free = start + fetch
        bars.append(Bar("loop", "fetches a batch", start, free, str(number + 1)))
        submitted.append(free)
        times = schedule(submitted, [compute] * len(submitted))
        bars.append(Bar("backend's thread", "learns from it", *times[-1], str(number + 1)))
    return bars


def asynchronous(times: Sequence[Sequence[float]]) -> tuple[list[Bar], list[int]]:
    """The bars for a result of `async_times` (exercise 22.9), and the lag of each batch."""
    ends = [each[3] for each in times]
    lags = [number - sum(end <= each[0] + 1e-12 for end in ends) for number, each in enumerate(times)]
    bars = []
    for number, (begins, written, learns, over) in enumerate(times):
        bars.append(Bar("engine", "writes a batch", begins, written, str(number)))
        bars.append(Bar("backend", "learns from it", learns, over, f"{number}, lag {lags[number]}"))
    return bars, lags


SAVER = """
import asyncio, sys
from pathlib import Path
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.backends import MLXTrainingBackend
from mlx_grpo_kit.qwen3 import load_pretrained
import mlx.optimizers as optim
config, params = load_pretrained(TINY)
backend = MLXTrainingBackend(lambda params, ids: ids, params, optim.AdamW(1e-3), lambda *_: 0, Path(sys.argv[1]))

async def save():
    for step in range(1, 10_000):
        await backend.save_checkpoint(step)
        print(step, flush=True)

asyncio.run(save())
"""


def save_until_killed(folder: Path, after: float) -> int:
    """Kill a process that saves step after step, `after` seconds after its first save; return its last printed step."""
    process = subprocess.Popen([sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        time.sleep(after)
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        told = process.stdout.read().split()
        process.wait()
    return int(told[-1]) if told else 1
