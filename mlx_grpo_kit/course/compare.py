"""The comparison of an answer's result with the expected one, and the display of both in a message."""

from __future__ import annotations

import inspect
import math
import numbers
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

RELATIVE, ABSOLUTE = 1e-6, 1e-9  # the tolerances for a number
# In arrays of these: of the number itself, and of the largest number of its array (at least of 1), since what is left
# of large numbers that cancel has their rounding error.
COARSE = {"float32": (1e-4, 1e-5), "float16": (1e-2, 1e-2), "bfloat16": (5e-2, 5e-2)}
DIGITS = 6  # per number in a message, if they are enough
LONGEST_TEXT = 160  # of a value in a message
LONGEST_WHOLE = 80  # of a result of several parts; of a longer one the message shows the first part that differs
LONGEST_ERROR = 2000  # of an exception's message
MOST_NUMBERS = 12  # per array; for a larger one the message gives its shape
DEEPEST = 32  # nesting depth; MLX and NumPy crash or hang on a list that contains itself
SHOWN_DEEP = 8  # nesting depth in a message


class Told(str):
    """A description of an answer's behaviour, which messages show without quotes."""

    __repr__ = str.__str__


class Spoiled:
    """The `result` of an answer that also changed its input. It is never right."""

    def __init__(self, result: Any):
        self.result = result


class EndlessError(ValueError):
    """Raised for a list, tuple or dictionary that contains itself, or that is nested more than DEEPEST deep.

    `lazy_arrays` also raises it for an array that does not fit into this machine's memory.
    """


def same(got: Any, expected: Any) -> bool:
    """Equal, numbers up to rounding, in lists, tuples, dictionaries and arrays too; exceptions by their kind.

    Anything whose methods raise is not the same as anything.
    """
    try:
        return _same(got, expected)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False


