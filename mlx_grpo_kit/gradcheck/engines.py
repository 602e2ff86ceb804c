"""The autograd engines that can be checked: functions that create leaves, read numbers and compute gradients.

torch and MLX are imported only if you pass one of their arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.tensor import Tensor
from mlx_grpo_kit.tensor.tensor import result


class AutogradEngine:
    """One kind of array with gradients. A subclass has these methods:

        is_checked(x): True if x is an array of this engine that can have a gradient.
        numbers(x): its numbers, or those of a constant, as a NumPy array.
        leaf(array, like): a fresh leaf with these numbers and the dtype of `like`.
        gradients(outputs, cotangents, leaves): d(sum of outputs * cotangents) / d(leaf) for each leaf, None where no
            gradient arrived; or its own `run`.
        complex_leaf(array): the same numbers, complex, if the engine knows a function's `operations`.

    Attributes:
        name: its name in reports.
        kind: the class of its arrays, if it is imported.
        smooth: the operations whose complex step is their derivative: analytic functions, computed without |x| inside.
    """

    name = ""
    kind: type | tuple[()] = ()
    smooth: frozenset[str] = frozenset()

    def run(
        self, fn: Callable, arguments: list[Any], leaves: list[Any], cotangents_of: Callable
    ) -> tuple[np.ndarray, list[np.ndarray | None]]:
        """All outputs as one vector, and the gradients of outputs * cotangents_of(number of outputs)."""
        outputs = self.checked_outputs(fn, arguments)
        arrays = [self.numbers(output) for output in outputs]
        grads = self.gradients(outputs, _one_for_each(arrays, cotangents_of), leaves)
        return vector(arrays), [None if grad is None else self.numbers(grad) for grad in grads]

    def is_output(self, x: Any) -> bool:
        """True if x is an array of this engine or a constant, whose derivative is 0."""
        is_own_or_numpy = isinstance(x, (int, float, np.ndarray, np.generic, self.kind))
        return is_own_or_numpy or _is_from("torch", x) or _is_from("mlx.core", x)

    def checked_outputs(self, fn: Callable, arguments: list[Any]) -> list[Any]:
        """The results of fn as a list.

        Raises:
            TypeError: fn returned something other than arrays.
            ValueError: the arrays have no numbers, complex numbers, or a dtype that is too coarse.
        """
        outputs = flat(fn(*arguments))
        for x in outputs or [None]:
            if not self.is_output(x):
                raise TypeError(
                    f"fn returned {type(x).__name__ if outputs else 'an empty list'}; expected one array of "
                    f"{self.name} or several. Does it end with `return`?"
                )
            if dtype_of(x).startswith("complex"):
                raise ValueError(
                    "fn returned complex numbers; derivatives are compared for real ones. Return the real and the "
                    "imaginary part as two outputs."
                )
            if is_coarse(dtype_of(x)):
                raise ValueError(
                    f"fn returned {dtype_of(x)}, which is too coarse for differences to say anything. "
                    "Check it in float64, or float32."
                )
        if not any(math.prod(getattr(x, "shape", ())) for x in outputs):
            raise ValueError("fn returned no numbers, so there are no derivatives to compare.")
        return outputs

    def outputs(self, fn: Callable, arguments: list[Any]) -> np.ndarray:
        return vector([self.numbers(output) for output in flat(fn(*arguments))])

    def operations(self, fn: Callable, arguments: list[Any]) -> set[str] | None:
        """The names of the operations that fn is made of, None if the engine does not know."""
        return None

    def gradient_function(self, fn: Callable, weights_of: Callable[[int], np.ndarray]) -> Callable:
        """fn's gradient as a function that can be differentiated again; of the weighted sum of its outputs."""
        raise ValueError(f"second_order=True: {self.name} has first derivatives only. torch and MLX have second ones.")


