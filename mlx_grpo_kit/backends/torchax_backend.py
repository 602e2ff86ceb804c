"""torchax: PyTorch's syntax on JAX's runtime. Experimental, like torchax itself.

JAX traces a module's forward pass and a loss written in torch. Everything else comes from `JAXTrainingBackend`:
compiled gradients and steps of optax. `loss.backward()` is not used, and does not work on torchax's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch._ops import OpOverloadPacket
from torch.func import functional_call

from mlx_grpo_kit.backends.base import Backend, check_kind, logits_of
from mlx_grpo_kit.backends.jax_backend import JAXTrainingBackend, by_name, in_place_of
from mlx_grpo_kit.backends.pytorch_backend import MODEL, OPTIMIZER, load_tensors
from mlx_grpo_kit.backends.torch_func_backend import keys_of_state


@contextmanager
def _overloads_that_torch_dropped() -> Iterator[None]:
    """Make look-ups of operators by names of dimensions succeed, because torchax 0.0.13 does some while it loads.

    torch 2.13 no longer has them (`aten.prod` has no overload `dim_Dimname`), so nothing will ever call the results.
    """
    if version("torchax") != "0.0.13":
        yield
        return
    look_up = OpOverloadPacket.__getattr__

    def look_up_or_take_the_first(packet: OpOverloadPacket, name: str) -> Any:
        try:
            return look_up(packet, name)
        except AttributeError:
            if "dimname" not in name.lower() and "names" not in name:
                raise
            return getattr(packet, packet.overloads()[0])

    OpOverloadPacket.__getattr__ = look_up_or_take_the_first
    try:
        yield
    finally:
        OpOverloadPacket.__getattr__ = look_up


with _overloads_that_torch_dropped():
    import torchax
    from torchax import interop
    from torchax.ops import mappings

    torchax.default_env()  # loads the rest of torchax


class TorchaxTrainingBackend(JAXTrainingBackend):
    """Training with a torch.nn.Module and a loss in torch, both run by JAX, and an optimizer of optax.

    The module is a template: its weights are copied from any device to JAX's and trained there. Batches and weights are
        torch tensors on the CPU. Buffers are read and never changed. Random numbers inside the module are drawn once,
        at compilation, so dropout does not work. This class imports torchax, which makes torch.compile fail for the
        rest of the process, because torch then treats JAX as its accelerator.

    Checkpoints contain `pytorch_model.bin`, which the module's `load_state_dict` reads, and `optimizer.bin`, the arrays
    of the optimizer's state by name.

    Attributes:
        model: called with "input_ids" of a batch; returns logits, or an object with `.logits`.
        optimizer, loss_fn, checkpoint_dir, weight_version, current_step, learning_rate: see `JAXTrainingBackend`.
    """

    array = torch.Tensor

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: optax.GradientTransformation,
        loss_fn: Callable[..., Any],
        checkpoint_dir: Path,
        weight_version: int = 0,
        current_step: int = 0,
        *,
        learning_rate: float | Callable[[int], float] | None = None,
    ):
        check_kind("model", model, torch.nn.Module, "a torch.nn.Module")
        self.model, self._keys = model, keys_of_state(model)
        trained = {name for name, each in model.named_parameters() if each.requires_grad}
        held = {name: _to_jax(each) for name, each in [*model.named_parameters(), *model.named_buffers()]}
        params = {name: each for name, each in held.items() if name in trained}
        self.buffers = {name: each for name, each in held.items() if name not in trained}
        rest = loss_fn, checkpoint_dir, weight_version, current_step
        super().__init__(self._apply, params, optimizer, *rest, learning_rate=learning_rate)

    def _apply(self, params: dict[str, jax.Array], buffers: dict[str, jax.Array], inputs: Any) -> jax.Array:
        def forward(weights: dict[str, torch.Tensor], inputs: Any) -> torch.Tensor:
            def model(*args: Any, **kwargs: Any) -> Any:
                return functional_call(self.model, weights, args, kwargs)

            return logits_of(model, inputs)

        return interop.call_torch(forward, {**params, **buffers}, inputs)

    def _loss(self, logits: jax.Array, batch: Mapping[str, Any]) -> tuple[jax.Array, Mapping[str, Any]]:
        return interop.call_torch(super()._loss, logits, batch)

    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[jax.Array, Mapping[str, Any], Any]:
        batch = jax.tree.map(_to_jax, dict(batch))
        # Buffers are an argument of the compiled function: in a closure they would become constants.
        batch["input_ids"] = self.buffers, batch["input_ids"]
        loss, metrics, gradient = super()._compute_gradient(batch)
        return loss, jax.tree.map(_to_torch, metrics), gradient

    def _weights(self) -> dict[str, torch.Tensor]:
        held = {**self.params, **self.buffers}
        return {name: _to_torch(held[key]) for name, key in self._keys.items()}

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        new = {self._keys[name]: _to_jax(each) for name, each in weights.items()}
        super()._set_weights({name: new[name] for name in self.params})
        self.buffers = {name: new.get(name, each) for name, each in self.buffers.items()}

    def _copy(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def _state(self) -> dict[str, dict[str, torch.Tensor]]:
        moments = {name: _to_torch(each) for name, each in by_name(self.opt_state).items()}
        return {MODEL: self._weights(), OPTIMIZER: moments}

    _save_file, _load_file = staticmethod(torch.save), staticmethod(load_tensors)
    _write, _read = Backend._write, Backend._read

    def _restore(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        self._set_weights(state[MODEL])
        self.opt_state = in_place_of(self.opt_state, {name: _to_jax(each) for name, each in state[OPTIMIZER].items()})


def _to_jax(value: Any) -> Any:
    """A tensor of torch or torchax as a JAX array with its own memory; anything else unchanged."""
    if isinstance(value, torchax.tensor.Tensor):
        return value.jax()
    if not isinstance(value, torch.Tensor):
        return value
    return jnp.array(mappings.t2j(value.detach(), use_dlpack=False))  # dlpack would share the memory


def _to_torch(value: jax.Array) -> torch.Tensor:
    """A JAX array as a torch tensor with its own memory."""
    is_half = value.dtype == jnp.bfloat16
    tensor = torch.from_numpy(np.array(value, np.float32 if is_half else None))
    return tensor.bfloat16() if is_half else tensor