def _same(got: Any, expected: Any) -> bool:
    if isinstance(got, Spoiled) or isinstance(expected, Spoiled):
        return type(got) is type(expected) and same(got.result, expected.result)
    if isinstance(expected, BaseException) or isinstance(got, BaseException):
        return type(got) is type(expected)
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, numbers.Real):
        relative, absolute = RELATIVE, ABSOLUTE
        if shape_of(got) == ():
            relative, absolute = _nearness(got) if type(got).__module__ == "mlx.core" else (RELATIVE, ABSOLUTE)
            got = got.item() if hasattr(got, "item") else got
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
        if not _may_have_shape(got, tuple(expected.shape)):
            return False
        import numpy as np

        relative, absolute = _nearness(expected)
        got, expected = as_numpy(got), as_numpy(expected)
        return got.shape == expected.shape and bool(
            np.allclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)
        )
    if isinstance(expected, str) and isinstance(got, str):
        return got.strip().lower() == expected.strip().lower()
    return bool(got == expected)


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array of any library, None for anything else, even if it has some attribute `shape`."""
    try:
        shape = None if isinstance(value, type) else value.shape
    except Exception:
        return None
    return tuple(shape) if isinstance(shape, tuple) and all(type(size) is int for size in shape) else None


def _may_have_shape(value: Any, shape: tuple[int, ...]) -> bool:
    """False for an array of another shape, and for lists that would not become an array of this shape."""
    if (own := shape_of(value)) is not None:
        return own == shape
    if not isinstance(value, (list, tuple)):
        return True
    return bool(shape) and len(value) == shape[0] and all(_may_have_shape(each, shape[1:]) for each in value)


def told_apart(got: Any, expected: Any) -> str:
    """The result and the expected result: for several arrays the first wrong one, for a large one a wrong element."""
    try:
        return _told_apart(got, expected)
    except KeyboardInterrupt:
        raise
    except BaseException:  # not numbers, a tensor that keeps its history, an object whose methods raise
        return ", expected ".join(_show_both(got, expected))


def _told_apart(got: Any, expected: Any) -> str:
    if isinstance(got, Spoiled):
        if not same(got.result, expected):
            return f"{told_apart(got.result, expected)} (your code also changed what it was given)"
        return "the right result, but also new numbers in what it was given (work on a copy of that)"
    if part := _first_part_told_apart(got, expected):
        return part
    if _has_too_few_digits(got, expected):
        dtype = str(got.dtype).rpartition(".")[2]
        return f"what is right as far as {dtype} goes, expected the digits of {expected.dtype} (compute with that)"
    text = _show_both(got, expected)
    if isinstance(got, Told) and not isinstance(expected, str) and len(text[1]) > LONGEST_WHOLE:
        return text[0]
    dtypes = [
        str(value.dtype) if type(value).__module__ == "mlx.core" and hasattr(value, "dtype") else None
        for value in (got, expected)
    ]
    if None not in dtypes and dtypes[0] != dtypes[1]:
        text = [f"{each} of {dtype}".replace("mlx.core", "mx") for each, dtype in zip(text, dtypes, strict=True)]
    both = ", expected ".join(text)
    shapes = [shape_of(value) for value in (got, expected)]
    if None not in shapes and shapes[0] != shapes[1]:
        return ", expected ".join(
            each if each.startswith("array of shape") else f"{each} of shape {shape}"
            for each, shape in zip(text, shapes, strict=True)
        )
    if None in shapes or math.prod(shapes[1]) <= MOST_NUMBERS:
        return both
    import numpy as np

    relative, absolute = _nearness(expected)
    got, expected = as_numpy(got).astype(float), as_numpy(expected).astype(float)
    is_wrong = ~np.isclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)
    index = tuple(map(int, np.unravel_index(is_wrong.argmax(), is_wrong.shape)))
    return (
        f"an {text[0]} with {is_wrong.sum():,} of {is_wrong.size:,} elements wrong: the one at {list(index)} is "
        + ", expected ".join(_show_both(float(got[index]), float(expected[index])))
    )


def _first_part_told_apart(got: Any, expected: Any) -> str:
    """The first difference of two texts, or of two lists, tuples, dictionaries or data classes; empty if short."""
    if isinstance(got, str) and isinstance(expected, str):
        return _texts_told_apart(got, expected)
    parts = [_parts(value) for value in (got, expected)]
    if None in parts or isinstance(got, (list, tuple)) != isinstance(expected, (list, tuple)):
        return ""
    arrays = any(shape_of(each) for each in parts[1].values())
    if not arrays and all(len(text) <= LONGEST_WHOLE and " in all" not in text for text in map(show, (got, expected))):
        return ""
    ours, theirs = parts
    kind = f"a {type(got).__name__}"
    wrong = next((name for name in theirs if name in ours and not same(ours[name], theirs[name])), None)
    if isinstance(expected, (list, tuple)):
        if wrong is None:
            if len(ours) < len(theirs):
                which = f"part {len(ours) + 1} should be {show(theirs[len(ours)])}"
            else:
                which = f"part {len(theirs) + 1} is {show(ours[len(theirs)])}, where it should have ended"
            return f"{kind} of {len(ours)}, expected {len(theirs)}: {which}"
        size = "" if len(ours) == len(theirs) else f" of {len(ours)} (expected {len(theirs)})"
        return f"{kind}{size} whose part {wrong + 1} is {told_apart(ours[wrong], theirs[wrong])}"
    missing, extra = ([name for name in one if name not in other] for one, other in ((theirs, ours), (ours, theirs)))
    if missing or extra:
        which = f"without {_named(missing)}" if missing else f"with {_named(extra)}"
        return f"{kind} {which}, expected exactly {_named(theirs)}"
    return f"for {wrong}: {told_apart(ours[wrong], theirs[wrong])}"


def _parts(value: Any) -> dict[Any, Any] | None:
    """The parts of a list, a tuple, a dictionary or a data class by their names; None for anything else."""
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return None


def _named(names: Collection[Any]) -> str:
    return _joined(map(show, names), len(names))


def _texts_told_apart(got: str, expected: str) -> str:
    """Two long texts from a little before the first character that differs; empty if both are short."""
    if isinstance(got, Told) or isinstance(expected, Told) or max(len(got), len(expected)) <= LONGEST_WHOLE:
        return ""
    got, expected = got.strip(), expected.strip()
    pairs = zip(got, expected, strict=False)
    place = next((n for n, (one, other) in enumerate(pairs) if one.lower() != other.lower()), None)
    place = min(len(got), len(expected)) if place is None else place
    begin, end = max(0, place - 20), place + 40
    shown = (
        "..." * (begin > 0) + repr(text[begin:end]) + "..." * (end < len(text)) if text[begin:] else "its end"
        for text in (got, expected)
    )
    return f"a text that differs at character {place + 1}: {', expected '.join(shown)}"


def _nearness(expected: Any) -> tuple[float, float]:
    """The tolerances of an array's numbers, relative and absolute: larger for fewer digits."""
    relative, absolute = COARSE.get(str(getattr(expected, "dtype", "")).rpartition(".")[2], (RELATIVE, ABSOLUTE))
    if relative == RELATIVE:
        return relative, absolute
    sizes = abs(as_numpy(expected))
    return relative, absolute * float(sizes.max(initial=1.0, where=sizes < math.inf))


def _has_too_few_digits(got: Any, expected: Any) -> bool:
    """True if an array is wrong only because it was computed with fewer digits than the right one."""
    coarse = COARSE.get(str(getattr(got, "dtype", "")).rpartition(".")[2])
    if coarse is None or str(getattr(expected, "dtype", "")) != "float64" or shape_of(got) != expected.shape:
        return False
    import numpy as np

    (relative, absolute), got = _nearness(got), as_numpy(got)
    return np.allclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)


def evaluate(value: Any) -> None:
    """Evaluate MLX's lazy arrays in `value`, so that an error in them is raised here.

    Raises:
        EndlessError: `value` contains itself.
    """
    refuse_endless(value)
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].eval(value)


