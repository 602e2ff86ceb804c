"""Examine a layer that a reader has invented: with gradcheck, and in lockstep with its twin in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.gradcheck import gradcheck, lockstep
from mlx_grpo_kit.tensor import nn

LARGEST = 2_000  # numbers in the examples, because gradcheck moves each of them
PASSED = Told("a layer that passes gradcheck and lockstep")


def examine_layer(make: Callable[[int], Any], count: int) -> Any:
    """PASSED, or the fault of what `make(count)` returns, in words: (layer, its twin in torch, `count` examples).

    Parameters and examples are moved a little first, away from values that hide mistakes, such as 0 and 1.
    Errors of gradcheck, lockstep and the layer are passed on.
    """
    given = make(count)
    if given is None:
        return None
    fault = _no_three_things(given, count)
    if fault:
        return Told(fault)
    layer, twin, x = given
    rng = np.random.default_rng(0)
    twin.double()
    for parameter in twin.parameters():
        parameter.data.copy_(parameter.new_tensor(_moved(parameter.detach().numpy(), rng)))
    layer.astype(np.float64).load_state_dict(twin.state_dict())
    x = _moved(x, rng)
    other = rng.permutation(x.ravel()).reshape(x.shape)
    fault = _not_of_its_own(layer, x) or _forgetful(layer, x, other) or _wrong_gradient(layer, x)
    if fault:
        return Told(fault)
    wanted = rng.normal(size=layer(T.Tensor(x)).shape)
    batches = [(_moved(x, rng), wanted) for _ in range(5)]
    list(lockstep(layer, twin, batches, loss=(_square, _square), optimizer="Adam", lr=0.01))
    return PASSED


def _no_three_things(given: Any, count: int) -> str:
    import torch

    if not isinstance(given, (tuple, list)) or len(given) != 3:
        return f"{show(given)} instead of three things: layer, twin and x"
    layer, twin, x = given
    if not isinstance(layer, nn.Module):
        return f"a layer that is a {type(layer).__name__}, not an nn.Module"
    if not isinstance(twin, torch.nn.Module):
        return f"a twin that is a {type(twin).__name__}, not a torch.nn.Module"
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        return f"an x that is {show(x)}: it has to be a NumPy array of floating-point numbers"
    if x.ndim < 2 or len(x) != count:
        return f"an x of shape {x.shape}: it needs two or more axes, the first of length {count}, one per example"
    if x.size > LARGEST:
        return f"an x of {x.size:,} numbers: use at most {LARGEST:,}"
    if not layer.parameters():
        return "a layer without parameters: `self.name = T.Tensor(..., requires_grad=True)` is one"
    return ""


def _not_of_its_own(layer: nn.Module, x: np.ndarray) -> str:
    output = layer(T.Tensor(x, requires_grad=True))
    if not isinstance(output, T.Tensor) or not output.requires_grad:
        return f"an output, {show(output)}, that has no graph: no gradient can get back from it"
    if output.dtype != np.float64:
        return f"an output of {output.dtype} for an x of float64, so that gradcheck sees only half of the digits"
    if not np.isfinite(output.data).all():
        return "an output with nan or inf in it"
    modules = {function.__module__ for function in _functions(output)}
    if all(name.startswith("mlx_grpo_kit.tensor") for name in modules):
        return "a layer made only of the kit's operations: write a T.Function with your own backward"
    return ""


def _functions(output: T.Tensor) -> Iterator[type[T.Function]]:
    """Yield the functions in the graph of a result."""
    nodes, seen = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        nodes += node.next_functions
        if hasattr(node, "function"):
            yield node.function


def _forgetful(layer: nn.Module, x: np.ndarray, other: np.ndarray) -> str:
    """The fault, in words, if backward uses the numbers of the latest forward and not those of its own."""
    grads = []
    for later in (False, True):
        leaf = T.Tensor(x, requires_grad=True)
        total = T.sum(layer(leaf))
        if later:
            layer(T.Tensor(other))
        total.backward()
        grads.append(np.zeros_like(x) if leaf.grad is None else leaf.grad)
    if np.allclose(*grads, rtol=1e-9, atol=1e-12):
        return ""
    return "a backward that changes when the layer is called again: keep what it needs in ctx, nowhere else"


def _wrong_gradient(layer: nn.Module, x: np.ndarray) -> str:
    places = [
        (module, attribute, value)
        for _, module in layer.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, T.Tensor) and value.requires_grad
    ]
    names = [attribute for _, attribute, _ in places]

    def forward(x: T.Tensor, *parameters: T.Tensor) -> T.Tensor:
        for (module, attribute, _), parameter in zip(places, parameters, strict=True):
            setattr(module, attribute, parameter)
        return layer(x)

    try:
        leaves = [T.Tensor(array, requires_grad=True) for array in (x, *(value.data for *_, value in places))]
        report = gradcheck(forward, *leaves)
        T.sum(T.mul(forward(*leaves), np.random.default_rng(1).normal(size=forward(*leaves).shape))).backward()
    finally:
        for module, attribute, value in places:
            setattr(module, attribute, value)
    if report.problems:
        return f"a layer that cannot be examined: {' '.join(report.problems)}"
    if report.failures:
        worst = report.failures[0]
        place = f"{['x', *names][worst.input]}{list(worst.index)}"
        return (
            f"a wrong gradient: for {place} backward gives {worst.analytic:.4g}, "
            f"but differences give {worst.numeric:.4g}"
        )
    if not report:
        return f"a gradient that is not a slope: {report.kinks[0]}"
    idle = [name for name, leaf in zip(names, leaves[1:], strict=True) if leaf.grad is None or not leaf.grad.any()]
    return f"a parameter, `{idle[0]}`, whose gradient is 0 everywhere, so that it can never learn" if idle else ""


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A copy of an array with each number up to a tenth larger, plus a little; positive numbers stay positive."""
    array = np.asarray(array, dtype=np.float64)
    return array * (1 + 0.1 * rng.uniform(size=array.shape)) + rng.uniform(1e-3, 1e-2, size=array.shape)


def _square(outputs: Any, wanted: Any) -> Any:
    """The mean square, for this kit's tensors and for torch's."""
    difference = outputs - wanted
    return (difference * difference).mean()
