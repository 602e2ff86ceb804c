"""The form of an operation's rule: a function for its value, and a formula for the gradient of each input.

    @rule(a=lambda g, b: g * b,
          b=lambda g, a: g * a)
    def mul(a, b):
        return a * b

`g` is the gradient of the result. Forward saves exactly the other arguments that the formulas name: an input, a
setting, `out` (the result), or `a_shape`. PyTorch writes its own table of derivatives this way (derivatives.yaml).
Formulas may leave broadcasting to the engine: `g * b` above has the shape of the result.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.tensor import tensor
from mlx_grpo_kit.tensor.function import Context, Function

if TYPE_CHECKING:
    from mlx_grpo_kit.tensor.tensor import Tensor

RULES: dict[str, Callable[..., Tensor]] = {}  # every operation written with @rule, by its name


class Rule(Function):
    """A Function made of formulas.

    Attributes:
        compute: a function from arrays and settings to an array.
        gradients: the formula of each input, in the order of compute's arguments.
        names: for each input, the arguments of its formula after `g`.
    """

    as_is = False
    compute: Callable[..., np.ndarray]
    gradients: dict[str, Callable[..., np.ndarray]]
    names: dict[str, tuple[str, ...]]

    @classmethod
    def forward(cls, ctx: Context, *arrays: np.ndarray, **settings: Any) -> np.ndarray:
        known = dict(zip(cls.gradients, arrays, strict=True)) | settings
        try:
            known["out"] = np.asarray(cls.compute(**known))
        except ValueError as error:
            if "broadcast together with shapes" in str(error):
                raise ValueError(size_mismatch(arrays)) from None
            raise
        for input_name, needed in zip(cls.gradients, ctx.needs_input_grad, strict=True):
            if needed:
                for name in cls.names[input_name]:
                    setattr(ctx, name, known[name] if name in known else known[name.removesuffix("_shape")].shape)
        return known["out"]

    @classmethod
    def backward(cls, ctx: Context, g: np.ndarray) -> tuple[np.ndarray | None, ...]:
        return tuple(
            [
                gradient(g, *[getattr(ctx, name) for name in cls.names[input_name]]) if needed else None
                for (input_name, gradient), needed in zip(cls.gradients.items(), ctx.needs_input_grad, strict=True)
            ]
        )


def rule(
    *, as_is: bool = False, **gradients: Callable[..., np.ndarray]
) -> Callable[[Callable[..., np.ndarray]], Callable[..., Tensor]]:
    """Turn a function of arrays into an operation on tensors. Arguments without a formula are settings.

    Args:
        as_is: True for an operation that returns views; otherwise it receives float16 as float32 (see dtypes.py).
        gradients: for each input, a function from the result's gradient and other arguments to the input's gradient.

    Raises:
        TypeError: a formula belongs to no argument of the function, or has an argument that does not exist.
    """

    def make(compute: Callable[..., np.ndarray]) -> Callable[..., Tensor]:
        signature = inspect.signature(compute)
        arguments = list(signature.parameters)
        defaults = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        inputs = [name for name in arguments if name in gradients]
        function = type(
            compute.__name__.title().replace("_", ""),
            (Rule,),
            {
                "as_is": as_is,
                "compute": staticmethod(compute),
                "__doc__": compute.__doc__,
                "names": {},
                "gradients": {name: gradients[name] for name in inputs},
            },
        )
        function.names = {name: _names(gradients[name]) for name in inputs}
        unknown = {name for names in function.names.values() for name in names} - {*arguments, "out"}
        unknown -= {f"{name}_shape" for name in inputs}
        if unknown or len(inputs) != len(gradients):
            raise TypeError(
                f"@rule of {compute.__name__}{signature}: its formulas name {sorted(unknown) or 'no input'}"
                f"; expected names among {arguments}, {[f'{name}_shape' for name in inputs]} and out, and each "
                "formula to belong to one of the arguments."
            )

        @functools.wraps(compute)
        def operation(*args: Any, **kwargs: Any) -> Tensor:
            if len(args) == len(inputs) == len(arguments) and not kwargs:
                return function.apply(*args)
            bound = defaults | dict(zip(arguments, args, strict=False)) | kwargs
            if len(bound) != len(arguments) or len(args) + len(kwargs) > len(arguments):
                _explain(compute.__name__, signature, args, kwargs)
            for name, value in bound.items():
                if name not in gradients and isinstance(value, tensor.Tensor):
                    bound[name] = value.data
            return function.apply(*[bound.pop(name) for name in inputs], **bound)

        operation.function = function
        RULES[compute.__name__] = operation
        return operation

    return make


def _explain(name: str, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}{signature}: {error}.") from None


@contextmanager
def replaced_gradient(operation: str, **gradients: Callable[..., np.ndarray]) -> Iterator[None]:
    """Replace formulas of `operation` inside the block: replaced_gradient("mul", a=lambda g, b: -g * b).

    Use it to break a rule on purpose and see which tests fail.

    Raises:
        KeyError: there is no rule for this operation or input.
    """
    function = RULES[operation].function
    before = {name: function.gradients[name] for name in gradients}
    _set_gradients(function, gradients)
    try:
        yield
    finally:
        _set_gradients(function, before)


def _set_gradients(function: type[Rule], gradients: dict[str, Callable[..., np.ndarray]]) -> None:
    function.gradients.update(gradients)
    function.names.update({name: _names(gradient) for name, gradient in gradients.items()})


def _names(gradient: Callable[..., np.ndarray]) -> tuple[str, ...]:
    return tuple(inspect.signature(gradient).parameters)[1:]


def size_mismatch(arrays: tuple[np.ndarray | None, ...]) -> str:
    """Explain why two arrays do not broadcast, in torch's words."""
    for a, b in itertools.combinations([array for array in arrays if array is not None], 2):
        ndim = max(a.ndim, b.ndim)
        for axis in range(-1, -ndim - 1, -1):
            sizes = [array.shape[axis] if -axis <= array.ndim else 1 for array in (a, b)]
            if sizes[0] != sizes[1] and 1 not in sizes:
                return (
                    f"The size of tensor a ({sizes[0]}) must match the size of tensor b ({sizes[1]}) at "
                    f"non-singleton dimension {ndim + axis}."
                )
    return "shapes do not broadcast."