def lazy_arrays(value: Any) -> list[Any]:
    """Return the MLX arrays in `value` and in its lists, tuples and dictionaries, each of them once.

    MLX kills the process when it computes an array that no memory holds, so this comes before `evaluate`.

    Raises:
        EndlessError: `value` contains itself, or an array that does not fit into this machine's memory.
    """
    refuse_endless(value)
    if "mlx.core" not in sys.modules:
        return []
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: dict[int, Any] = {}
    level, seen = [value], {id(value)}
    for part in level:  # which grows during the loop, so a list that occurs a million times is visited once
        kind = _container(type(part))
        if kind is not None:
            inner = dict.values(part) if kind is dict else kind.__iter__(part)
            new = {id(each): each for each in inner if id(each) not in seen}
            seen |= new.keys()
            level += new.values()
        elif type(part) is sys.modules["mlx.core"].array:
            if part.nbytes > memory:
                shape = tuple(part.shape)
                raise EndlessError(f"an array of shape {shape}, which does not fit into the memory of this machine")
            found[id(part)] = part
    return [*found.values()]


def refuse_endless(value: Any) -> None:
    """Raise EndlessError for lists, tuples and dictionaries that contain themselves or are nested too deep."""
    level = [value]
    for _ in range(DEEPEST):
        inner: dict[int, Any] = {}
        for outer in level:
            kind = _container(type(outer))
            parts = () if kind is None else dict.values(outer) if kind is dict else [*kind.__iter__(outer)]
            if any(map(_container, set(map(type, parts)))):  # skip a million numbers in one step
                inner |= {id(part): part for part in parts if _container(type(part))}
        if not inner:
            return
        level = [*inner.values()]
    raise EndlessError(f"a list or a dictionary that contains itself, or is nested more than {DEEPEST} deep")


def _container(kind: type) -> type | None:
    return next((each for each in (list, tuple, dict) if issubclass(kind, each)), None)


def as_numpy(value: Any) -> Any:
    """Convert an array of any library to NumPy. MLX's bfloat16, which NumPy lacks, becomes float32."""
    import numpy as np

    if str(getattr(value, "dtype", "")) == "mlx.core.bfloat16":
        value = value.astype(sys.modules["mlx.core"].float32)
    return np.asarray(value)


def _show_both(got: Any, expected: Any) -> list[str]:
    """Both values as text for a message, with enough digits to see the difference."""
    texts = [[show(value, digits) for value in (got, expected)] for digits in (DIGITS, 9, 12)]
    return next((text for text in texts if text[0] != text[1]), texts[0])


def show(value: Any, digits: int = DIGITS, depth: int = SHOWN_DEEP) -> str:
    """A value as text for a message. Never raises.

    Functions are shown by name, numbers with few digits, arrays with their shape; long and deep values are shortened.
    """
    if depth == 0:
        return "..."
    try:
        text = _text(value, digits, depth)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = f"<{type.__getattribute__(type(value), '__name__')} that cannot be shown>"
    longest = LONGEST_TEXT if _container(type(value)) is None else (depth + 1) * LONGEST_TEXT
    return text if len(text) <= longest else text[:longest] + " ..."


def _text(value: Any, digits: int, depth: int) -> str:
    if isinstance(value, BaseException):
        return f"a {type(value).__name__}"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):  # NumPy's floats too
        return f"{value:.{digits}g}"
    if inspect.isgenerator(value):
        return "a generator (make a tuple or an array of it)"
    if isinstance(value, Mapping):
        items = ((key if isinstance(key, str) else show(key, digits, depth - 1), item) for key, item in value.items())
        return _joined((f"{key}: {show(item, digits, depth - 1)}" for key, item in items), len(value)) or "{}"
    shape = shape_of(value)
    if shape == () and type(value).__module__ in ("numpy", "mlx.core"):
        return show(value.item(), digits, depth - 1)
    if shape is not None and hasattr(value, "tolist"):
        if math.prod(shape) > MOST_NUMBERS:
            return f"array of shape {shape}"
        return f"array({show(value.tolist(), digits, depth - 1)})"
    if isinstance(value, (list, tuple)):
        inner = _joined((show(each, digits, depth - 1) for each in value), len(value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if type(value) in (str, bytes):
        value = value[: LONGEST_TEXT + 1]
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else repr(value)


def _joined(texts: Iterable[str], count: int) -> str:
    """Texts separated by commas, as many as fit into a message, and how many there are if that is not all."""
    shown, length = [], 0
    for text in texts:
        shown.append(text)
        length += len(text) + 2
        if length > LONGEST_TEXT and len(shown) < count:
            ending = f"... {count:,} in all"
            while len(shown) > 1 and length + len(ending) > LONGEST_TEXT:
                length -= len(shown.pop()) + 2
            return ", ".join([*shown, ending])
    return ", ".join(shown)


def say(error: BaseException) -> str:
    """The message of an exception, cut if it is long. Never raises."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "(its text cannot be shown)"
    return text[:LONGEST_ERROR] + " ..." if len(text) > LONGEST_ERROR else text.rstrip(". ")
