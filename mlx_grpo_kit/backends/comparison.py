"""The five backends side by side: one Qwen3, one batch, one optimizer; their agreement, and the cost of each.

for name in NAMES:
    backend = make_backend(name, config, params, grpo_loss_fn(GRPOLossConfig()), folder / name)
    print(measure(backend, batch))
"""

from __future__ import annotations

import ast
import inspect
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlx_grpo_kit import backends
from mlx_grpo_kit.backends.arrays import array_of, framework_of
from mlx_grpo_kit.backends.base import Backend
from mlx_grpo_kit.qwen3 import Qwen3Config, decays, qwen3_forward
from mlx_grpo_kit.runtime import mx

NAMES = {
    "PyTorch": "PyTorchTrainingBackend",
    "MLX": "MLXTrainingBackend",
    "torch.func": "TorchFuncTrainingBackend",
    "JAX": "JAXTrainingBackend",
    "torchax": "TorchaxTrainingBackend",
}
"""The backends by the names used here."""


@dataclass(frozen=True)
class Measurement:
    """The time and memory of one backend for the same work. Seconds depend on the machine and its load.

    Attributes:
        name: the name of the backend's class.
        loss: the loss of the batch, before any step.
        grad_norm: the norm of its gradient.
        first_seconds: for the first gradient and step, including compilation.
        step_seconds: for a later gradient and step, the median.
        save_seconds: for writing one checkpoint to disk.
        load_seconds: for reading, checking and restoring one checkpoint.
        checkpoint_bytes: the size of weights, optimizer's state and metadata.
        lines: lines of code in the backend's file, as `lines_of_code` counts them.
    """

    name: str
    loss: float
    grad_norm: float
    first_seconds: float
    step_seconds: float
    save_seconds: float
    load_seconds: float
    checkpoint_bytes: int
    lines: int


def make_backend(
    name: str,
    config: Qwen3Config,
    params: Mapping[str, Any],
    loss_fn: Callable[..., Any],
    checkpoint_dir: Path,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.01,
) -> Backend:
    """A backend that trains a Qwen3 with AdamW; "input_ids" of its batches are token ids and attention mask, a tuple.

    Args:
        name: one of NAMES.
        config: the configuration of the model.
        params: MLX or NumPy arrays by their names in the kit.
        loss_fn: a loss of logits at every position, such as `grpo_loss_fn`.
        weight_decay: the decay of matrices. Norms and biases do not decay (`mlx_grpo_kit.qwen3.decays`).

    Raises:
        KeyError: the name is unknown.
        ImportError: a package that it needs is not installed.
    """
    numbers = {name: np.array(value) for name, value in params.items()}
    backend = partial(getattr(backends, NAMES[name]), loss_fn=loss_fn, checkpoint_dir=checkpoint_dir)
    if name == "MLX":
        from mlx_grpo_kit.backends.mlx_backend import AdamW

        def apply_fn(params: dict[str, mx.array], input_ids: mx.array, attention_mask: mx.array) -> mx.array:
            return qwen3_forward(config, params, input_ids, attention_mask=attention_mask)

        arrays = {name: mx.array(value) for name, value in numbers.items()}
        optimizer = AdamW(learning_rate, weight_decay=weight_decay, bias_correction=True)
        return backend(apply_fn=apply_fn, params=arrays, optimizer=optimizer)
    if name == "JAX":
        import optax

        from mlx_grpo_kit.grpo.learners import jax_qwen3

        optimizer = optax.adamw(learning_rate, weight_decay=weight_decay, mask=_decaying)
        apply_fn = partial(jax_qwen3.qwen3_forward, config)
        return backend(apply_fn=apply_fn, params=numbers, optimizer=optimizer, learning_rate=learning_rate)

    from mlx_grpo_kit.grpo.learners.torch_qwen3 import Qwen3

    model = Qwen3(config, numbers)
    if name == "PyTorch":
        import torch

        groups = [{"params": [], "weight_decay": decay} for decay in (0.0, weight_decay)]
        for name, parameter in model.named_parameters():
            groups[decays(name)]["params"].append(parameter)
        optimizer = torch.optim.AdamW(groups, learning_rate)
        return backend(model=model, optimizer=optimizer)
    if name == "torch.func":
        import torchopt
        from torchopt.transform import add_decayed_weights, scale, scale_by_adam

        # torchopt.adamw would give the mask a list of tensors without their names.
        decay = add_decayed_weights(weight_decay, mask=_decaying)
        optimizer = torchopt.chain(scale_by_adam(), decay, scale(-learning_rate))
        return backends.TorchFuncTrainingBackend.from_model(
            model, optimizer, loss_fn, checkpoint_dir, learning_rate=learning_rate
        )
    import optax

    optimizer = optax.adamw(learning_rate, weight_decay=weight_decay, mask=_decaying)
    return backend(model=model, optimizer=optimizer, learning_rate=learning_rate)


