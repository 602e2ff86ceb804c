"""`gradcheck`: is the gradient that an engine computes the derivative of the function?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlx_grpo_kit.gradcheck.comparison import Comparison
from mlx_grpo_kit.gradcheck.differences import PRECISIONS, Probe
from mlx_grpo_kit.gradcheck.engines import Engine, engine_of, vector
from mlx_grpo_kit.gradcheck.report import GradcheckReport


def gradcheck(fn: Callable, *inputs: Any, second_order: bool = False, seed: int = 0) -> GradcheckReport:
    """Compare the engine's gradient of fn with what the values of fn say. Prints like a sentence; true if it passed.

        print(gradcheck(lambda a, b: (a @ b).sum(), T.Tensor(x), T.Tensor(y)))

    inputs: Values, Tensors, torch tensors or mx.arrays, of one kind; everything else is passed on as it is. fn returns
    one array or several, of any shape: they are weighted at random and summed, since a plain sum hides errors that
    cancel (the gradient of softmax(x).sum() is 0).

    Numbers come from the complex step where every operation is analytic, from central differences elsewhere. Beyond
    2,000 derivatives, sums of them with random signs are compared, and a sum that differs is halved until the wrong
    elements are found. At a kink any slope between the left one and the right one passes. Also checked: that fn gives
    the same result twice and leaves its inputs alone. `second_order` checks the gradient of the gradient (torch, MLX).

    Raises TypeError when no input can be checked, ValueError for a dtype too coarse to tell anything.
    """
    engine = engine_of(inputs)
    if second_order:
        fn = engine.gradient_function(fn, lambda count: _weights(count, seed))
    checked = [position for position, x in enumerate(inputs) if engine.is_checked(x)]
    arrays = [np.array(engine.numbers(inputs[position])) for position in checked]
    names = [_name(inputs[position], position) for position in checked]
    problems, notes = [], _advice(arrays, names)

    def arguments(numbers: list[np.ndarray], make: Callable) -> tuple[list[Any], list[Any]]:
        leaves = [make(array, inputs[position]) for array, position in zip(numbers, checked, strict=True)]
        own = list(inputs)
        for leaf, position in zip(leaves, checked, strict=True):
            own[position] = leaf
        return own, leaves

    def evaluate(numbers: list[np.ndarray]) -> np.ndarray:
        is_complex = any(np.iscomplexobj(array) for array in numbers)
        make = (lambda array, like: engine.complex_leaf(array)) if is_complex else engine.leaf
        return engine.outputs(fn, arguments(numbers, make)[0])

    def analytic() -> tuple[np.ndarray, list[np.ndarray]]:
        own, leaves = arguments(arrays, engine.leaf)
        outputs, grads = engine.run(fn, own, leaves, lambda count: _weights(count, seed))
        for leaf, array, name in zip(leaves, arrays, names, strict=True):
            if not np.array_equal(engine.numbers(leaf), array, equal_nan=True):
                problems.append(f"fn changed {name} in place. A function to be differentiated leaves its inputs alone.")
        return outputs, [np.zeros_like(array) if grad is None else grad.reshape(array.shape)
                         for grad, array in zip(grads, arrays, strict=True)]

    outputs, grads = analytic()
    if not problems:
        again, grads_again = analytic()
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in
                   zip([outputs, *grads], [again, *grads_again], strict=True)):
            problems.append("fn is not deterministic: two calls with the same inputs differ by up to "
                            f"{_largest([outputs, *grads], [again, *grads_again]):.2g}. Fix its random numbers.")
    if problems:  # differences of such a function say nothing
        return GradcheckReport(engine.name, "", 0, [], None, [], problems, notes, names, grads, grads)
    probe = Probe(evaluate, arrays, _weights(outputs.size, seed))
    is_analytic = _is_analytic(engine, fn, arguments(arrays, engine.leaf)[0], probe)
    return Comparison(probe, grads, names, is_analytic, seed).report(engine.name, notes)


def check_gradient(forward_fn: Callable[[np.ndarray], np.ndarray],
                   backward_fn: Callable[[np.ndarray, np.ndarray], np.ndarray], x: np.ndarray) -> GradcheckReport:
    """Check a backward pass that stands by itself: forward_fn(x) -> y, backward_fn(grad_of_y, x) -> grad_of_x.

    NumPy arrays in and out. The report is true if the backward is right. Raises ValueError when it returns another
    shape than x's.
    """
    x = np.array(x)
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    y = np.asarray(forward_fn(x.copy()))
    weights = _weights(y.size, 0)
    grad = np.asarray(backward_fn(weights.reshape(y.shape).astype(x.dtype), x.copy()))
    if grad.shape != x.shape:
        raise ValueError(f"backward_fn returned shape {grad.shape}; expected the shape of x, {x.shape}. Sum over the "
                         "axes that were broadcast.")
    probe = Probe(lambda arrays: vector([np.asarray(forward_fn(arrays[0].copy()))]), [x], weights)
    return Comparison(probe, [grad], ["x"]).report("backward_fn", _advice([x], ["x"]))


def _weights(count: int, seed: int) -> np.ndarray:
    """Random signs and sizes around 1, but a single output as it is, so that the report's numbers are the reader's."""
    rng = np.random.default_rng(seed)
    return np.ones(1) if count == 1 else rng.choice([-1.0, 1.0], count) * rng.uniform(0.5, 1.5, count)


def _advice(arrays: list[np.ndarray], names: list[str]) -> list[str]:
    for array, name in zip(arrays, names, strict=True):
        if array.dtype not in PRECISIONS:
            raise ValueError(f"{name} has dtype {array.dtype}, which is too coarse for differences to say anything. "
                             "Check the function in float64, or float32.")
    if any(array.dtype == np.float32 for array in arrays):
        return ["float32 leaves about three digits to a difference of two values: errors below 1% pass. Check in "
                "float64 where the engine can."]
    return []


def _is_analytic(engine: Engine, fn: Callable, arguments: list[Any], probe: Probe) -> bool:
    """Whether the graph holds analytic operations only, and fn takes complex numbers: a comparison refuses them."""
    operations = engine.operations(fn, arguments)
    if not operations or not operations <= engine.smooth or any(x.dtype != np.float64 for x in probe.arrays):
        return False
    try:
        return np.allclose(probe.evaluate([array.astype(np.complex128) for array in probe.arrays]), probe.here)
    except (TypeError, ValueError, RuntimeError):
        return False


def _name(x: Any, position: int) -> str:
    label = getattr(x, "label", "")
    return f"{label!r}" if label else f"input {position}"


def _largest(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(ours, theirs, strict=True))
