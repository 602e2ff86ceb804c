"""The same small model, loss and optimizer in every framework, for tests that hold for all backends.

Embeddings times an output layer, with the names, shapes and first numbers of `first_weights`. A framework is a row of
FRAMEWORKS; a test that takes `framework` runs for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, WIDTH, ROWS, LENGTH = 11, 6, 3, 5


def first_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"embedding.weight": (VOCABULARY, WIDTH), "output.weight": (VOCABULARY, WIDTH)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def numpy_batch(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, VOCABULARY, (ROWS, LENGTH))
    mask = random.integers(0, 2, (ROWS, LENGTH)).astype(np.float32)
    mask[0, 0] = 1
    return {"input_ids": random.integers(0, VOCABULARY, (ROWS, LENGTH)), "labels": labels, "loss_mask": mask}


def masked_cross_entropy_torch(logits, labels, loss_mask, scale=1.0):
    """The specification's loss; `scale` multiplies it."""
    from torch.nn import functional

    loss = functional.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), reduction="none")
    return scale * (loss.reshape(labels.shape) * loss_mask).sum() / loss_mask.sum()


def masked_cross_entropy_mlx(logits, labels, loss_mask, scale=1.0):
    from mlx.nn import losses

    return scale * (losses.cross_entropy(logits, labels) * loss_mask).sum() / loss_mask.sum()


def masked_cross_entropy_jax(logits, labels, loss_mask, scale=1.0):
    import optax

    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return scale * (losses * loss_mask).sum() / loss_mask.sum()


@dataclass(frozen=True)
class Framework:
    """One backend, ready to be made.

    Attributes:
        make: (checkpoint_dir, loss_fn=None, optimizer="adamw" or "sgd", lr=1e-2, width=WIDTH, half=False, **options) ->
            a backend with the first weights, in bfloat16 if `half`; another width is another model.
        array: a NumPy array as the framework's.
        loss_fn: masked_cross_entropy.
        files: of a checkpoint: the model's first, then the optimizer's; none of them can be missing.
    """

    name: str
    make: Callable[..., Any]
    array: Callable[[np.ndarray], Any]
    loss_fn: Callable[..., Any]
    files: tuple[str, ...]

    def batch(self, seed: int = 0, length: int | None = None, **rest: float) -> dict[str, Any]:
        arrays = {name: array[:, :length] for name, array in numpy_batch(seed).items()}
        arrays |= {name: np.float32(value) for name, value in rest.items()}
        return {name: self.array(value) for name, value in arrays.items()}


def torch_model(width: int = WIDTH, half: bool = False):
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, width)
            self.output = torch.nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, input_ids):
            return self.output(self.embedding(input_ids))

    model = Model()
    if width == WIDTH:
        model.load_state_dict({name: torch.tensor(array) for name, array in first_weights().items()})
    return model.bfloat16() if half else model


def apply_model(params, input_ids):
    """The same model as a function, of arrays of MLX or JAX."""
    return params["embedding.weight"][input_ids] @ params["output.weight"].T


def make_pytorch(checkpoint_dir: Path, loss_fn=None, *, optimizer="adamw", lr=1e-2, width=WIDTH, half=False, **options):
    import torch

    from mlx_grpo_kit.backends import PyTorchTrainingBackend

    model = torch_model(width, half)
    kinds = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
    }
    loss_fn = loss_fn or masked_cross_entropy_torch
    return PyTorchTrainingBackend(model, kinds[optimizer](), loss_fn, checkpoint_dir, **options)


def make_mlx(checkpoint_dir: Path, loss_fn=None, *, optimizer="adamw", lr=1e-2, width=WIDTH, half=False, **options):
    from mlx_grpo_kit.runtime import mx  # isort: skip
    import mlx.optimizers as optim

    from mlx_grpo_kit.backends import MLXTrainingBackend

    params = {name: mx.array(array) for name, array in first_weights().items()}
    if width != WIDTH:
        params = {name: mx.ones((VOCABULARY, width)) for name in params}
    if half:
        params = {name: array.astype(mx.bfloat16) for name, array in params.items()}
    kinds = {
        "adamw": lambda: optim.AdamW(lr, weight_decay=0.01, bias_correction=True),
        "sgd": lambda: optim.SGD(lr, momentum=0.9),
    }

    loss_fn = loss_fn or masked_cross_entropy_mlx
    return MLXTrainingBackend(apply_model, params, kinds[optimizer](), loss_fn, checkpoint_dir, **options)


