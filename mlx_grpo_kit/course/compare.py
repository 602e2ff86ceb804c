"""Comparing what an answer gave with what was expected, and showing both in a message."""

from __future__ import annotations

import inspect
import math
import numbers
import sys
from collections.abc import Mapping
from typing import Any

RELATIVE, ABSOLUTE = 1e-6, 1e-9  # how near a number has to be
# In arrays of these: of the number itself, and of the largest number of its array (at least of 1), since what is left
# of large numbers that cancel has their rounding error.
COARSE = {"float32": (1e-4, 1e-5), "float16": (1e-2, 1e-2), "bfloat16": (5e-2, 5e-2)}
DIGITS = 6  # of a number in a message, if they are enough
LONGEST_TEXT = 160  # of a value in a message
MOST_NUMBERS = 12  # of an array; a larger one is told by its shape


class Told(str):
    """What an answer did, in words: it stands in a message as it is, without quotes."""

    __repr__ = str.__str__


class Spoiled:
    """What an answer gave, `result`, that also changed the numbers it was given. It is never right."""

    def __init__(self, result: Any):
        self.result = result


def same(got: Any, expected: Any) -> bool:
    """Equal, numbers up to rounding, in lists, tuples, dictionaries and arrays too; exceptions by their kind."""
    if isinstance(got, Spoiled) or isinstance(expected, Spoiled):
        return type(got) is type(expected) and same(got.result, expected.result)
    if isinstance(expected, BaseException) or isinstance(got, BaseException):
        return type(got) is type(expected)
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, numbers.Real):
        relative, absolute = _nearness(got) if type(got).__module__ == "mlx.core" else (RELATIVE, ABSOLUTE)
        got = getattr(got, "item", lambda: got)() if getattr(got, "shape", None) == () else got
        return isinstance(got, numbers.Real) and (
            math.isclose(got, expected, rel_tol=relative, abs_tol=absolute) or (got != got and expected != expected)
        )
    if isinstance(expected, Mapping):
        return (
            isinstance(got, Mapping)
            and got.keys() == expected.keys()
            and all(same(got[key], value) for key, value in expected.items())
        )
    if isinstance(expected, (list, tuple)):
        return isinstance(got, (list, tuple)) and len(got) == len(expected) and all(map(same, got, expected))
    if hasattr(expected, "shape"):
        import numpy as np

        try:
            relative, absolute = _nearness(expected)
            got, expected = as_numpy(got), as_numpy(expected)
            return got.shape == expected.shape and bool(
                np.allclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)
            )
        except (TypeError, ValueError, RuntimeError):  # not numbers, uneven rows, a tensor that keeps its history
            return False
    if isinstance(expected, str) and isinstance(got, str):
        return got.strip().lower() == expected.strip().lower()
    try:
        return bool(got == expected)
    except (TypeError, ValueError):  # an array has no single truth value
        return False


def told_apart(got: Any, expected: Any) -> str:
    """What was given and what was expected: of several arrays the first wrong one, of a large one a wrong element."""
    if isinstance(got, Spoiled):
        if not same(got.result, expected):
            return told_apart(got.result, expected)
        return "the right result, but also new numbers in what it was given (work on a copy of that)"
    if (
        isinstance(expected, (list, tuple))
        and isinstance(got, (list, tuple))
        and len(got) == len(expected)
        and any(getattr(part, "shape", ()) for part in expected)
    ):
        wrong = [same(*pair) for pair in zip(got, expected, strict=True)].index(False)
        return f"a {type(got).__name__} whose part {wrong + 1} is {told_apart(got[wrong], expected[wrong])}"
    if (
        isinstance(expected, Mapping)
        and isinstance(got, Mapping)
        and list(got) == list(expected)
        and any(getattr(part, "shape", ()) for part in expected.values())
    ):
        name = next(name for name in expected if not same(got[name], expected[name]))
        return f"for {name}: {told_apart(got[name], expected[name])}"
    if _has_too_few_digits(got, expected):
        dtype = str(got.dtype).rpartition(".")[2]
        return f"what is right as far as {dtype} goes, expected the digits of {expected.dtype} (compute with that)"
    text = _show_both(got, expected)
    dtypes = [
        str(value.dtype) if type(value).__module__ == "mlx.core" and hasattr(value, "dtype") else None
        for value in (got, expected)
    ]
    if None not in dtypes and dtypes[0] != dtypes[1]:
        text = [f"{each} of {dtype}".replace("mlx.core", "mx") for each, dtype in zip(text, dtypes, strict=True)]
    both = ", expected ".join(text)
    shapes = [tuple(value.shape) if hasattr(value, "shape") else None for value in (got, expected)]
    if None not in shapes and shapes[0] != shapes[1]:
        return ", expected ".join(
            each if each.startswith("array of shape") else f"{each} of shape {shape}"
            for each, shape in zip(text, shapes, strict=True)
        )
    if None in shapes or math.prod(shapes[1]) <= MOST_NUMBERS:
        return both
    import numpy as np

    try:
        relative, absolute = _nearness(expected)
        got, expected = as_numpy(got).astype(float), as_numpy(expected).astype(float)
    except (TypeError, ValueError, RuntimeError):  # not numbers, or a tensor that keeps its history
        return both
    is_wrong = ~np.isclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)
    index = tuple(map(int, np.unravel_index(is_wrong.argmax(), is_wrong.shape)))
    return (
        f"an {text[0]} with {is_wrong.sum():,} of {is_wrong.size:,} elements wrong: the one at {list(index)} is "
        + ", expected ".join(_show_both(float(got[index]), float(expected[index])))
    )


