"""PyTorch in several processes that torchrun starts: DistributedDataParallel, and FSDP2's sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from mlx_grpo_kit.backends.arrays import plain_name
from mlx_grpo_kit.backends.future import TrainFuture
from mlx_grpo_kit.backends.pytorch_backend import MODEL, OPTIMIZER, STATE, PyTorchTrainingBackend, uncompiled
from mlx_grpo_kit.backends.ranks import Ranks
from mlx_grpo_kit.backends.worker import RefusedError, refusing

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class DistributedPyTorchTrainingBackend(PyTorchTrainingBackend):
    """The PyTorch backend for torchrun, in which every rank has a part of each batch.

    Gradients and losses are summed over ranks, as they are over calls: a loss is its rank's share of the whole. With a
    mean over tokens, divide by the number of tokens of all ranks' parts, which a batch may hold as
    `num_items_in_batch`; then the sum is the mean that a single process would have computed. The average of each rank's
    own mean would be a different number if ranks have different numbers of tokens.

    All ranks must create the same backends and submit the same operations in the same order. If one rank rejects a
        batch, weights or a checkpoint, all ranks do: the future raises. If a rank fails, all ranks get a TrainingError
        within seconds, and so do ranks that submit an operation which another rank never submits.

    "loss" and "grad_norm" are those of the whole batch on every
    rank, metrics of the loss function are those of the rank. `get_weights` returns whole weights on every rank. The
    first rank writes checkpoints, in the format of `PyTorchTrainingBackend`; every rank reads them, so `checkpoint_dir`
    must be visible to all of them. They contain the first rank's random state.

    Attributes:
        model: in DistributedDataParallel, or after `fully_shard`.
    """

    needs_tokens: ClassVar[bool] = False  # a rank's part may be empty

    def _check_model(self) -> None:
        if not isinstance(uncompiled(self.model), DistributedDataParallel | FSDPModule):
            kind = type(self.model).__name__
            raise TypeError(f"model is of type {kind}; expected one in DistributedDataParallel or after fully_shard.")

    def __post_init__(self):
        super().__post_init__()
        self._ranks = Ranks()

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[dict[str, Any]]:
        batch = dict(batch) if isinstance(batch, Mapping) else batch

        def together() -> dict[str, Any]:
            with refusing():
                checked = self._checked(lambda: self._check_batch(batch))
            return self._forward_backward(checked)

        return self._submit("forward_backward", together)

    def _close(self, finish: bool) -> None:
        try:
            super()._close(finish)
        finally:
            self._ranks.leave()

    def _submit(self, operation: str, function: Callable[[], T]) -> TrainFuture[T]:
        return super()._submit(operation, lambda: self._together(operation, function))

    def _together(self, operation: str, function: Callable[[], T]) -> T:
        with self._ranks.watching(self._worker.give_up):
            try:
                self._ranks.meet(operation)
                return function()
            except RefusedError:  # raised by all ranks
                raise
            except BaseException as error:
                self._ranks.tell(f"failed in {operation} ({type(error).__name__}: {error})")
                raise

    @contextmanager
    def _before_any_change(self) -> Iterator[None]:
        """In this context, an exception poisons the backend: ranks may have submitted different operations after it."""
        yield

    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Mapping[str, Any], torch.Tensor]:
        try:
            found, error = super()._compute_gradient(batch), None
        except Exception as raised:
            found, error = (), raised
            # With FSDP, other ranks may wait in the model for this one, and would never reach a meeting.
            self._ranks.tell(f"failed in forward_backward ({type(error).__name__}: {error})")
        self._ranks.meet("the loss", error)
        loss, metrics, own = found
        whole = loss.clone()
        dist.all_reduce(whole)
        return whole, metrics, own

    def _add_gradient(self, loss: torch.Tensor) -> torch.Tensor:
        return _whole(super()._add_gradient(loss * dist.get_world_size()))  # wrappers average over ranks; now they sum

    def _weights(self) -> dict[str, torch.Tensor]:
        model = uncompiled(self.model)
        model = model.module if isinstance(model, DistributedDataParallel) else model
        return {plain_name(name): each for name, each in model.state_dict().items()}

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
            except Exception as raised:
                error = raised
        self._gathered = {}
        self._ranks.meet("save_checkpoint, written", error)

    def _state(self) -> dict[str, Any]:
        return super()._state() | self._gathered

    def _checked(self, look: Callable[[], T]) -> T:
        found, error = None, None
        try:
            found = look()
        except Exception as raised:
            error = raised
        self._ranks.meet("a check", error)
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
    """`whole` distributed like `mine`: sharded over the ranks, or not."""
    if not isinstance(mine, DTensor):
        return whole
    return distribute_tensor(whole.to(mine.device), mine.device_mesh, mine.placements)


def _gathered(tree: Any) -> Any:
    """A tree of tensors with each of them gathered; every rank takes part, and gets the result."""
    if isinstance(tree, Mapping):
        return {name: _gathered(each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_gathered(each) for each in tree)
    return _whole(tree.detach()) if isinstance(tree, torch.Tensor) else tree
