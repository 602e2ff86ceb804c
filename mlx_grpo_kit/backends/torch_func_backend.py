"""PyTorch without state: `torch.func` makes a module a function of parameters, torchopt makes steps from gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import optree
import torch
import torchopt
from torch.func import functional_call, grad_and_value
from torchopt.base import GradientTransformation

from mlx_grpo_kit.backends.arrays import plain_name
from mlx_grpo_kit.backends.base import Backend, check_kind, logits_of
from mlx_grpo_kit.backends.learning_rate import reported_rate
from mlx_grpo_kit.backends.pytorch_backend import MODEL, OPTIMIZER, STATE, load_tensors
from mlx_grpo_kit.runtime.torch_threads import use_threads


@dataclass(eq=False, repr=False)
class TorchFuncTrainingBackend(Backend):
    """Training with a torch.nn.Module as a template and an optimizer of torchopt: JAX's style in torch.

    The module's own weights are copied at the beginning and never changed. `from_model` creates such a backend.

    torchopt's Adam computes its bias correction in float32: weights drift from torch.optim's by 7e-6 in 200 steps.

    Checkpoints contain `pytorch_model.bin`, which the module's `load_state_dict` reads, `optimizer.bin`, the tensors of
    the optimizer's state by their position in it, and `training_state.bin`, the random state.

    Attributes:
        model: called with "input_ids" of a batch; returns logits, or an object with `.logits`, like transformers'
            models.
        params: the trained parameters by name.
        buffers: the module's other tensors, including parameters that need no gradient. Changes by a forward pass
            (batch norm's running means) are kept.
        optimizer: a torchopt optimizer. Put clipping into it with `torchopt.chain`.
        opt_state: the optimizer's state for a dictionary of parameters.
        loss_fn, checkpoint_dir, weight_version, current_step: see `Backend`.
        learning_rate: a number or a schedule by step, which `optim_step` reports. None means the optimizer's own rate,
            or NaN if it has several.
    """

    array = torch.Tensor

    model: torch.nn.Module
    params: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    optimizer: GradientTransformation
    opt_state: Any
    loss_fn: Callable[..., Any]
    checkpoint_dir: Path
    weight_version: int = 0
    current_step: int = 0
    learning_rate: float | Callable[[int], float] | None = field(default=None, kw_only=True)

    @classmethod
    def from_model(
        cls,
        model: torch.nn.Module,
        optimizer: GradientTransformation,
        loss_fn: Callable[..., Any],
        checkpoint_dir: Path,
        **others: Any,
    ) -> TorchFuncTrainingBackend:
        """Create a backend from the parameters and buffers of a module, and initialize the optimizer's state.

        Args:
            model, optimizer, loss_fn, checkpoint_dir, others: see the class.
        """
        check_kind("model", model, torch.nn.Module, "a torch.nn.Module")
        expected = "one of torchopt, such as torchopt.adamw(lr=1e-4)"
        check_kind("optimizer", optimizer, GradientTransformation, expected)
        named = {name: each.detach().clone() for name, each in model.named_parameters()}
        trained = {name for name, each in model.named_parameters() if each.requires_grad}
        params = {name: each for name, each in named.items() if name in trained}
        buffers = {name: each for name, each in named.items() if name not in trained}
        buffers |= {name: each.detach().clone() for name, each in model.named_buffers()}
        return cls(model, params, buffers, optimizer, optimizer.init(params), loss_fn, checkpoint_dir, **others)

    def __post_init__(self):
        super().__post_init__()
        self._keys = keys_of_state(self.model)

    def _begin_thread(self) -> Callable[[], None]:
        return partial(use_threads, torch.get_num_threads())

    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Mapping[str, Any], Any]:
        def loss_of(params: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Any]:
            # Copies, because a module changes its buffers in place:
            buffers = {name: each.clone() for name, each in self.buffers.items()}

            def model(*args: Any, **kwargs: Any) -> Any:
                return functional_call(self.model, {**params, **buffers}, args, kwargs)

            loss, metrics = self._loss(logits_of(model, batch["input_ids"]), batch)
            others.update((name, each) for name, each in metrics.items() if not isinstance(each, torch.Tensor))
            return loss, ({name: each for name, each in metrics.items() if name not in others}, buffers)

        others: dict[str, Any] = {}  # grad_and_value can only return tensors
        grads, (loss, (metrics, buffers)) = grad_and_value(loss_of, has_aux=True)(self.params)
        return loss, {**metrics, **others}, (grads, buffers)

    def _add_gradient(self, gradient: Any) -> torch.Tensor:
        grads, buffers = gradient
        if self._grads is not None:
            grads = {name: self._grads[name] + grad for name, grad in grads.items()}
        self._grads, self.buffers = grads, buffers
        return torch.nn.utils.get_total_norm(grads.values())

    def _apply_gradient(self) -> float:
        updates, self.opt_state = self.optimizer.update(self._grads, self.opt_state, params=self.params, inplace=False)
        self.params = torchopt.apply_updates(self.params, updates, inplace=False)
        return reported_rate(self.learning_rate, self.optimizer, self.current_step)

    def _weights(self) -> dict[str, torch.Tensor]:
        held = {**self.params, **self.buffers}
        return {name: held[key] for name, key in self._keys.items()}

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        new = {self._keys[name]: each.detach().clone() for name, each in weights.items()}
        self.params = {name: new[name] for name in self.params}
        self.buffers = {name: new.get(name, each) for name, each in self.buffers.items()}

    def _copy(self, array: torch.Tensor) -> torch.Tensor:
        return array.detach().clone()

    def _state(self) -> dict[str, dict[str, torch.Tensor]]:
        moments = _by_place(self.opt_state)
        return {MODEL: self._weights(), OPTIMIZER: moments, STATE: {"random": torch.get_rng_state()}}

    _save_file, _load_file = staticmethod(torch.save), staticmethod(load_tensors)

    def _restore(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        self._set_weights(state[MODEL])
        self.opt_state = optree.tree_unflatten(optree.tree_structure(self.opt_state), state[OPTIMIZER].values())
        torch.set_rng_state(state[STATE]["random"])


def keys_of_state(model: torch.nn.Module) -> dict[str, str]:
    """For each name in a module's state_dict, the name in its parameters and buffers, where tied weights share one.

    The first names are without the prefix of a compiled module.
    """
    held = {id(each): name for name, each in [*model.named_parameters(), *model.named_buffers()]}
    return {plain_name(name): held[id(each)] for name, each in model.state_dict(keep_vars=True).items()}


def _by_place(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of an optimizer's state by position: its tuple classes could be read only by running code."""
    places = (".".join(map(str, path)) for path in optree.tree_paths(state))
    return dict(zip(places, optree.tree_leaves(state), strict=True))