class ScalarAutograd(AutogradEngine):
    name = "Value"
    kind = Value

    def is_checked(self, x):
        return isinstance(x, Value)

    def numbers(self, x):
        return np.asarray(x.data if isinstance(x, Value) else x, dtype=np.float64)

    def leaf(self, array, like):
        return Value(float(array), label=like.label)

    def gradients(self, outputs, cotangents, leaves):
        totals = np.zeros(len(leaves))
        for output, cotangent in zip(outputs, cotangents, strict=True):
            if isinstance(output, Value):
                for leaf in leaves:
                    leaf.grad = 0.0
                output.backward()
                totals += [float(cotangent) * leaf.grad for leaf in leaves]
        return list(totals)


USUAL = frozenset([
    "Add", "Sub", "Mul", "Div", "Neg", "Exp", "Log", "Sin", "Cos", "Tanh", "Sum", "Mean", "Dot", "Transpose", "Stack"
])  # fmt: skip
"""Names of smooth operations in both `Tensor` and torch."""


class TensorAutograd(AutogradEngine):
    name = "Tensor"
    kind = Tensor
    smooth = USUAL | {"Matmul", "Outer", "Linear", "Reshape", "Swapaxes", "BroadcastTo", "Getitem", "Concatenate"}

    def is_checked(self, x):
        return isinstance(x, Tensor) and x.dtype.kind == "f"

    def numbers(self, x):
        return np.asarray(x.data if isinstance(x, Tensor) else x)

    def leaf(self, array, like):
        return Tensor(array, requires_grad=True, label=like.label, dtype=like.dtype)

    def gradients(self, outputs, cotangents, leaves):
        for output, cotangent in zip(outputs, cotangents, strict=True):
            if isinstance(output, Tensor) and output.requires_grad:
                output.backward(cotangent, retain_graph=True)
        return [leaf.grad for leaf in leaves]

    def operations(self, fn, arguments):
        nodes = [output.grad_fn for output in flat(fn(*arguments)) if isinstance(output, Tensor) and output.grad_fn]
        return _names_in_graph(nodes, lambda node: node.next_functions, lambda node: node.name())

    def complex_leaf(self, array):
        return result(array)


class TorchAutograd(AutogradEngine):
    name = "torch"
    smooth = USUAL | {"Rsub", "Mm", "Bmm", "Mv", "Addmm", "View", "UnsafeView", "T", "Expand", "Select", "Slice", "Cat"}

    def is_checked(self, x):
        return _is_from("torch", x) and x.is_floating_point()

    def numbers(self, x):
        return x.detach().cpu().numpy() if _is_from("torch", x) else np.asarray(x)

    def leaf(self, array, like):
        import torch

        return torch.tensor(array, dtype=like.dtype, device=like.device, requires_grad=True)

    def gradients(self, outputs, cotangents, leaves):
        import torch

        live = [
            (output, torch.tensor(cotangent, dtype=output.dtype, device=output.device))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if _is_from("torch", output) and output.requires_grad
        ]
        if not live:
            return [None] * len(leaves)
        return list(
            torch.autograd.grad(
                [output for output, _ in live], leaves, [cotangent for _, cotangent in live], allow_unused=True
            )
        )

    def operations(self, fn, arguments):
        nodes = [
            output.grad_fn
            for output in flat(fn(*arguments))
            if _is_from("torch", output) and output.grad_fn is not None
        ]
        return _names_in_graph(
            nodes,
            lambda node: [n for n, _ in node.next_functions if n is not None],
            lambda node: node.name().rstrip("0123456789"),
        )

    def complex_leaf(self, array):
        import torch

        return torch.tensor(array)

    def gradient_function(self, fn, weights_of):
        import torch

        def gradient(*arguments):
            outputs = torch.cat([output.reshape(-1) for output in self.checked_outputs(fn, arguments)])
            weights = torch.tensor(weights_of(len(outputs)), dtype=outputs.dtype, device=outputs.device)
            leaves = [x for x in arguments if self.is_checked(x)]
            grads = torch.autograd.grad(outputs @ weights, leaves, create_graph=True, allow_unused=True)
            return [grad for grad in grads if grad is not None]

        return gradient