def _decaying(params: Mapping[str, Any]) -> dict[str, bool]:
    """The mask of optimizers of optax and torchopt: True for each parameter that decays."""
    return {name: decays(name) for name in params}


def as_batch(backend: Backend, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a batch of NumPy arrays, or tuples of them, to the backend's framework."""
    framework = framework_of(next(iter(backend.get_weights().wait().values())))

    def convert(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(convert, value))
        return array_of(framework, np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value

    return {name: convert(value) for name, value in batch.items()}


def gradient_of(backend: Backend) -> dict[str, np.ndarray]:
    """Copies of a backend's gradient between forward_backward and optim_step, as NumPy arrays by parameter."""
    if isinstance(backend, backends.PyTorchTrainingBackend):
        held = {name: each.grad for name, each in backend.model.named_parameters() if each.grad is not None}
    else:
        held = backend._grads or {}
    return {name: np.array(np.asarray(each)) for name, each in held.items()}


def relative_difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """|ours - theirs| / |theirs|, with all arrays as one vector. Raises KeyError if names differ."""
    if ours.keys() != theirs.keys():
        raise KeyError(f"{sorted(ours.keys() ^ theirs.keys())[0]!r} is only on one side.")
    difference = sum(np.square(ours[name].astype(float) - theirs[name]).sum() for name in theirs)
    return float(np.sqrt(difference / sum(np.square(each.astype(float)).sum() for each in theirs.values())))


def measure(backend: Backend, batch: Mapping[str, Any], steps: int = 5) -> Measurement:
    """Train on one batch of NumPy arrays, save and load. The backend is of no further use afterwards.

    Do not call this inside a run of trio.
    """
    batch = as_batch(backend, batch)

    def step() -> tuple[dict[str, Any], float]:
        start = time.perf_counter()
        found = backend.forward_backward(batch)
        backend.optim_step().wait()
        return found.wait(), time.perf_counter() - start

    first, first_seconds = step()
    step_seconds = statistics.median(step()[1] for _ in range(steps))
    start = time.perf_counter()
    saved = backend.save_checkpoint(steps).wait()
    save_seconds = time.perf_counter() - start
    start = time.perf_counter()
    backend.load_checkpoint(saved).wait()
    return Measurement(
        name=type(backend).__name__,
        loss=first["loss"],
        grad_norm=first["grad_norm"],
        first_seconds=first_seconds,
        step_seconds=step_seconds,
        save_seconds=save_seconds,
        load_seconds=time.perf_counter() - start,
        checkpoint_bytes=sum(path.stat().st_size for path in saved.rglob("*") if path.is_file()),
        lines=lines_of_code(Path(inspect.getfile(type(backend)))),
    )


def lines_of_code(file: Path) -> int:
    """Lines of code in a Python file, without comments, docstrings, empty lines and line breaks for layout."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return sum(line != "" for line in ast.unparse(tree).splitlines())
