"""`gradcheck`: check whether an autograd engine's gradient is the derivative of the function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlx_grpo_kit.gradcheck.comparison import Comparison
from mlx_grpo_kit.gradcheck.differences import Probe
from mlx_grpo_kit.gradcheck.engines import AutogradEngine, dtype_of, engine_of, is_coarse, vector
from mlx_grpo_kit.gradcheck.report import GradcheckReport


def gradcheck(fn: Callable, *inputs: Any, second_order: bool = False, seed: int = 0) -> GradcheckReport:
    """Compare the engine's gradient of fn with slopes from the values of fn. The report is true if it passed.

        print(gradcheck(lambda a, b: (a @ b).sum(), T.Tensor(x), T.Tensor(y)))

    Slopes come from the complex step if every operation is analytic, and from central differences otherwise. Beyond
    2,000 derivatives, random sums of them are compared, part by part, and a wrong part is halved until the wrong
    elements are found; the report's `visible` is the smallest single error that this detects. At a kink any slope
    between the left and the right one passes; equal elements at kinks, as at a tie of a max, are also moved together.
    The check also requires that fn gives the same result twice and does not change its inputs.

    Args:
        fn: a function that returns one array or several, of any shape. They are weighted at random and summed, because
            a plain sum hides errors that cancel (the gradient of softmax(x).sum() is 0).
        inputs: Values, Tensors, torch tensors or mx.arrays, of one kind; everything else is passed on unchanged.
        second_order: check the gradient of the gradient (torch, MLX).
        seed: the seed of the random weights.

    Raises:
        TypeError: no input can be checked, or fn returned something other than arrays.
        ValueError: a dtype is too coarse for a check, there are no numbers to compare, or an output is complex.
    """
    engine = engine_of(inputs)
    if second_order:
        fn = engine.gradient_function(fn, lambda count: _weights(count, seed))
    program = _Program(engine, fn, inputs, seed)
    notes = _advice(program.arrays)
    outputs, grads, problems = program.differentiate_twice()
    if problems:  # differences of such a function are meaningless
        return GradcheckReport(engine.name, "", 0, [], None, [], problems, notes, program.names, grads, grads)
    probe = Probe(program.evaluate, program.arrays, _weights(outputs.size, seed))
    return Comparison(probe, grads, program.names, program.is_analytic(), seed).report(engine.name, notes)


def check_gradient(
    forward_fn: Callable[[np.ndarray], np.ndarray],
    backward_fn: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    epsilon: float | None = None,
) -> GradcheckReport:
    """Check a separate backward pass. The report is true if it is right.

    Args:
        forward_fn: x -> y, NumPy arrays.
        backward_fn: (gradient of y, x) -> gradient of x.
        x: the point of the check, float64 or float32; other dtypes are converted to float64.
        epsilon: the step of the central differences, relative to max(1, |x|). By default the best for the dtype: 1e-5
            in float64, 2e-3 in float32.

    Raises:
        ValueError: backward_fn returned a shape other than that of x, x is float16 or empty, or epsilon is not above 0.
        TypeError: forward_fn returned something other than real numbers.
    """
    if epsilon is not None and not 0 < epsilon < np.inf:
        raise ValueError(f"epsilon is {epsilon}; expected a step above 0, such as 1e-5.")
    x = np.array(x)
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    _refuse_coarse([dtype_of(x)], ["x"])
    _refuse_empty([x], ["x"])
    notes = _advice([x])

    def differentiate() -> tuple[np.ndarray, np.ndarray]:
        y = np.asarray(forward_fn(x.copy()))
        if y.dtype.kind not in "fiub" or not y.size:
            raise TypeError(f"forward_fn returned {y.dtype} of shape {y.shape}; expected an array of real numbers.")
        weights = _weights(y.size, 0).reshape(y.shape).astype(x.dtype)
        return y, np.asarray(backward_fn(weights, x.copy()))

    (y, grad), again = differentiate(), differentiate()
    if grad.shape != x.shape:
        raise ValueError(
            f"backward_fn returned shape {grad.shape}; expected the shape of x, {x.shape}. Sum over the "
            "axes that were broadcast."
        )
    problems = _differences_of_two_calls("forward_fn or backward_fn", (y, grad), again)
    if problems:
        return GradcheckReport("backward_fn", "", 0, [], None, [], problems, notes, ["x"], [grad], [grad])
    probe = Probe(lambda arrays: vector([np.asarray(forward_fn(arrays[0].copy()))]), [x], _weights(y.size, 0))
    return Comparison(probe, [grad], ["x"], step=epsilon).report("backward_fn", notes)


class _Program:
    """fn with its inputs, as a function of the arrays in those inputs that can have a gradient."""

    def __init__(self, engine: AutogradEngine, fn: Callable, inputs: tuple, seed: int):
        self.engine, self.fn, self.inputs, self.seed = engine, fn, inputs, seed
        self.checked = [position for position, x in enumerate(inputs) if engine.is_checked(x)]
        self.names = [_name(inputs[position], position) for position in self.checked]
        _refuse_coarse([dtype_of(inputs[position]) for position in self.checked], self.names)
        self.arrays = [np.array(engine.numbers(inputs[position])) for position in self.checked]
        _refuse_empty(self.arrays, self.names)

    def evaluate(self, arrays: list[np.ndarray]) -> np.ndarray:
        """The outputs as one vector."""
        return self.engine.outputs(self.fn, self._arguments(self._leaves(arrays)))

    def differentiate(self) -> tuple[np.ndarray, list[np.ndarray], list[str]]:
        """The outputs, the engine's gradients, and the names of inputs that fn has changed."""
        leaves = self._leaves(self.arrays)
        outputs, grads = self.engine.run(
            self.fn, self._arguments(leaves), leaves, lambda count: _weights(count, self.seed)
        )
        changed = [
            name
            for name, leaf, array in zip(self.names, leaves, self.arrays, strict=True)
            if not np.array_equal(self.engine.numbers(leaf), array, equal_nan=True)
        ]
        return (
            outputs,
            [
                np.zeros_like(array) if grad is None else grad.reshape(array.shape)
                for grad, array in zip(grads, self.arrays, strict=True)
            ],
            changed,
        )

    def differentiate_twice(self) -> tuple[np.ndarray, list[np.ndarray], list[str]]:
        """The outputs, the gradients, and problems of fn itself."""
        outputs, grads, changed = self.differentiate()
        if changed:
            return (
                outputs,
                grads,
                [
                    f"fn changed {' and '.join(changed)} in place. A function to be differentiated "
                    "leaves its inputs alone."
                ],
            )
        outputs_again, grads_again, _ = self.differentiate()
        return outputs, grads, _differences_of_two_calls("fn", [outputs, *grads], [outputs_again, *grads_again])

    def is_analytic(self) -> bool:
        """True if the graph has only analytic operations and fn accepts complex numbers. A comparison does not."""
        operations = self.engine.operations(self.fn, self._arguments(self._leaves(self.arrays)))
        if not operations or not operations <= self.engine.smooth or any(x.dtype != np.float64 for x in self.arrays):
            return False
        try:
            on_complex = self.evaluate([array.astype(np.complex128) for array in self.arrays])
        except (TypeError, ValueError, RuntimeError):
            return False
        return np.allclose(on_complex, self.evaluate(self.arrays), equal_nan=True)

    def _leaves(self, arrays: list[np.ndarray]) -> list[Any]:
        if any(np.iscomplexobj(array) for array in arrays):
            return [self.engine.complex_leaf(array) for array in arrays]
        return [
            self.engine.leaf(array, self.inputs[position]) for array, position in zip(arrays, self.checked, strict=True)
        ]

    def _arguments(self, leaves: list[Any]) -> list[Any]:
        arguments = list(self.inputs)
        for leaf, position in zip(leaves, self.checked, strict=True):
            arguments[position] = leaf
        return arguments


