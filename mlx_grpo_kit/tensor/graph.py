"""The graph that operations record, and the backward walk through it.

Three classes of nodes, named as in PyTorch:

    AccumulateGrad    a leaf that requires a gradient, such as a weight. The walk ends here and adds to its `.grad`.
    BackwardFunction  the result of an operation. It turns the gradient of the result into gradients of the inputs.
    Constant          an input that needs no gradient, such as data. The walk does not go there.

This file does the work that all backward functions share: it adds up gradients, undoes broadcasting, and checks shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.tensor import anomaly
from mlx_grpo_kit.tensor.dtypes import widened
from mlx_grpo_kit.tensor.memory import (
    BORROWED,
    SHARED,
    arrays_in,
    mapped,
    owner,
    readonly,
    writes_into_shared,
)
from mlx_grpo_kit.tensor.modes import mode

if TYPE_CHECKING:
    from mlx_grpo_kit.tensor.function import Context, Function
    from mlx_grpo_kit.tensor.tensor import Tensor


class AutogradError(RuntimeError, ValueError):
    """An error for a gradient that cannot be computed: a RuntimeError, as in PyTorch, and also a ValueError."""


class Node:
    """The base class of the three kinds of nodes, which print like `<MulBackward>`."""

    __slots__ = ()

    def __repr__(self):
        return f"<{self.name()}>"


class AccumulateGrad(Node):
    """The end of a path, where the gradient is added to the leaf's `.grad`."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor):
        self.variable = variable

    shape = property(lambda self: self.variable.shape)
    dtype = property(lambda self: self.variable.dtype)
    next_functions = ()

    # A leaf is a single node, no matter how many operations use it.
    def __eq__(self, other):
        return isinstance(other, AccumulateGrad) and other.variable is self.variable

    def __hash__(self):
        return id(self.variable)

    def name(self) -> str:
        return "AccumulateGrad"


