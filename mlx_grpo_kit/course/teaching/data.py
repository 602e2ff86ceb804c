"""Results of answers as JSON, so that a process that runs a stranger's code can return them and nothing else.

Numbers, strings, lists, tuples, dictionaries, arrays, errors, and the data classes of chapters come back as they were;
subclasses come back as what they derive from, without their methods. Anything else becomes an `Opaque`, which equals
nothing.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

from mlx_grpo_kit.course.compare import DEEPEST, Spoiled, as_numpy, say, shape_of, show

CHAPTERS = "mlx_grpo_kit.course.chapters."  # whose exercises put results into data classes of their own
ARRAY_KINDS = "biufc"
MOST_BYTES = 32 * 2**20  # of an array
MOST_DIGITS = 4000


class Opaque:
    """An object that is not data. `same` finds it equal to nothing."""

    def __init__(self, shown: str):
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None


def encode(value: Any, depth: int = DEEPEST) -> Any:
    """`value` as JSON: plain scalars as they are, everything else as {kind: content}."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if depth == 0:
        return {"opaque": "a value that is nested too deep"}
    if isinstance(value, Spoiled):
        return {"spoiled": encode(value.result, depth - 1)}
    if isinstance(value, BaseException):
        return {"error": [kind.__module__, kind.__qualname__, say(value)]}
    if shape_of(value) is not None:
        return _encode_array(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if abs(number) < 10**MOST_DIGITS else {"opaque": "a whole number of thousands of digits"}
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else {"float": repr(number)}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, str):
        return str.__str__(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        base = list if isinstance(value, list) else tuple
        return {base.__name__: [encode(each, depth - 1) for each in base.__iter__(value)]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key, depth - 1), encode(each, depth - 1)] for key, each in value.items()]}
    if isinstance(value, (set, frozenset)):
        return {"set": [encode(each, depth - 1) for each in value]}
    if dataclasses.is_dataclass(kind) and kind.__module__.startswith(CHAPTERS):
        parts = {each.name: encode(getattr(value, each.name), depth - 1) for each in dataclasses.fields(kind)}
        return {"dataclass": [kind.__module__, kind.__qualname__, parts]}
    return {"opaque": show(value)}


def _encode_array(value: Any) -> Any:
    dtype = str(getattr(value, "dtype", ""))
    array = as_numpy(value)
    if array.dtype.kind not in ARRAY_KINDS or array.nbytes > MOST_BYTES:
        return {"opaque": show(value)}
    content = [array.dtype.str, [*map(int, array.shape)], base64.b64encode(array.tobytes()).decode()]
    return {"mlx": [dtype.removeprefix("mlx.core."), *content]} if dtype.startswith("mlx.core.") else {"array": content}


def decode(data: Any) -> Any:
    """The value of some JSON that `encode` may have made. Raises ValueError if it did not."""
    try:
        return _decode(data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a result: {error}") from error


def _decode(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data if data is None or type(data) in (bool, int, float, str) else _not_data(data)
    ((kind, content),) = data.items()
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](map(_decode, content))
    if kind == "dict":
        return {_decode(key): _decode(each) for key, each in content}
    if kind == "array":
        return _decode_array(*content)
    if kind == "mlx":
        from mlx_grpo_kit.runtime import mx

        dtype = mx.bool_ if content[0] == "bool" else getattr(mx, str(content[0]))
        return mx.array(_decode_array(*content[1:])).astype(dtype if isinstance(dtype, mx.Dtype) else _not_data(data))
    if kind == "dataclass":
        return _decode_dataclass(*content)
    if kind == "error":
        return _decode_error(*map(str, content))
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(*map(float, content))
    if kind == "bytes":
        return base64.b64decode(content)
    return Spoiled(_decode(content)) if kind == "spoiled" else Opaque(str(content))


def _decode_array(dtype: str, shape: list[int], content: str) -> Any:
    import numpy as np

    kind = np.dtype(dtype)
    if kind.kind not in ARRAY_KINDS:
        _not_data(dtype)
    array = np.frombuffer(base64.b64decode(content), kind).reshape(shape)
    return array[()] if array.shape == () else array.copy()


def _decode_dataclass(module: str, name: str, parts: dict[str, Any]) -> Any:
    known = getattr(sys.modules.get(module), name, None) if module.startswith(CHAPTERS) else None
    return (
        known(**{part: _decode(each) for part, each in parts.items()})
        if dataclasses.is_dataclass(known)
        else Opaque(name)
    )


def _decode_error(module: str, name: str, words: str) -> BaseException:
    """An error of a known class, without calling its code; else of a class that equals no other."""
    known = getattr(builtins if module == "builtins" else sys.modules.get(module), name, None)
    if not (isinstance(known, type) and issubclass(known, BaseException)):
        known = type(name, (Exception,), {})
    error = known.__new__(known)
    error.args = (words,)
    return error


def _not_data(data: Any) -> Any:
    raise ValueError(f"{type(data).__name__} is not data")
