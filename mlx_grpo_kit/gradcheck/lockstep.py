"""`lockstep`: train a network here and its twin in torch side by side, and compare every number after every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_grpo_kit.tensor import Tensor, cross_entropy, nn, optim

ROUNDING = 1000  # a gradient below this many eps of the largest gradient is rounding


class LockstepError(ValueError):
    """The two differ; the message names the step, the tensor and the element."""


@dataclass(frozen=True)
class LockstepStep:
    """One step that agreed.

    Attributes:
        step: its number, from 1.
        loss: before the step.
        torch_loss: the same loss in torch.
        largest_difference: of the loss, of all gradients, and of all weights and running statistics after the step.
        where: the tensor with this difference.
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


def lockstep(
    model: nn.Module,
    torch_model: Any,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    optimizer: str = "Adam",
    loss: tuple[Callable, Callable] | None = None,
    tolerance: float = 1e-9,
    **options: Any,
) -> Iterator[LockstepStep]:
    """Train both, and compare the loss, every gradient and every weight after each step.

        for step in lockstep(model, torch_model, batches, optimizer="Adam", lr=1e-3):
            plot.update(step.metrics)

    The first number that differs names the tensor. Gradients are compared from the last parameter to the first, in the
    order of the backward pass, so the first difference is where the error arose.

    If a parameter's gradient is 0 except for rounding, such as that of a bias before batch norm, both use torch's
    gradient. Otherwise Adam, which divides a gradient by its size, would make unrelated steps from the two rounding
    errors.

    Args:
        model: a model of this kit, which first gets torch_model's weights, by name, and its dtype.
        torch_model: its twin in torch.
        batches: pairs (x, targets) of arrays.
        optimizer: the name of an optimizer in both libraries.
        loss: a pair of functions (outputs, targets), for here and for torch; cross-entropy if not given.
        tolerance: the allowed difference of two numbers; multiplied by the largest number of their array if that is
            above 1.
        options: options of the optimizer, for both.

    Raises:
        LockstepError: a number differs by more than the tolerance, or is nan.
        TypeError: at the start of the loop, for arguments that do not fit together.
        ValueError: at the start of the loop, for arguments that do not fit together.
    """
    import torch

    ours_loss, torch_loss = _losses(loss, torch)
    kind, torch_kind = _optimizers(optimizer, torch)
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}; expected 0 or more.")
    dtype = _dtype(model, torch_model, torch)
    model.astype(dtype).load_state_dict(torch_model.state_dict())
    parameters, torch_parameters = dict(model.named_parameters()), dict(torch_model.named_parameters())
    frozen = parameters.keys() ^ {name for name, each in torch_parameters.items() if each.requires_grad}
    if frozen:
        raise ValueError(f"{sorted(frozen)} would be trained in one of the two only; expected requires_grad to agree.")
    ours, theirs = kind(parameters.values(), **options), torch_kind(torch_parameters.values(), **options)

    step = 0
    for step, batch in enumerate(batches, start=1):
        x, targets = _arrays(step, batch, dtype)
        ours.zero_grad()
        theirs.zero_grad()
        try:
            value, expected = (
                ours_loss(model(x), targets),
                torch_loss(torch_model(torch.tensor(x)), torch.tensor(targets)),
            )
        except RuntimeError as error:
            if x.dtype.kind == "f":
                raise
            raise TypeError(
                f"Step {step}: torch_model cannot take x of dtype {x.dtype} ({error}). Images are floating "
                "point numbers: x / 255, or x.astype(np.float64)."
            ) from error
        _check_scalars(value, expected, torch)
        value.backward()
        expected.backward()
        pairs = [("the loss", value.data, expected.detach().numpy())]
        pairs += [
            (f"the gradient of {name!r}", _grad(parameters[name]), _grad(torch_parameters[name]))
            for name in reversed(parameters)
        ]
        _compare(step, pairs, tolerance)
        _share_rounding(parameters, torch_parameters)
        ours.step()
        theirs.step()
        state, torch_state = model.state_dict(), torch_model.state_dict()
        after = [(f"{name!r} after the step", state[name], torch_state[name].numpy()) for name in state]
        _compare(step, after, tolerance)
        where, largest = max(((name, _difference(a, b)) for name, a, b in pairs + after), key=lambda pair: pair[1])
        yield LockstepStep(step, value.item(), expected.item(), largest, where)
    if not step:
        raise ValueError(
            "batches is empty, so nothing was compared; expected pairs (x, targets). A generator that has "
            "been used up is empty too: make a new one."
        )


def _losses(loss: tuple[Callable, Callable] | None, torch: Any) -> tuple[Callable, Callable]:
    if loss is None:
        return cross_entropy, torch.nn.functional.cross_entropy
    if not isinstance(loss, tuple | list) or len(loss) != 2 or not all(map(callable, loss)):
        raise TypeError(
            f"loss is {loss!s:.80}; expected a pair of functions (outputs, targets), for here and for torch."
        )
    return loss[0], loss[1]


