"""Gradients of a loss with respect to named parameters, with clear errors for common mistakes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches

from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.fork import refuse_after_fork

LossFunction = Callable[[dict[str, mx.array]], mx.array]


class GradientError(ValueError):
    """The loss cannot be differentiated as asked; the message says why and what to do."""


class GradientWarning(UserWarning):
    """The loss depends on a parameter whose gradient is lost; the message names it."""


CONSTANTS = "behind mx.stop_gradient or used only by a closure inside mx.checkpoint or an mx.custom_function"


class _NamedParams(dict):
    """The dictionary that a loss function receives: a missing name raises an error that suggests existing ones."""

    def __missing__(self, name: str) -> mx.array:
        near = get_close_matches(str(name), self, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {len(self)}, the first is {next(iter(self))!r}."
        raise GradientError(f"The loss function asked for parameter {name!r}, which is not in params. {hint}")


def value_and_grad(loss_fn: LossFunction, params: Mapping[str, mx.array]) -> tuple[mx.array, dict[str, mx.array]]:
    """Return the loss and its gradient with respect to `params`.

    Args:
        loss_fn: a function from a dictionary like `params` to a scalar array.
        params: floating-point arrays by name.

    Returns:
        (loss, grads), evaluated: a scalar array, and for each parameter a gradient under the same name, of the same
        shape and dtype. A parameter that the loss does not use has gradient zero.

    Warns:
        GradientWarning: the loss depends on a parameter to which no path leads, because it is behind mx.stop_gradient
            or used only by a closure inside mx.checkpoint or an mx.custom_function.

    Raises:
        GradientError: the loss is not a scalar array, is NaN, or does not depend on the parameters; a gradient contains
            NaN; `loss_fn` uses a missing parameter; a parameter is not a floating-point array. Infinite losses and
            gradients, such as that of sqrt at 0, are returned.
    """
    refuse_after_fork()
    check_parameters(params)
    loss, grads = mx.value_and_grad(lambda tracked: scalar_loss(loss_fn, tracked))(dict(params))
    mx.eval(loss, grads)
    if math.isnan(loss.item()):
        raise GradientError(
            "The loss is NaN. Look for NaN in what goes in (parameters, rewards, log-probabilities), then for 0 / 0, "
            "inf - inf and the logarithm of a negative number in the loss function."
        )
    zeros = _check_gradients(loss, grads)
    if len(zeros) == len(grads) and not _names_with_a_path(loss_fn, params):
        raise GradientError(
            "There is no path from params to the loss: compute the forward pass inside the loss function, from the "
            f"dictionary it is given. Values computed before it, from another dictionary, or {CONSTANTS} are constants "
            "to the gradient."
        )
    if zeros and (lost := _used_without_a_path(loss_fn, params, zeros)):
        warnings.warn(
            f"The loss depends on {_some(lost)}, but no path leads to {'it' if len(lost) == 1 else 'them'}, so the "
            f"gradient is 0: what is {CONSTANTS} is a constant to the gradient. Pass the parameter to that function as "
            "an argument. If it is meant to be constant, leave it out of params.",
            GradientWarning,
            stacklevel=2,
        )
    return loss, grads


def _check_gradients(loss: mx.array, grads: Mapping[str, mx.array]) -> list[str]:
    """Raise GradientError for NaN in a gradient; return the names of the gradients that are 0 everywhere."""
    # A sum is a single pass without a copy, and is NaN if a term is. It is also NaN for inf and -inf, and 0 for 1 and
    # -1, so check again then.
    sums = dict(zip(grads, mx.stack([grad.sum().astype(mx.float32) for grad in grads.values()]).tolist(), strict=True))
    names = [name for name, total in sums.items() if math.isnan(total) and mx.any(mx.isnan(grads[name])).item()]
    if names:
        raise GradientError(
            f"The loss is {loss.item():.4g}, but the gradients of {len(names)} of {len(grads)} parameters hold NaN: "
            f"{_some(names)}. The backward pass multiplied 0 by infinity: look for an exp that overflows (a ratio of "
            "probabilities that are far apart), and for a square root, logarithm or division that mx.where leaves out "
            "of the loss. Bound or replace its input, not its result: mx.sqrt(mx.where(x > 0, x, 1.0))."
        )
    return [name for name, total in sums.items() if total == 0 and not mx.any(grads[name] != 0).item()]


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_parameters(params: Mapping[str, mx.array], what: str = "Parameter") -> None:
    """Raise GradientError unless `params` is a dictionary of floating-point arrays, at least one, and none empty."""
    if not isinstance(params, Mapping):
        raise GradientError(f"{what}s have type {type(params).__name__}; expected a dictionary of named arrays.")
    if not params:
        raise GradientError("params is empty; expected a dictionary of named arrays, as load_pretrained returns.")
    for name, value in params.items():
        if not isinstance(value, mx.array) or not mx.issubdtype(value.dtype, mx.floating):
            kind = f"dtype {value.dtype}" if isinstance(value, mx.array) else f"type {type(value).__name__}"
            raise GradientError(f"{what} {name!r} has {kind}; expected an mx.array of floating-point numbers.")
        if not value.size:
            raise GradientError(f"{what} {name!r} has shape {tuple(value.shape)}, so it is empty.")


def scalar_loss(loss_fn: LossFunction, params: dict[str, mx.array]) -> mx.array:
    """Call `loss_fn` and return its result, an array of shape ().

    Raises GradientError for anything that is not a scalar array.
    """
    loss = loss_fn(_NamedParams(params))
    if not isinstance(loss, mx.array):
        raise GradientError(
            f"The loss function returned {type(loss).__name__}; expected a scalar mx.array. "
            "Leave out .item() and float(): they cut the loss off from the parameters."
        )
    if loss.size != 1:
        raise GradientError(
            f"The loss has shape {tuple(loss.shape)}; expected a scalar. Reduce it with .mean() or .sum()."
        )
    return loss.reshape(())


def _names_with_a_path(loss_fn: LossFunction, params: Mapping[str, mx.array]) -> set[str]:
    """The parameters to which a path leads from the loss, although their gradients may be zero.

    Zero gradients prove nothing: a group of equal rewards gives them too. So send NaN back from the loss. Even a
        product with 0 keeps NaN, so it arrives at every parameter with a path.
    """
    grads = mx.grad(lambda tracked: math.nan * scalar_loss(loss_fn, tracked))(dict(params))
    return {name for name, grad in grads.items() if mx.any(mx.isnan(grad)).item()}


def _used_without_a_path(loss_fn: LossFunction, params: Mapping[str, mx.array], names: list[str]) -> list[str]:
    """The parameters among `names` from which NaN reaches the loss, but to which none comes back from it."""

    def reaches_the_loss(*names: str) -> bool:
        nans = {name: mx.full(params[name].shape, math.nan, params[name].dtype) for name in names}
        return math.isnan(scalar_loss(loss_fn, {**params, **nans}).item())

    with suppress(Exception):  # a loss function may refuse NaN with an error of its own
        if reaches_the_loss(*names):  # one forward pass, for parameters that the loss does not use
            with_path = _names_with_a_path(loss_fn, params)
            return [name for name in names if name not in with_path and reaches_the_loss(name)]
    return []
