"""Checks of batches, weights and checkpoints before they enter a backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlx_grpo_kit.backends.arrays import array_of, as_numpy, dtype_name, framework_of, ones_like, plain_name

BATCH = ("input_ids", "labels", "loss_mask")
FRAMEWORKS = ("torch", "mlx", "jax")


def checked_batch(
    batch: Mapping[str, Any], kind: type, loss_fn: Callable[..., Any], needs_tokens: bool
) -> dict[str, Any]:
    """A copy of the dictionary with a loss_mask of ones if it has none; see `Backend.forward_backward`.

    Args:
        kind: the backend's type of array.
        loss_fn: the loss function, which gets the rest of the batch by keyword.
        needs_tokens: True if a mask of zeros raises an error.

    Raises TypeError or ValueError, which names the problem, before anything is computed.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(f"The batch has type {type(batch).__name__}; expected a dictionary with {', '.join(BATCH)}.")
    for name in BATCH[:2]:
        if name not in batch:
            raise ValueError(f"The batch lacks {name!r}; it has {', '.join(map(str, batch)) or 'nothing'}.")
    for name in batch:
        if not isinstance(name, str):
            raise TypeError(f"The batch has {name!r}; expected strings as names, which become keywords of the loss.")
    for name in BATCH[1:]:
        if name in batch and not isinstance(batch[name], kind):
            raise TypeError(f"The batch's {name!r} is of type {type(batch[name]).__name__}; expected {kind.__name__}.")
    for each in _leaves(batch["input_ids"]):
        if not isinstance(each, kind) and (framework_of(each) in (*FRAMEWORKS, "numpy") or isinstance(each, list)):
            raise TypeError(f"The batch's 'input_ids' contain {type(each).__name__}; expected {kind.__name__}.")
    batch = dict(batch) if "loss_mask" in batch else {**batch, "loss_mask": ones_like(batch["labels"])}
    labels, mask = (tuple(batch[name].shape) for name in BATCH[1:])
    if labels != mask:
        raise ValueError(f"The batch's labels have shape {labels} and its loss_mask {mask}; expected the same shape.")
    if needs_tokens and not bool((batch["loss_mask"] != 0).any()):
        raise ValueError("The batch's loss_mask is 0 everywhere, so there is nothing to learn from it. Leave it out.")
    _check_call(loss_fn, [name for name in batch if name not in BATCH])
    return batch


def _leaves(inputs: Any) -> Iterator[Any]:
    yield from inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else [inputs]


def _check_call(loss_fn: Callable[..., Any], rest: list[str]) -> None:
    try:
        signature = inspect.signature(loss_fn)
    except (TypeError, ValueError):  # a function without a readable signature
        return
    try:
        signature.bind(*BATCH, **dict.fromkeys(rest))
    except TypeError as error:
        raise TypeError(
            f"The loss function cannot be called with this batch: {error}. It gets logits, labels and loss_mask, and "
            f"by keyword everything else in the batch: {', '.join(rest) or 'nothing'}."
        ) from None


def brought(weights: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The weights, with those of other frameworks converted to NumPy; `kind` is the backend's type of array.

    Call this in the thread that owns the weights: MLX arrays must not be computed in another one.
    """
    foreign = {
        name for name, each in weights.items() if not isinstance(each, kind) and framework_of(each) in FRAMEWORKS
    }
    return {name: as_numpy(each) if name in foreign else each for name, each in weights.items()}


def fitting(kind: type, what: str, arrays: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays as the backend's type `kind`, in the expected order.

    NumPy arrays are accepted too, and float32 for bfloat16, which NumPy lacks, if the conversion is exact.

    Raises ValueError or TypeError unless names, shapes and dtypes are those expected and no number is NaN.
    """
    arrays = {plain_name(str(name)): array for name, array in arrays.items()}
    if unknown := sorted(arrays.keys() - expected.keys()):
        raise ValueError(f"{what} {unknown[0]!r} is not one of this backend's {len(expected)}.")
    found = {}
    for name, other in expected.items():
        if name not in arrays:
            raise ValueError(f"{what} {name!r} is missing.")
        array = arrays[name]
        if not isinstance(array, kind | np.ndarray | np.generic):
            raise TypeError(
                f"{what} {name!r} is of type {type(array).__name__}; expected {kind.__name__} or a NumPy array."
            )
        numbers = as_numpy(array)
        found[name] = array if isinstance(array, kind) else array_of(framework_of(other), numbers, other.dtype)
        same_dtype = dtype_name(array) == dtype_name(other) or (
            (dtype_name(array), dtype_name(other)) == ("float32", "bfloat16")
            and not isinstance(array, kind)
            and np.array_equal(as_numpy(found[name]), numbers, equal_nan=True)
        )
        if tuple(array.shape) != tuple(other.shape) or not same_dtype:
            raise ValueError(
                f"{what} {name!r} has shape {tuple(array.shape)} and dtype {array.dtype}; this backend's has "
                f"{tuple(other.shape)} and {other.dtype}."
            )
        if np.isnan(numbers).any():  # with NumPy, because JAX would compile for every shape
            raise ValueError(f"{what} {name!r} contains NaN.")
    return found
