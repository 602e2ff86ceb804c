"""Second derivatives of a loss over named parameters: Hessian-vector products, and small Hessians.

The Hessian H has a row and a column for every single parameter: H[i, j] is how fast the slope for parameter i changes
with parameter j. You seldom need the whole matrix. H @ v is the gradient of a number, <gradient, v>, so it costs about
two gradients for any number of parameters (Pearlmutter, Fast Exact Multiplication by the Hessian, 1994).
"""

from __future__ import annotations

from collections.abc import Mapping

from mlx_grpo_kit.autograd.gradients import (
    GradientError,
    LossFunction,
    check_parameters,
    scalar_loss,
    value_and_grad,
)
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.fork import refuse_after_fork

MOST_PARAMETERS = 1000  # for a full Hessian: a million numbers, from a thousand products


def hvp(loss_fn: LossFunction, params: Mapping[str, mx.array], vector: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The Hessian of the loss times `vector`, without computing the Hessian.

    Args:
        loss_fn: a function from a dictionary like `params` to a scalar.
        params: floating-point arrays by name.
        vector: a direction: arrays with the names and shapes of `params`.

    Returns:
        The derivative of the gradient along `vector`: evaluated arrays with the names and shapes of `params`.

    Raises:
        GradientError: like `value_and_grad`, and if `vector` does not match `params`.
    """
    refuse_after_fork()
    check_parameters(params)
    check_parameters(vector, "Direction")
    if vector.keys() != params.keys():
        odd = sorted(vector.keys() ^ params.keys(), key=str)[0]
        raise GradientError(f"vector and params have different names: {odd!r} is only in one of them.")
    for name, value in params.items():
        if tuple(vector[name].shape) != tuple(value.shape):
            raise GradientError(
                f"vector[{name!r}] has shape {tuple(vector[name].shape)}; the parameter has {tuple(value.shape)}."
            )
    product = _along(loss_fn, dict(params), dict(vector))
    mx.eval(product)
    _explain_if_odd(loss_fn, params, product)
    return product


def hessian(loss_fn: LossFunction, params: Mapping[str, mx.array]) -> dict[str, dict[str, mx.array]]:
    """All second derivatives of the loss, for few parameters: n parameters have n^2 of them.

    Args:
        loss_fn: a function from a dictionary like `params` to a scalar.
        params: floating-point arrays by name, 1,000 numbers at most.

    Returns:
        result[a][b] of shape (*params[a].shape, *params[b].shape), evaluated, as in torch.func.hessian.

    Raises:
        GradientError: like `value_and_grad`, and if there are too many parameters.
    """
    refuse_after_fork()
    check_parameters(params)
    count = sum(value.size for value in params.values())
    if count > MOST_PARAMETERS:
        raise GradientError(
            f"The Hessian of {count:,} parameters has {count**2:,} numbers; expected at most {MOST_PARAMETERS:,} "
            "parameters. hvp(loss_fn, params, vector) multiplies it by a vector without computing it."
        )
    result = {}
    for row, of_row in params.items():
        products = []
        for place in range(of_row.size):
            unit = {name: mx.zeros_like(value) for name, value in params.items()}
            unit[row] = (mx.arange(of_row.size) == place).astype(of_row.dtype).reshape(of_row.shape)
            products.append(_along(loss_fn, dict(params), unit))
            mx.eval(products[-1])
        result[row] = {
            column: mx.stack([product[column] for product in products]).reshape((*of_row.shape, *value.shape))
            for column, value in params.items()
        }
    mx.eval(result)
    _explain_if_odd(loss_fn, params, {(row, name): part for row in result for name, part in result[row].items()})
    return result


def _explain_if_odd(loss_fn: LossFunction, params: Mapping[str, mx.array], second: Mapping[object, mx.array]) -> None:
    """If all is 0 or something is NaN, call `value_and_grad`, which raises an error if it finds the reason."""
    zero = not any(mx.any(part != 0).item() for part in second.values())
    if zero or any(mx.any(mx.isnan(part)).item() for part in second.values()):
        value_and_grad(loss_fn, params)


def _along(loss_fn: LossFunction, params: dict[str, mx.array], vector: dict[str, mx.array]) -> dict[str, mx.array]:
    """The gradient of <gradient, vector>.

    Every operation of MLX supports this; few custom rules have a forward derivative.
    """
    gradient = mx.grad(lambda tracked: scalar_loss(loss_fn, tracked))

    def slope(tracked: dict[str, mx.array]) -> mx.array:
        grads = gradient(tracked)
        return sum((grads[name].astype(mx.float32) * vector[name]).sum() for name in grads)

    return mx.grad(slope)(params)