def make_torch_func(checkpoint_dir: Path, loss_fn=None, *, optimizer="adamw", lr=1e-2, width=WIDTH, half=False,
                    max_grad_norm=None, **options):  # fmt: skip
    import torchopt

    from mlx_grpo_kit.backends import TorchFuncTrainingBackend

    kinds = {"adamw": lambda: torchopt.adamw(lr, weight_decay=0.01), "sgd": lambda: torchopt.sgd(lr, momentum=0.9)}
    steps = kinds[optimizer]()
    if max_grad_norm is not None:
        steps = torchopt.chain(torchopt.clip.clip_grad_norm(max_grad_norm), steps)
    loss_fn = masked_cross_entropy_torch if loss_fn is None else loss_fn
    model = torch_model(width, half)
    return TorchFuncTrainingBackend.from_model(model, steps, loss_fn, checkpoint_dir, learning_rate=lr, **options)


def optax_optimizer(optimizer, lr, max_grad_norm):
    import optax

    kinds = {"adamw": lambda: optax.adamw(lr, weight_decay=0.01), "sgd": lambda: optax.sgd(lr, momentum=0.9)}
    if max_grad_norm is None:
        return kinds[optimizer]()
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), kinds[optimizer]())


def make_jax(checkpoint_dir: Path, loss_fn=None, *, optimizer="adamw", lr=1e-2, width=WIDTH, half=False,
             max_grad_norm=None, **options):  # fmt: skip
    from mlx_grpo_kit.backends import JAXTrainingBackend

    params = first_weights()
    if width != WIDTH:
        params = {name: np.ones((VOCABULARY, width), np.float32) for name in params}
    if half:
        import jax.numpy

        params = {name: jax.numpy.array(array, jax.numpy.bfloat16) for name, array in params.items()}

    steps = optax_optimizer(optimizer, lr, max_grad_norm)
    loss_fn = masked_cross_entropy_jax if loss_fn is None else loss_fn
    return JAXTrainingBackend(apply_model, params, steps, loss_fn, checkpoint_dir, learning_rate=lr, **options)


def make_torchax(checkpoint_dir: Path, loss_fn=None, *, optimizer="adamw", lr=1e-2, width=WIDTH, half=False,
                 max_grad_norm=None, **options):  # fmt: skip
    from mlx_grpo_kit.backends import TorchaxTrainingBackend

    steps = optax_optimizer(optimizer, lr, max_grad_norm)
    loss_fn = masked_cross_entropy_torch if loss_fn is None else loss_fn
    return TorchaxTrainingBackend(torch_model(width, half), steps, loss_fn, checkpoint_dir, learning_rate=lr, **options)


def torch_array(array):
    import torch

    return torch.tensor(array)


def mlx_array(array):
    from mlx_grpo_kit.runtime import mx

    return mx.array(array)


def jax_array(array):
    import jax.numpy

    return jax.numpy.array(array)


TORCH_FILES = ("pytorch_model.bin", "optimizer.bin", "training_state.bin")
MLX_FILES = ("model.safetensors", "optimizer.safetensors", "training_state.safetensors")
JAX_FILES = ("orbax/_METADATA", "orbax/manifest.ocdbt")  # and others, whose names are never the same

FRAMEWORKS = [
    Framework("pytorch", make_pytorch, torch_array, masked_cross_entropy_torch, TORCH_FILES),
    Framework("mlx", make_mlx, mlx_array, masked_cross_entropy_mlx, MLX_FILES),
    Framework("torch_func", make_torch_func, torch_array, masked_cross_entropy_torch, TORCH_FILES),
    Framework("jax", make_jax, jax_array, masked_cross_entropy_jax, JAX_FILES),
    Framework("torchax", make_torchax, torch_array, masked_cross_entropy_torch, TORCH_FILES[:2]),
]
