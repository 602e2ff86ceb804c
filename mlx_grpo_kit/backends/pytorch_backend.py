"""PyTorch in its usual style: a module with weights, and an optimizer that changes them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mlx_grpo_kit.backends.arrays import plain_name
from mlx_grpo_kit.backends.base import Backend, check_kind, check_max_grad_norm, logits_of
from mlx_grpo_kit.backends.incoming import fitting
from mlx_grpo_kit.runtime.torch_threads import use_threads

MODEL, OPTIMIZER, STATE = "pytorch_model.bin", "optimizer.bin", "training_state.bin"


@dataclass(eq=False, repr=False)
class PyTorchTrainingBackend(Backend):
    """Training with a torch.nn.Module and a torch.optim.Optimizer.

    Both are your objects, stay on their device, and change with every step: model, optimizer and batches must already
        be on one device. Do not use them while operations are running; `get_weights` copies.

    Checkpoints contain `pytorch_model.bin`, the model's state_dict, `optimizer.bin`, the optimizer's, and
    `training_state.bin`, the random state and the scheduler's state.

    Attributes:
        model: called with "input_ids" of a batch; returns logits, or an object with `.logits`, like transformers'
            models. The weights of a compiled model keep their original names.
        optimizer: an optimizer of all or some of the model's parameters; norm and clipping apply to those.
        loss_fn, checkpoint_dir, weight_version, current_step: see `Backend`.
        max_grad_norm: gradients with a larger norm are scaled down to it.
        lr_scheduler: a scheduler of torch.optim.lr_scheduler, called after each step.
        autocast_dtype: with torch.bfloat16 the forward pass uses it where that is safe; weights keep their dtype.
    """

    array = torch.Tensor

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[..., Any]
    checkpoint_dir: Path
    weight_version: int = 0
    current_step: int = 0
    max_grad_norm: float | None = field(default=None, kw_only=True)
    lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None = field(default=None, kw_only=True)
    autocast_dtype: torch.dtype | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_kind("model", self.model, torch.nn.Module, "a torch.nn.Module")
        self._check_model()
        check_kind("optimizer", self.optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer")
        check_max_grad_norm(self.max_grad_norm)
        super().__post_init__()

    def _check_model(self) -> None:
        in_parallel, model = torch.nn.parallel.DistributedDataParallel, uncompiled(self.model)
        if isinstance(model, in_parallel) or hasattr(model, "set_requires_gradient_sync"):  # FSDP2 adds that
            raise TypeError("model computes in several processes: use DistributedPyTorchTrainingBackend for it.")

    def _begin_thread(self) -> Callable[[], None]:
        return partial(use_threads, torch.get_num_threads())

    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Mapping[str, Any], torch.Tensor]:
        with self._autocast():  # here and not around the call, because it applies to one thread
            loss, metrics = self._loss(logits_of(self.model, batch["input_ids"]), batch)
        return loss.detach(), metrics, loss  # torch's backward computes and adds a gradient in one call

    def _add_gradient(self, loss: torch.Tensor) -> torch.Tensor:
        loss.backward()
        return torch.nn.utils.get_total_norm(self._gradients())

    def _apply_gradient(self) -> float:
        rate = float(self.optimizer.param_groups[0]["lr"])
        if self.max_grad_norm is not None:
            norm = torch.tensor(self._gradient_norm)
            torch.nn.utils.clip_grads_with_norm_(self._trained(), self.max_grad_norm, norm)
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        return rate

    def _clear_gradient(self) -> None:
        self.model.zero_grad()  # also for parameters that the optimizer does not have
        self.optimizer.zero_grad()

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._trained() if parameter.grad is not None]

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _autocast(self):
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, self.autocast_dtype)

    def _weights(self) -> dict[str, torch.Tensor]:
        return {plain_name(name): each for name, each in self.model.state_dict().items()}

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict({name: weights[plain_name(name)] for name in self.model.state_dict()})

    def _copy(self, array: torch.Tensor) -> torch.Tensor:
        return array.detach().clone()

    def _state(self) -> dict[str, Any]:
        scheduler = None if self.lr_scheduler is None else self.lr_scheduler.state_dict()
        return {
            MODEL: self._weights(),
            OPTIMIZER: self.optimizer.state_dict(),
            STATE: {"random": torch.get_rng_state(), "scheduler": scheduler},
        }

    _save_file = staticmethod(torch.save)

    def _read(self, folder: Path) -> dict[str, Any]:
        state = {name: load_tensors(folder / name) for name in (MODEL, OPTIMIZER, STATE)}
        state[MODEL] = fitting(self.array, "Weight", state[MODEL], self._weights())
        random, scheduler = (state[STATE].get(name) for name in ("random", "scheduler"))
        fitting(self.array, "State", {"random": random}, {"random": torch.get_rng_state()})
        if (scheduler is None) != (self.lr_scheduler is None):
            how, this = ("without", "one") if scheduler is None else ("with", "none")
            raise ValueError(f"{folder} was saved {how} an lr_scheduler, but this backend has {this}.")
        self._check_optimizer(state[OPTIMIZER])  # check after that: a scheduler adds a setting to the optimizer
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self._set_weights(state[MODEL])
        self.optimizer.load_state_dict(state[OPTIMIZER])
        torch.set_rng_state(state[STATE]["random"])
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(state[STATE]["scheduler"])

    def _check_optimizer(self, saved: dict[str, Any]) -> None:
        """Raise ValueError unless a state_dict fits this optimizer: torch itself accepts moments of any shape."""
        groups, ours = saved.get("param_groups"), self.optimizer.param_groups
        shapes = [[len(group.get("params", ())), *sorted(group)] for group in groups or ()]
        if shapes != [[len(group["params"]), *sorted(group)] for group in ours]:
            raise ValueError(
                "The optimizer's groups of parameters or their settings differ from those of this optimizer."
            )
        for theirs, group in zip(groups, ours, strict=True):
            for name in group.keys() - {"params"}:
                if not _is_of_one_kind(theirs[name], group[name]):
                    raise ValueError(
                        f"The optimizer's setting {name!r} is {theirs[name]!r}; it is {group[name]!r} here."
                    )
        numbers = [number for group in groups for number in group["params"]]
        parameters = [(group, parameter) for group in ours for parameter in group["params"]]
        states = saved.get("state", {})
        if unknown := states.keys() - set(numbers):
            raise ValueError(f"The optimizer's state has a parameter {unknown.pop()!r} that is in none of its groups.")
        for number, (group, parameter) in zip(numbers, parameters, strict=True):
            if number in states:
                what = f"Moment of parameter {number} of the optimizer:"
                fitting(self.array, what, _tensors(states[number]), _tensors(self._first_moments(group, parameter)))

    def _first_moments(self, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        """The optimizer's state for a parameter, from another of its kind after a step with zero gradient."""
        trial = copy.copy(self.optimizer)
        stand_in = torch.zeros_like(parameter, requires_grad=True)
        stand_in.grad = torch.zeros_like(parameter)
        trial.state, trial.param_groups = defaultdict(dict), [{**group, "params": [stand_in]}]
        trial.step()
        return trial.state[stand_in]


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The original module of a compiled one, or the module itself."""
    return getattr(model, "_orig_mod", model)


def load_tensors(file: Path) -> dict[str, Any]:
    """A dictionary that torch.save wrote, read without running code. Raises ValueError for anything else."""
    try:
        found = torch.load(file, weights_only=True, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{file} cannot be read ({error}). It is corrupt, or not from this kit.") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{file} contains {type(found).__name__}; expected a dictionary.")
    return found


def _is_of_one_kind(one: Any, other: Any) -> bool:
    """True if both are numbers, or both tuples, for example, or if one is None."""
    numbers = (bool, int, float, torch.Tensor)
    return None in (one, other) or (isinstance(one, numbers) and isinstance(other, numbers)) or type(one) is type(other)


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value if isinstance(value, torch.Tensor) else torch.tensor(value) for name, value in state.items()}