def _check_scalars(value: Any, expected: Any, torch: Any) -> None:
    for place, library, each, kind in (
        ("first", "mlx_grpo_kit", value, Tensor),
        ("second", "torch", expected, torch.Tensor),
    ):
        if not isinstance(each, kind) or tuple(each.shape):
            raise TypeError(
                f"The {place} of the two loss functions returned a {type(each).__name__} of shape "
                f"{tuple(getattr(each, 'shape', ()))}; expected a {library} Tensor of shape (), such as a "
                "mean."
            )


def _optimizers(name: str, torch: Any) -> tuple[type[optim.Optimizer], type]:
    if name not in ("SGD", "Adam", "AdamW"):
        raise ValueError(
            f"optimizer is {name!s:.80}; expected the name of one that both libraries have: 'SGD', 'Adam' or 'AdamW'."
        )
    return getattr(optim, name), getattr(torch.optim, name)


def _dtype(model: Any, torch_model: Any, torch: Any) -> np.dtype:
    for name, given, kind, words in (
        ("model", model, nn.Module, "Module of mlx_grpo_kit.tensor.nn"),
        ("torch_model", torch_model, torch.nn.Module, "torch.nn.Module"),
    ):
        if not isinstance(given, kind):
            raise TypeError(
                f"{name} is a {type(given).__module__}.{type(given).__name__}; expected a {words}: "
                "lockstep(model, torch_model, batches)."
            )
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in torch_model.parameters()}
    if not dtypes:
        raise ValueError("torch_model has no parameters, so there is nothing to train.")
    if len(dtypes) > 1 or not dtypes <= {"float16", "float32", "float64"}:
        raise ValueError(
            f"torch_model has parameters in {', '.join(sorted(dtypes))}; expected all in one of float64, "
            "float32 and float16, as torch_model.double() makes them."
        )
    return np.dtype(dtypes.pop())


def _arrays(step: int, batch: Any, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """x in the models' dtype if it is floating point, and integer targets in the form that torch requires."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} things" if isinstance(batch, tuple | list) else f"of type {type(batch).__name__}"
        raise ValueError(
            f"Step {step}: the batch is {what}; expected a pair (x, targets). For one batch alone, "
            "batches is [(x, targets)]."
        )
    x, targets = (np.asarray(part.data if isinstance(part, Tensor) else part) for part in batch)
    return (
        x.astype(dtype) if x.dtype.kind == "f" else x,
        targets.astype(np.int64)
        if targets.dtype.kind in "iu"
        else targets.astype(dtype)
        if targets.dtype.kind == "f"
        else targets,
    )


def _share_rounding(parameters: dict[str, Tensor], torch_parameters: dict[str, Any]) -> None:
    """Give our parameters torch's gradient where both gradients are nothing but rounding."""
    sizes = {name: [np.abs(_grad(each[name])) for each in (parameters, torch_parameters)] for name in parameters}
    largest = {name: max(size.max(initial=0.0) for size in both) for name, both in sizes.items()}
    for name, parameter in parameters.items():
        rounding = ROUNDING * np.finfo(parameter.dtype).eps * max(largest.values())
        if parameter.grad is not None and largest[name] <= rounding and torch_parameters[name].grad is not None:
            parameter.grad = _grad(torch_parameters[name]).copy()


def _compare(step: int, pairs: list[tuple[str, np.ndarray, np.ndarray]], relative: float) -> None:
    for name, ours, theirs in pairs:
        largest = max(1.0, float(np.nan_to_num(np.abs(theirs)).max(initial=0.0)))
        tolerance = relative * largest
        allowed = f"{relative:g}" + (f" of {largest:.3g}" if largest > 1 else "")
        if not _difference(ours, theirs) <= tolerance:
            difference = np.nan_to_num(np.abs(ours - theirs), nan=np.inf)
            if not np.isfinite(ours).all() and np.array_equal(ours, theirs, equal_nan=True):
                raise LockstepError(
                    f"Step {step}: {name} is nan or inf, here and in torch alike. The two agree: look "
                    "for one in the batch, for an empty batch, or for steps that are too long."
                )
            index = tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
            if not index:
                raise LockstepError(
                    f"Step {step}: {name} differs by more than {allowed}: {ours.item():.10g} here, "
                    f"{theirs.item():.10g} in torch.{_rounding(theirs, difference)}"
                )
            raise LockstepError(
                f"Step {step}: {name} differs. Of {difference.size:,} elements "
                f"{np.sum(~(difference <= tolerance)):,} are off by more than {allowed}; element "
                f"{index} is off by most: {ours[index]:.10g} here, {theirs[index]:.10g} in torch."
                f"{_rounding(theirs, difference)}"
            )


def _rounding(theirs: np.ndarray, difference: np.ndarray) -> str:
    """The tolerance to add if a difference in few digits may be no more than rounding."""
    eps = np.finfo(theirs.dtype).eps
    if theirs.dtype == np.float64 or not difference.max() <= 100 * eps * max(1.0, np.abs(theirs).max()):
        return ""
    return (
        f" That may be rounding: {theirs.dtype} carries {-math.log10(eps):.0f} digits. Compare in float64, "
        "torch_model.double(), or with a larger tolerance."
    )


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours - theirs), initial=0.0))


def _grad(parameter: Any) -> np.ndarray:
    """A parameter that the loss does not use has none: zeros."""
    if parameter.grad is None:
        return np.zeros(tuple(parameter.shape))
    return np.asarray(parameter.grad)
