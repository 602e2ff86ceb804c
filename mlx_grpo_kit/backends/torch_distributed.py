"""PyTorch in several processes that torchrun starts: DistributedDataParallel, and FSDP2's sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from mlx_grpo_kit.backends.pytorch_backend import MODEL, OPTIMIZER, STATE, PyTorchTrainingBackend

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class DistributedPyTorchTrainingBackend(PyTorchTrainingBackend):
    """The PyTorch backend where every rank has a part of each batch, under torchrun.

    Gradients and losses are summed over ranks, as they are over calls: a loss is its rank's share of the whole. With a
    mean over tokens, divide by the number of tokens of all ranks' parts, which a batch may hold as
    `num_items_in_batch`; the sum is then the mean that one process would have computed of all of it. A mean of each
    rank's own tokens, averaged, would be another number wherever ranks have different numbers of tokens.

    All ranks submit the same operations in the same order. "loss" and "grad_norm" are those of the whole batch on every
    rank, metrics of the loss function are the rank's own. `get_weights` gives whole weights on every rank. The first
    rank writes checkpoints, which `PyTorchTrainingBackend` reads and writes too; every rank reads them, so
    `checkpoint_dir` lies where all of them see it. The random state in them is the first rank's.

    Attributes:
        model: in DistributedDataParallel, or after `fully_shard`.
    """

    needs_tokens: ClassVar[bool] = False  # a rank's part may be empty

    def _check_model(self) -> None:
        if not isinstance(self.model, DistributedDataParallel | FSDPModule):
            kind = type(self.model).__name__
            raise TypeError(f"model is of type {kind}; expected one in DistributedDataParallel or after fully_shard.")

    def _add_gradient(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Mapping[str, Any], torch.Tensor]:
        loss, metrics, norm = super()._add_gradient(batch)
        dist.all_reduce(loss)
        return loss, metrics, _whole(norm)

    def _backward(self, loss: torch.Tensor) -> None:
        (loss * dist.get_world_size()).backward()  # both wrappers average over ranks; this makes it the sum

    def _weights(self) -> dict[str, torch.Tensor]:
        model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        return model.state_dict()

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        for name, mine in self._weights().items():
            mine.copy_(_like(mine, weights[name]))

    def _copy(self, array: torch.Tensor) -> torch.Tensor:
        return _whole(array.detach()).clone()

    def _makers(self) -> dict[str, str]:
        return super()._makers() | {"backend": PyTorchTrainingBackend.__name__}

    def _write_checkpoint(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._gathered = {MODEL: _gathered(self._weights()), OPTIMIZER: _gathered(self.optimizer.state_dict())}
        error = None
        if dist.get_rank() == 0:
            try:
                super()._write_checkpoint(folder, about)
            except OSError as raised:
                error = raised
        self._gathered = {}
        _raise_on_every_rank(error)

    def _saved(self) -> dict[str, Any]:
        return super()._saved() | self._gathered

    def _checked(self, look: Callable[[], T]) -> T:
        found, error = None, None
        try:
            found = look()
        except (OSError, ValueError, TypeError) as raised:
            error = raised
        _raise_on_every_rank(error)
        return found

    def _restore(self, state: dict[str, Any]) -> None:
        numbers = [number for group in state[OPTIMIZER]["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            moments = state[OPTIMIZER]["state"].get(number, {})
            for name, moment in moments.items():
                if isinstance(moment, torch.Tensor) and moment.shape == parameter.shape:
                    moments[name] = _like(parameter, moment)
        if dist.get_rank() != 0:
            state[STATE]["random"] = torch.get_rng_state()
        super()._restore(state)


def _whole(array: torch.Tensor) -> torch.Tensor:
    return array.full_tensor() if isinstance(array, DTensor) else array


def _like(mine: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """`whole` as `mine` lies: in parts on the ranks, or in one."""
    if not isinstance(mine, DTensor):
        return whole
    return distribute_tensor(whole.to(mine.device), mine.device_mesh, mine.placements)


def _gathered(tree: Any) -> Any:
    """A tree of tensors with each of them whole; every rank takes part, and has it."""
    if isinstance(tree, Mapping):
        return {name: _gathered(each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_gathered(each) for each in tree)
    return _whole(tree.detach()) if isinstance(tree, torch.Tensor) else tree


def _raise_on_every_rank(error: Exception | None) -> None:
    """Raise the first rank's error that has one; returns where none has."""
    errors: list[Exception | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    for each in errors:
        if each is not None:
            raise each