class Constant(Node):
    """An input that needs no gradient."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor):
        self.variable = variable

    next_functions = ()

    def name(self) -> str:
        return "Constant"


class BackwardFunction(Node):
    """One backward step: from the gradient of an operation's result to the gradients of its inputs.

    Attributes:
        next_functions: the nodes of the inputs, in order.
        shape: the shape of the operation's result.
        dtype: the dtype of the operation's result.
        retained_by: the result, if its retain_grad() was called.
        saved: the arrays of inputs and result that forward saved, with their versions.
    """

    __slots__ = ("ctx", "dtype", "function", "line", "next_functions", "retained_by", "saved", "shape")

    def __init__(
        self,
        function: type[Function],
        ctx: Context,
        tensors: list[Tensor | None],
        output: Tensor,
        settings: dict[str, Any],
    ):
        self.function, self.ctx = function, ctx
        self.shape, self.dtype = output.shape, output.dtype
        self.next_functions = tuple([node_of(tensor) for tensor in tensors])
        self.retained_by, self.saved = None, []
        versions = {id(owner(tensor._data)): tensor._version for tensor in (*tensors, output) if tensor is not None}
        if settings:
            versions |= {id(owner(array)): BORROWED for array in arrays_in([*settings.values()])}

        def keep(array: np.ndarray) -> np.ndarray:
            version = versions.get(id(owner(array)))
            if version is BORROWED:
                return readonly(array.copy())
            if version is not None:
                self.saved.append((attribute, array, version, version.count))
            return readonly(array)

        for attribute, value in vars(ctx).items():
            setattr(ctx, attribute, mapped(keep, value))
        self.line = anomaly.line() if mode.anomaly else None

    def name(self) -> str:
        return f"{self.function.__name__}Backward"

    @property
    def inputs(self) -> list[AccumulateGrad | BackwardFunction | Constant]:
        """The nodes of all inputs that are not None, for a picture of the graph."""
        return [node for node in self.next_functions if not isinstance(node, Constant) or node.variable is not None]

    def apply(self, grad: np.ndarray) -> list[np.ndarray | None]:
        """Return one gradient per input: an array with the input's shape and dtype, or None.

        Raises:
            AutogradError: the graph has been freed, a saved array was modified, or backward returned gradients that do
                not fit the inputs.
            TypeError: backward returned something other than arrays.
        """
        if self.ctx is None:
            raise AutogradError(
                f"Trying to backward through the graph a second time: the first time freed the arrays that "
                f"{self.name()} had saved. Specify retain_graph=True in the first backward(), or compute the result "
                "again."
            )
        for attribute, value, version, count in self.saved:
            if version.count != count:
                raise AutogradError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"ctx.{attribute} of shape {value.shape}, saved by {self.function.__name__}, is at version "
                    f"{version.count}; expected version {count} instead. Write x = x + 1 instead of changing x in "
                    "place, or change it after backward()."
                )
        try:
            grads = self.function.backward(self.ctx, readonly(grad if self.function.as_is else widened(grad)))
        except Exception as error:
            if writes_into_shared(error):
                raise AutogradError(f"{self.function.__name__}.backward {SHARED}") from error
            error.add_note(f"This happened in {self.function.__name__}.backward, for a result of shape {self.shape}.")
            raise
        grads = grads if isinstance(grads, tuple | list) else (grads,)
        if len(grads) != len(self.next_functions):
            raise AutogradError(
                f"function {self.name()} returned an incorrect number of gradients (expected "
                f"{len(self.next_functions)}, got {len(grads)}). Return one for each input, and None for an "
                "input without a gradient."
            )
        return [
            None if g is None or isinstance(node, Constant) else self._fitting(g, node, position)
            for position, (g, node) in enumerate(zip(grads, self.next_functions, strict=True))
        ]

    def _fitting(self, grad: Any, node: AccumulateGrad | BackwardFunction, position: int) -> np.ndarray:
        if not isinstance(grad, np.ndarray | np.generic):
            raise TypeError(
                f"function {self.name()} returned {type(grad).__name__} as its gradient at index "
                f"{position}; expected a NumPy array of shape {node.shape}."
            )
        if grad.shape != node.shape:
            try:
                grad = unbroadcast(widened(grad), node.shape)
            except ValueError:
                raise AutogradError(
                    f"function {self.name()} returned an invalid gradient at index {position} - got "
                    f"{grad.shape} but expected shape compatible with {node.shape}."
                ) from None
        return np.asarray(grad, dtype=node.dtype)


def walk_back(root: AccumulateGrad | BackwardFunction, grad: np.ndarray, retain_graph: bool) -> None:
    """Pass gradients from node to node, starting with `grad` at `root`.

    The walk is in reverse topological order, so that a node's gradient is complete before the node passes it on.
    """
    grads = {root: grad}
    for node in reversed(topological_order(root)):
        grad = grads.pop(node, None)
        if grad is None:  # no gradient arrived, because an earlier backward returned None
            continue
        if isinstance(node, AccumulateGrad):
            add_to_grad(node.variable, grad)
            continue
        if node.retained_by is not None:
            add_to_grad(node.retained_by, grad)
        input_grads = node.apply(grad)
        if mode.anomaly:
            anomaly.check_backward(node, grad, input_grads)
        if not retain_graph:
            node.ctx, node.saved = None, ()
        for parent, parent_grad in zip(node.next_functions, input_grads, strict=True):
            if parent_grad is not None:
                grads[parent] = np.asarray(grads[parent] + parent_grad) if parent in grads else parent_grad


def topological_order(root: AccumulateGrad | BackwardFunction) -> list[AccumulateGrad | BackwardFunction]:
    """List every node that a gradient can reach from `root`, each after the nodes that it passes gradients to.

    The nodes to visit are kept in a list, because Python's call stack overflows at about a thousand operations.
    """
    order, seen, to_visit = [], set(), [root]
    while to_visit:
        node = to_visit.pop()
        if node is None:  # all nodes below the next one have been visited
            order.append(to_visit.pop())
        elif node not in seen:
            seen.add(node)
            to_visit += node, None
            to_visit += [parent for parent in node.next_functions if not isinstance(parent, Constant)]
    return order


def unbroadcast(grad: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the gradient of an array of `shape` that was broadcast to the shape of `grad`.

    An element that was repeated gets the sum of its copies' gradients. Broadcasting aligns shapes at the right: it adds
    leading axes and stretches axes of length 1.

    Raises:
        ValueError: `shape` does not broadcast to the shape of `grad`.
    """
    new = grad.ndim - len(shape)
    if new < 0 or any(size not in (1, long) for size, long in zip(shape, grad.shape[new:], strict=True)):
        raise ValueError(f"shape {shape} does not broadcast to {grad.shape}.")
    stretched = [new + axis for axis, size in enumerate(shape) if size == 1]
    return grad.sum(axis=(*range(new), *stretched), keepdims=True).reshape(shape)


def node_of(tensor: Tensor | None) -> AccumulateGrad | BackwardFunction | Constant:
    """Return the node of a tensor in the graph: a Constant if the tensor is None or requires no gradient."""
    if tensor is None or not tensor._requires_grad:
        return Constant(tensor)
    return tensor.grad_fn or AccumulateGrad(tensor)


def add_to_grad(tensor: Tensor, grad: np.ndarray) -> None:
    """Add to `.grad`. Copy the first gradient, because its array may be used elsewhere and you may change `.grad`."""
    tensor.grad = grad.copy() if tensor.grad is None else np.asarray(tensor.grad + grad)
