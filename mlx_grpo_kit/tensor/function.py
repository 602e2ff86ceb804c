"""`Function`: an operation, made of a forward and a backward over NumPy arrays.

Everything that all operations have in common happens in `apply`: constants, error messages, and recording the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.tensor import anomaly, tensor
from mlx_grpo_kit.tensor.graph import BackwardFunction
from mlx_grpo_kit.tensor.memory import owner
from mlx_grpo_kit.tensor.modes import mode

if TYPE_CHECKING:
    from mlx_grpo_kit.tensor.tensor import Tensor


class Context:
    """What `forward` leaves for `backward`: attributes of any name. `needs_input_grad` has a bool for each input."""

    def __init__(self, needs_input_grad: tuple[bool, ...] = ()):
        self.needs_input_grad = needs_input_grad


class Function:
    """An operation with a gradient. Write the two methods, then call `Square.apply(tensor)`:

        class Square(Function):
            @staticmethod
            def forward(ctx, x):            # arrays in, an array out
                ctx.x = x                   # what backward will need
                return x * x

            @staticmethod
            def backward(ctx, grad):        # d(loss)/d(result) in, d(loss)/d(input) out: one array for each input
                return grad * 2 * ctx.x

    Inputs are the positional arguments of apply: tensors, or arrays and numbers, which are constants. Keyword arguments
    go to forward as they are. If NumPy broadcast an input in forward, backward returns its gradient in the broadcast
    shape, and the engine sums it back. None stands for no gradient.
    """

    @staticmethod
    def forward(ctx: Context, *arrays: np.ndarray, **settings: Any) -> np.ndarray:
        raise NotImplementedError("a Function needs a forward(ctx, *arrays), a static method that returns an array.")

    @staticmethod
    def backward(ctx: Context, grad: np.ndarray) -> Any:
        raise NotImplementedError(
            "a Function needs a backward(ctx, grad), a static method that returns one gradient for each input."
        )

    @classmethod
    def apply(cls, *inputs: Any, **settings: Any) -> Tensor:
        """Compute the result, and record how, if one of the inputs requires a gradient.

        Raises:
            ValueError, IndexError, TypeError: forward cannot do with these inputs; the message has their shapes.
        """
        operands = tensor.as_tensors(inputs)
        arrays = [x._data if x is not None else None for x in operands]
        needs = tuple([x is not None and x._requires_grad for x in operands])
        ctx = Context(needs)
        try:
            with np.errstate(all="ignore"):
                array = cls.forward(ctx, *arrays, **settings)
        except (ValueError, IndexError, TypeError) as error:
            shapes = " and ".join(str(array.shape) for array in arrays if array is not None)
            kind = next(kind for kind in (ValueError, IndexError, TypeError) if isinstance(error, kind))
            raise kind(f"{cls.__name__} of {shapes}: {error}") from error
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"{cls.__name__}.forward returned {type(array).__name__}; expected a NumPy array.")
        output = tensor.result(np.asarray(array))

        for x in operands:
            if x is not None and owner(output._data) is owner(x._data):
                output._version = x._version  # a view: whoever changes the one changes the other
        if mode.anomaly:
            anomaly.check_forward(cls, arrays, output._data)
        if mode.recording and True in needs and output.dtype.kind == "f":
            output._requires_grad = True
            output.grad_fn = BackwardFunction(cls, ctx, operands, output)
        return output
