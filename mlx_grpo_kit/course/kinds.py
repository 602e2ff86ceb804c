"""The conversion of right results in another kind of array or list to the kind that later cells need."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.compare import as_numpy, shape_of
from mlx_grpo_kit.course.exercise import Exercise


def as_the_solution_returns(exercise: Exercise, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer`, whose results come in the kinds that the exercise's solution returns: MLX's arrays, lists, numbers ...

    The solution is run on the first case when the answer is first called. A class is returned unchanged.
    """
    if not inspect.isroutine(answer):
        return answer
    id = exercise.id  # and not the exercise: `compile` would find the arrays of its cases around the function

    @functools.wraps(answer)
    def call(*arguments: Any, **named: Any) -> Any:
        return in_kind_of(example_of(id), answer(*arguments, **named))

    return call


@functools.cache
def example_of(id: str) -> Any:
    """The solution's own result for the first case of exercise `id`; None if it cannot be found out."""
    exercise = find(id)
    returned: list[Any] = []

    @functools.wraps(exercise.solution)
    def spy(*arguments: Any, **named: Any) -> Any:
        returned.append(exercise.solution(*arguments, **named))
        return returned[-1]

    try:
        exercise.run(spy, *copy.deepcopy(exercise.cases[0]))
    except Exception:
        return None
    return returned[0] if returned else None


def in_kind_of(example: Any, result: Any) -> Any:
    """`result` in the kinds of `example`, part by part. Parts without such a kind are unchanged."""
    if type(result) is type(example) and not isinstance(example, list | tuple | dict):
        return result
    is_array = shape_of(result) is not None
    if isinstance(example, Mapping):
        if not isinstance(result, Mapping):
            return result
        return {key: in_kind_of(example.get(key), value) for key, value in result.items()}
    parts = _parts(result) if is_array else result
    if type(example) is tuple:
        fits = isinstance(parts, list | tuple) and len(parts) == len(example)
        return tuple(map(in_kind_of, example, parts)) if fits else result
    if isinstance(example, list):
        if not isinstance(parts, list | tuple) or not example:
            return [*parts] if isinstance(parts, list | tuple) else result
        return [in_kind_of(example[min(place, len(example) - 1)], part) for place, part in enumerate(parts)]
    if isinstance(example, bool | int | float | str) and is_array and shape_of(result) == ():
        return result.item()
    library = type(example).__module__.partition(".")[0]
    if library == "mlx" and (is_array or isinstance(result, list | tuple | int | float)):
        return _to_mlx(result, example)
    if library == "numpy" and (is_array or isinstance(result, list | tuple)):
        return _of_dtype(as_numpy(result), example)
    return result


def _parts(array: Any) -> Any:
    return list(array) if shape_of(array) else array


def _of_dtype(array: Any, example: Any) -> Any:
    return array.astype(example.dtype) if (array.dtype.kind, example.dtype.kind) == ("f", "f") else array


def _to_mlx(result: Any, example: Any) -> Any:
    from mlx_grpo_kit.runtime import mx

    if isinstance(result, mx.array):
        return result
    if isinstance(result, list | tuple) and any(isinstance(each, mx.array) for each in result):
        return mx.stack([_to_mlx(each, example) for each in result])  # keeps the gradient of numbers that have one
    array = mx.array(as_numpy(result))
    floats = mx.issubdtype(array.dtype, mx.floating), mx.issubdtype(example.dtype, mx.floating)
    return array.astype(example.dtype) if floats == (True, True) else array
