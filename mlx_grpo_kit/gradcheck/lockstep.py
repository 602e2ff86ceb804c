"""`lockstep`: train a network here and its twin in torch side by side, and compare every number after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_grpo_kit.tensor import cross_entropy, nn, optim


class LockstepError(ValueError):
    """The two differ; the message names the step, the tensor and the element."""


@dataclass(frozen=True)
class LockstepStep:
    """One step that agreed.

    loss, torch_loss     before the step
    largest_difference   of the loss, of all gradients, and of all weights and running statistics after the step
    where                the tensor it was in
    """

    step: int
    loss: float
    torch_loss: float
    largest_difference: float
    where: str

    @property
    def metrics(self) -> dict[str, float]:
        """For a live plot."""
        return {"loss": self.loss, "torch_loss": self.torch_loss, "largest_difference": self.largest_difference}


def lockstep(model: nn.Module, torch_model: Any, batches: Iterable[tuple[np.ndarray, np.ndarray]], *,
             optimizer: str = "Adam", loss: tuple[Callable, Callable] | None = None, tolerance: float = 1e-9,
             **options: Any) -> Iterator[LockstepStep]:
    """Train both, and compare the loss, every gradient and every weight after each step.

        for step in lockstep(model, torch_model, batches, optimizer="Adam", lr=1e-3):
            plot.update(step.metrics)

    model takes over torch_model's weights first, by name, and its dtype. batches are pairs (x, targets) of arrays.
    `optimizer` is a name in both libraries, with `options` for both; `loss` is a pair of functions (outputs, targets),
    for here and for torch, cross-entropy if not given.

    Raises LockstepError at the first number that differs by more than `tolerance`: gradients are searched from the last
    parameter to the first, the way that backward goes, so the one it names is where the error came in.
    """
    import torch

    ours_loss, torch_loss = loss or (cross_entropy, torch.nn.functional.cross_entropy)
    dtype = next(torch_model.parameters()).detach().numpy().dtype
    model.astype(dtype).load_state_dict(torch_model.state_dict())
    parameters, torch_parameters = dict(model.named_parameters()), dict(torch_model.named_parameters())
    ours = getattr(optim, optimizer)(parameters.values(), **options)
    theirs = getattr(torch.optim, optimizer)(torch_parameters.values(), **options)

    for step, (x, targets) in enumerate(batches, start=1):
        x = np.asarray(x, dtype) if np.asarray(x).dtype.kind == "f" else np.asarray(x)
        ours.zero_grad()
        theirs.zero_grad()
        value, expected = ours_loss(model(x), targets), torch_loss(torch_model(torch.tensor(x)), torch.tensor(targets))
        value.backward()
        expected.backward()
        pairs = [("the loss", value.data, expected.detach().numpy())]
        pairs += [(f"the gradient of {name!r}", _grad(parameters[name]), _grad(torch_parameters[name]))
                  for name in reversed(parameters)]
        _compare(step, pairs, tolerance)
        ours.step()
        theirs.step()
        state, torch_state = model.state_dict(), torch_model.state_dict()
        after = [(f"{name!r} after the step", state[name], torch_state[name].numpy()) for name in state]
        _compare(step, after, tolerance)
        where, largest = max(((name, _difference(a, b)) for name, a, b in pairs + after), key=lambda pair: pair[1])
        yield LockstepStep(step, value.item(), expected.item(), largest, where)


def _compare(step: int, pairs: list[tuple[str, np.ndarray, np.ndarray]], tolerance: float) -> None:
    for name, ours, theirs in pairs:
        if not _difference(ours, theirs) <= tolerance:
            difference = np.nan_to_num(np.abs(ours - theirs), nan=np.inf)
            index = tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
            if not index:
                raise LockstepError(f"Step {step}: {name} differs by more than {tolerance:g}: {ours.item():.10g} here, "
                                    f"{theirs.item():.10g} in torch.")
            raise LockstepError(f"Step {step}: {name} differs. Of {difference.size:,} elements "
                                f"{np.sum(~(difference <= tolerance)):,} are off by more than {tolerance:g}; element "
                                f"{index} is off by most: {ours[index]:.10g} here, {theirs[index]:.10g} in torch.")


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours - theirs), initial=0.0))


def _grad(parameter: Any) -> np.ndarray:
    """A parameter that the loss does not use has none: zeros."""
    if parameter.grad is None:
        return np.zeros(tuple(parameter.shape))
    return np.asarray(parameter.grad)
