"""`Function`: an operation with a forward and a backward pass over NumPy arrays.

`apply` does what all operations have in common: it converts constants, adds shapes to error messages, and records the
graph.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.tensor import anomaly, tensor
from mlx_grpo_kit.tensor.dtypes import computed
from mlx_grpo_kit.tensor.graph import BackwardFunction
from mlx_grpo_kit.tensor.memory import SHARED, owner, readonly, writeable, writes_into_shared
from mlx_grpo_kit.tensor.modes import mode

if TYPE_CHECKING:
    from mlx_grpo_kit.tensor.tensor import Tensor


class Context:
    """The values that `forward` saves for `backward`, as attributes. `needs_input_grad` has one bool per input."""

    saved_names: tuple[str, ...] = ()

    def __init__(self, needs_input_grad: tuple[bool, ...] = ()):
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *arrays: np.ndarray | None) -> None:
        """Save arrays as in torch: backward finds them in `ctx.saved_tensors`. Another call replaces them."""
        self.saved_names = tuple([f"saved_{position}" for position in range(len(arrays))])
        vars(self).update(zip(self.saved_names, arrays, strict=True))

    @property
    def saved_tensors(self) -> tuple[np.ndarray | None, ...]:
        return tuple([getattr(self, name) for name in self.saved_names])


class Function:
    """An operation with a gradient. Write the two methods, then call `Square.apply(tensor)`:

        class Square(Function):
            @staticmethod
            def forward(ctx, x):            # arrays in, an array out
                ctx.x = x                   # backward needs it; ctx.save_for_backward(x) is torch's way
                return x * x

            @staticmethod
            def backward(ctx, grad):        # d(loss)/d(result) in, d(loss)/d(input) out: one array for each input
                return grad * 2 * ctx.x

    The positional arguments of apply are the inputs: tensors, or arrays and numbers, which are constants. Keyword
    arguments are passed to forward unchanged. If forward saves an array that belongs to the caller, alone or in a list,
    tuple or dictionary, the engine copies it, so the caller may change the original. Inputs, gradients and saved arrays
    are read-only, because other operations use them too. If NumPy broadcasts an input in forward, backward may return
    its gradient in the broadcast shape, and the engine sums it to the input's shape. Return None for an input without a
    gradient.

    Attributes:
        as_is: True if forward and backward receive arrays in their own dtypes; False if they receive them in the dtypes
            that torch computes in (dtypes.py).
    """

    as_is = True

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
        """Compute the result, and record the operation if an input requires a gradient.

        Raises:
            ValueError, IndexError, TypeError: forward does not accept these inputs; the message contains their shapes.
        """
        with np.errstate(all="ignore"):  # a number may be inf in float16
            operands = tensor.as_tensors(inputs)
        arrays = [readonly(x._data) if x is not None else None for x in operands]
        needs = tuple([x is not None and x._requires_grad for x in operands])
        ctx = Context(needs)
        try:
            with np.errstate(all="ignore"):
                forward = partial(cls.forward, ctx, **settings)
                array = forward(*arrays) if cls.as_is else computed(forward, arrays, inputs)
        except (ValueError, IndexError, TypeError) as error:
            shapes = " and ".join(str(array.shape) for array in arrays if array is not None)
            kind = next(kind for kind in (ValueError, IndexError, TypeError) if isinstance(error, kind))
            reason = f"forward {SHARED}" if writes_into_shared(error) else error
            raise kind(f"{cls.__name__} of {shapes}: {reason}") from error
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"{cls.__name__}.forward returned {type(array).__name__}; expected a NumPy array.")
        output = tensor.result(writeable(np.asarray(array)))

        for x in operands:
            if x is not None and owner(output._data) is owner(x._data):
                output._version = x._version  # a view: changing one changes the other
        if mode.anomaly:
            anomaly.check_forward(cls, arrays, output._data)
        if mode.recording and True in needs and output.dtype.kind == "f":
            output._requires_grad = True
            output.grad_fn = BackwardFunction(cls, ctx, operands, output, settings)
        return output