class MLXAutograd(AutogradEngine):
    name = "MLX"

    def is_checked(self, x):
        return _is_from("mlx.core", x) and self._mx.issubdtype(x.dtype, self._mx.floating)

    def is_output(self, x):
        return _is_from("mlx.core", x)  # mx.vjp accepts nothing else

    @functools.cached_property
    def _mx(self):
        from mlx_grpo_kit.runtime import mx

        return mx

    def numbers(self, x):
        return np.asarray(x)

    def leaf(self, array, like):
        return self._mx.array(np.asarray(array), dtype=like.dtype)

    def run(self, fn, arguments, leaves, cotangents_of):
        positions = [next(i for i, argument in enumerate(arguments) if argument is leaf) for leaf in leaves]

        def outputs_of(*changing):
            own = list(arguments)
            for position, leaf in zip(positions, changing, strict=True):
                own[position] = leaf
            return flat(fn(*own))

        arrays = [self.numbers(output) for output in self.checked_outputs(fn, arguments)]
        cotangents = [
            self._mx.array(each.astype(array.dtype))
            for each, array in zip(_one_for_each(arrays, cotangents_of), arrays, strict=True)
        ]
        _, grads = self._mx.vjp(outputs_of, leaves, cotangents)
        return vector(arrays), [self.numbers(grad) for grad in grads]

    def gradient_function(self, fn, weights_of):
        def weighted_sum(*arguments):
            outputs = self._mx.concatenate([output.reshape(-1) for output in self.checked_outputs(fn, arguments)])
            return self._mx.sum(outputs * self._mx.array(weights_of(outputs.size)).astype(outputs.dtype))

        def gradient(*arguments):
            positions = [position for position, x in enumerate(arguments) if self.is_checked(x)]
            return self._mx.grad(weighted_sum, argnums=positions)(*arguments)

        return gradient


ENGINES = [ScalarAutograd(), TensorAutograd(), TorchAutograd(), MLXAutograd()]


def engine_of(inputs: Sequence[Any]) -> AutogradEngine:
    """The autograd engine whose arrays are among the inputs. Raises TypeError for none, or more than one."""
    found = [engine for engine in ENGINES if any(engine.is_checked(x) for x in inputs)]
    if len(found) != 1:
        what = ", ".join(type(x).__name__ for x in inputs) or "no inputs"
        raise TypeError(
            f"gradcheck(fn, *inputs) got {what}; expected at least one array of floating-point numbers of "
            "one engine: Value, Tensor, torch.Tensor or mx.array. Others are passed on as constants."
        )
    return found[0]


def flat(outputs: Any) -> list[Any]:
    """The results of fn as a list: an array, or lists and tuples of arrays."""
    if isinstance(outputs, list | tuple):
        return [output for item in outputs for output in flat(item)]
    return [outputs]


def dtype_of(x: Any) -> str:
    """The name of an array's dtype, in any of the libraries: "float32"; that of a number's type."""
    return str(getattr(x, "dtype", type(x).__name__)).rsplit(".", 1)[-1]


def is_coarse(dtype: str) -> bool:
    """True for float16, bfloat16 and float8, whose neighbours are too far apart for differences."""
    return "float" in dtype and dtype not in ("float64", "float32", "float")


def vector(arrays: list[np.ndarray]) -> np.ndarray:
    kind = np.complex128 if any(np.iscomplexobj(array) for array in arrays) else np.float64
    return np.concatenate([np.ravel(array).astype(kind) for array in arrays])


def _one_for_each(arrays: list[np.ndarray], numbers_of: Callable[[int], np.ndarray]) -> list[np.ndarray]:
    """Arrays of the same shapes, filled from the one vector `numbers_of(number of elements)`."""
    sizes = [array.size for array in arrays]
    parts = np.split(numbers_of(sum(sizes)), np.cumsum(sizes)[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _is_from(module: str, x: Any) -> bool:
    return type(x).__module__.split(".")[: module.count(".") + 1] == module.split(".") and hasattr(x, "dtype")


def _names_in_graph(nodes: list[Any], parents_of: Callable, name_of: Callable) -> set[str]:
    names, seen, to_visit = set(), set(), list(nodes)
    while to_visit:
        node = to_visit.pop()
        if node not in seen:
            seen.add(node)
            name = name_of(node)
            names |= {name.removesuffix("Backward")} - {"torch::autograd::AccumulateGrad", "AccumulateGrad", "Constant"}
            to_visit += parents_of(node)
    return names
