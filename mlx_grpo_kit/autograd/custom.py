"""A check of custom backward rules: is the `vjp` of an `mx.custom_function` the derivative of the function?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_grpo_kit.gradcheck import Element, GradcheckReport, gradcheck
from mlx_grpo_kit.runtime import mx

RTOL = 1e-3  # relative to the number itself
ROUNDINGS = 4  # plus this many times the rounding of the array's largest number


def check_vjp(custom: Callable[..., Any], plain: Callable[..., Any], *inputs: Any, seed: int = 0) -> GradcheckReport:
    """Compare a custom rule with the automatic one, and with central differences. The report prints as a sentence.

        print(check_vjp(my_silu, lambda x: x * mx.sigmoid(x), x))

    The automatic rule is exact except for rounding, so it detects errors that float32 differences cannot: more than
        0.1% in any number that is not itself lost in the rounding of its array. That rounding is measured; for most
        rules it is less than a millionth of the largest number. Differences detect that both rules are wrong, or that
        `custom` computes something other than `plain`. If the automatic rule gives no finite number (a frequent reason
        for custom rules), only differences decide, and they detect errors of 1%.

    Args:
        custom: a function under `mx.custom_function`, with its `vjp`.
        plain: the same function in MLX's own operations.
        inputs: arguments; float32 arrays are differentiated, and everything else is passed on unchanged.
        seed: the seed of the random cotangents, one per number of the output.

    Returns:
        A GradcheckReport, which is true if the rule is right. Otherwise it names the input and index of the worst
        number.

    Raises:
        TypeError: no input is a float32 array, or a function returns something other than arrays.
        ValueError: an input is empty or contains numbers that are not finite.
    """
    places = [place for place, x in enumerate(inputs) if isinstance(x, mx.array) and x.dtype == mx.float32]
    if not places:
        raise TypeError("check_vjp got no float32 array to differentiate; pass one, as check_vjp(custom, plain, x).")
    for place in places:
        if not inputs[place].size or not mx.isfinite(inputs[place]).all().item():
            raise ValueError(
                f"Input {place} has {'numbers that are not finite' if inputs[place].size else 'no numbers'}; "
                "derivatives cannot be compared there. Pass finite numbers."
            )
    names = [f"input {place}" for place in places]
    outputs, rules = zip(*(_pull_back(each, inputs, places, seed) for each in (plain, custom)), strict=True)
    theirs, ours = ([np.array(grad, np.float64) for grad in grads] for grads in rules)
    _, scaled = _pull_back(plain, inputs, places, seed, scale=3.0)

    problems = _problems(outputs, theirs, ours, names)
    report = GradcheckReport(
        "the custom rule",
        "the automatic rule",
        sum(x.size for x in theirs),
        [],
        None,
        [],
        problems,
        [],
        names,
        ours,
        theirs,
    )
    if problems:
        return report
    elements = []
    for which, (name, right, own, thrice) in enumerate(zip(names, theirs, ours, scaled, strict=True)):
        rounding = ROUNDINGS * _rounding(right, np.array(thrice, np.float64) / 3)
        for index in zip(*np.nonzero(np.isfinite(right)), strict=True) if right.ndim else [()]:
            element = Element(which, name, tuple(map(int, index)), float(own[index]), float(right[index]))
            if np.isfinite(element.numeric):
                elements.append((element.difference <= RTOL * abs(element.numeric) + rounding, element))
    elements.sort(key=lambda pair: -np.nan_to_num(pair[1].difference, nan=np.inf))
    report.failures = [element for is_right, element in elements if not is_right]
    report.worst = elements[0][1] if elements else None
    if report.failures:
        return report
    differences = gradcheck(custom, *inputs, seed=seed)
    if not differences or len(elements) < report.count:
        note = (
            f"The automatic rule has a finite number for {len(elements)} of {report.count}, and the custom rule agrees."
        )
        return replace(differences, engine="the custom rule", notes=[note, *differences.notes])
    report.notes.append("Central differences agree too.")
    return report


def _rounding(grad: np.ndarray, again: np.ndarray) -> float:
    """The rounding error of a gradient, measured by its linearity in the cotangents."""
    finite = np.isfinite(grad) & np.isfinite(again)
    last_place = np.finfo(np.float32).eps * np.abs(grad[finite]).max(initial=0.0)
    return float(max(last_place, np.abs(grad - again)[finite].max(initial=0.0)))


def _pull_back(
    function: Callable[..., Any], inputs: tuple, places: list[int], seed: int, scale: float = 1.0
) -> tuple[list, list]:
    """The outputs, and the gradients of the inputs at `places` for random cotangents times `scale`."""

    def of_arrays(*arrays: mx.array) -> list[mx.array]:
        arguments = list(inputs)
        for place, array in zip(places, arrays, strict=True):
            arguments[place] = array
        result = function(*arguments)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        if odd := [each for each in results if not isinstance(each, mx.array)]:
            name = getattr(function, "__name__", type(function).__name__)
            raise TypeError(f"{name} returned {type(odd[0]).__name__}; expected an mx.array, or several.")
        return results

    arrays = [inputs[place] for place in places]
    rng = np.random.default_rng(seed)
    cotangents = [
        mx.array((rng.choice([-1.0, 1.0], y.shape) * rng.uniform(0.5, 1.5, y.shape)).astype(np.float32)).astype(y.dtype)
        * scale
        for y in of_arrays(*arrays)
    ]
    outputs, grads = mx.vjp(of_arrays, arrays, cotangents)
    mx.eval(outputs, grads)
    return outputs, grads


def _problems(outputs: tuple, theirs: list, ours: list, names: list[str]) -> list[str]:
    plain, own = ([np.array(y, np.float64) for y in each] for each in outputs)
    if [y.shape for y in plain] != [y.shape for y in own]:
        return [f"The custom function returns shape {own[0].shape}, the plain one {plain[0].shape}."]
    for place, (right, other) in enumerate(zip(plain, own, strict=True)):
        off = ~np.isclose(other, right, rtol=RTOL, atol=1e-6, equal_nan=True)
        if off.any():
            index = tuple(map(int, np.argwhere(off)[0]))
            return [
                f"The two functions compute different things: output {place} at index {index} is {other[index]:.6g} "
                f"for the custom one and {right[index]:.6g} for the plain one."
            ]
    return [
        f"The rule's gradient of {name} has shape {own.shape}; expected {right.shape}, the input's. MLX does not "
        "notice. Sum over the axes that were broadcast."
        for name, right, own in zip(names, theirs, ours, strict=True)
        if right.shape != own.shape
    ]