def _weights(count: int, seed: int) -> np.ndarray:
    """Random signs and sizes around 1, but 1 for a single output, so that the report shows its own derivatives."""
    rng = np.random.default_rng(seed)
    return np.ones(1) if count == 1 else rng.choice([-1.0, 1.0], count) * rng.uniform(0.5, 1.5, count)


def _differences_of_two_calls(name: str, arrays: Sequence[np.ndarray], again: Sequence[np.ndarray]) -> list[str]:
    with np.errstate(invalid="ignore"):  # inf - inf
        off = [np.abs(a - b) for a, b in zip(arrays, again, strict=True)]
    largest = max(float(np.max(gap, initial=0.0, where=~np.isnan(gap))) for gap in off)
    if not largest:
        return []
    return [
        f"{name} is not deterministic: two calls with the same inputs differ by up to {largest:.2g}. Fix the random "
        "numbers."
    ]


def _refuse_coarse(dtypes: list[str], names: list[str]) -> None:
    for dtype, name in zip(dtypes, names, strict=True):
        if is_coarse(dtype):
            raise ValueError(
                f"{name} has dtype {dtype}, which is too coarse for differences to say anything. "
                "Check the function in float64, or float32."
            )


def _refuse_empty(arrays: list[np.ndarray], names: list[str]) -> None:
    if not any(array.size for array in arrays):
        raise ValueError(
            f"{' and '.join(names)} of shape {' and '.join(str(array.shape) for array in arrays)}: there is no number, "
            "so there are no derivatives to compare. Pass arrays that are not empty."
        )


def _advice(arrays: list[np.ndarray]) -> list[str]:
    if any(array.dtype == np.float32 for array in arrays):
        return [
            "float32 leaves about three digits to a difference of two values: errors below 1% pass. Check in "
            "float64 where the engine can."
        ]
    return []


def _name(x: Any, position: int) -> str:
    label = getattr(x, "label", "")
    return f"{label!r}" if label else f"input {position}"