def _nearness(expected: Any) -> tuple[float, float]:
    """How near the numbers of an array have to be, relative and absolute: what is computed with fewer digits, less."""
    relative, absolute = COARSE.get(str(getattr(expected, "dtype", "")).rpartition(".")[2], (RELATIVE, ABSOLUTE))
    if relative == RELATIVE:
        return relative, absolute
    sizes = abs(as_numpy(expected))
    return relative, absolute * float(sizes.max(initial=1.0, where=sizes < math.inf))


def _has_too_few_digits(got: Any, expected: Any) -> bool:
    """Whether an array is wrong only because it was computed with fewer digits than the right one."""
    coarse = COARSE.get(str(getattr(got, "dtype", "")).rpartition(".")[2])
    if coarse is None or str(getattr(expected, "dtype", "")) != "float64":
        return False
    import numpy as np

    try:
        (relative, absolute), got = _nearness(got), as_numpy(got)
    except (TypeError, ValueError, RuntimeError):  # a tensor that keeps its history
        return False
    return got.shape == expected.shape and np.allclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)


def evaluate(value: Any) -> None:
    """Compute what MLX still owes of the arrays in `value`, so that an error in it is raised here."""
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].eval(value)


def as_numpy(value: Any) -> Any:
    """An array of any library as NumPy's. MLX's bfloat16, which NumPy lacks, becomes float32."""
    import numpy as np

    if str(getattr(value, "dtype", "")) == "mlx.core.bfloat16":
        value = value.astype(sys.modules["mlx.core"].float32)
    return np.asarray(value)


def _show_both(got: Any, expected: Any) -> list[str]:
    """Both as they stand in a message, with as many digits as it takes to see that they differ."""
    texts = [[show(value, digits) for value in (got, expected)] for digits in (DIGITS, 9, 12)]
    return next((text for text in texts if text[0] != text[1]), texts[0])


def show(value: Any, digits: int = DIGITS) -> str:
    """A value as it stands in a message.

    Functions by name, numbers with few digits, arrays with their shape, long things cut.
    """
    if isinstance(value, BaseException):
        return f"a {type(value).__name__}"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):  # NumPy's floats too
        return f"{value:.{digits}g}"
    if inspect.isgenerator(value):
        return "a generator (make a tuple or an array of it)"
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {show(item, digits)}" for key, item in value.items())
    elif type(value).__module__ in ("numpy", "mlx.core") and getattr(value, "shape", None) == ():
        return show(value.item(), digits)
    elif hasattr(value, "shape") and hasattr(value, "tolist"):
        is_small = math.prod(value.shape) <= MOST_NUMBERS
        text = f"array({show(value.tolist(), digits)})" if is_small else f"array of shape {tuple(value.shape)}"
    elif isinstance(value, (list, tuple)):
        inner = ", ".join(show(each, digits) for each in value)
        text = f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    else:
        text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " ..."
