"""A call of an answer as text: Python that can be pasted where that is possible, else a description."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from mlx_grpo_kit.course.compare import as_numpy, shape_of, show

LONGEST_CALL = 240  # characters
LONGEST_ARGUMENT = 60  # of a call that is only described
MOST_PARTS = 100  # of a list or an array in a call
MODULES = {"np": "numpy", "mx": "mlx.core", "T": "mlx_grpo_kit.tensor", "math": "math"}  # what notebooks call them


class Calls:
    """The calls of an answer in one case: their number, and the arguments of the one that a message can show."""

    def __init__(self) -> None:
        self._count, self._first, self._raised = 0, None, None

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose calls are noted here."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            given = _copied(arguments, named)
            self._count, self._first = self._count + 1, self._first or given
            try:
                return function(*arguments, **named)
            except BaseException:
                self._raised = given
                raise

        return call

    def shown(self) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        """The arguments of the call that raised an exception, or of the only call; None if there were several."""
        return self._raised or (self._first if self._count == 1 else None)


def _copied(arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments as they are before the call, which may change them; themselves if they cannot be copied."""
    try:
        return copy.deepcopy((arguments, named))
    except Exception:
        return arguments, named


def python_of(name: str, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> str | None:
    """The call as Python that a reader can paste into a notebook; None if it has no such form, or is too long."""
    try:
        parts = [*map(_code, arguments), *(f"{key}={_code(value)}" for key, value in (named or {}).items())]
    except KeyboardInterrupt:
        raise
    except BaseException:  # an array inside a transformation, an object whose methods raise
        return None
    call = f"{name}({', '.join(parts)})"
    return call if len(call) <= LONGEST_CALL and "`" not in call else None


def in_words(name: str, arguments: Sequence[Any], run: Callable[..., Any]) -> str:
    """The answer's name with what it was tried on: the arguments that `run` takes after the answer itself."""
    kinds = [each for each in inspect.signature(run).parameters.values() if each.kind != each.VAR_POSITIONAL][1:]
    names = [f"{each.name} = " for each in kinds[: len(arguments)]]
    names += [""] * (len(arguments) - len(names))
    tried = ", ".join(f"{key}{brief(value)}" for key, value in zip(names, arguments, strict=True))
    return f"`{name}` (tried with `{tried}`)" if tried else f"`{name}`"


def brief(value: Any) -> str:
    """A value as text; a long one by its kind, and by its size or its names."""
    text = show(value)
    if len(text) <= LONGEST_ARGUMENT:
        return text
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(str, [*value][:4]))}{', ...' if len(value) > 4 else ''}"
    if type(value) is str:
        return f"a text of {len(value):,} characters"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value):,}"
    return f"a {type(value).__name__}" if is_dataclass(value) else text


def strangers(arguments: Sequence[Any]) -> str:
    """Sentences for functions among the arguments that the reader has not seen: their docstrings describe them."""
    described = {
        show(each): each.__doc__.rstrip(".")
        for each in arguments
        if callable(each) and each.__doc__ and not inspect.isbuiltin(each)
    }
    return "".join(f" Here `{name}` is `{words}`." for name, words in described.items())


def _code(value: Any) -> str:
    """Python for a value. Raises TypeError or ValueError if there is none."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return _number(value, repr(value))
    if kind in (list, tuple, set, dict):
        return _container(value)
    if inspect.isfunction(value):
        return _lambda(value)
    if kind.__module__.startswith("mlx_grpo_kit.qwen3") and kind.__name__ == "Qwen3Config":
        own = [(each.name, getattr(value, each.name)) for each in fields(value)]
        usual = {each.name: each.default for each in fields(value)}
        return f"Qwen3Config({', '.join(f'{key}={_code(item)}' for key, item in own if item != usual[key])})"
    if kind.__module__.startswith("mlx_grpo_kit.scalar") and kind.__name__ == "Value" and not value.parents:
        return f"Value({_code(value.data)})"
    if kind.__module__.startswith("mlx_grpo_kit.tensor") and kind.__name__ == "Tensor" and value.is_leaf:
        return f"T.Tensor({_numbers(value.data)}{', requires_grad=True' if value.requires_grad else ''})"
    if (module := kind.__module__) in ("numpy", "mlx.core") and shape_of(value) is not None:
        short, usual = {"numpy": ("np", "float64 int64 bool"), "mlx.core": ("mx", "float32 int32 bool")}[module]
        dtype = str(value.dtype).rpartition(".")[2]
        if module == "numpy" and shape_of(value) == () and dtype in usual.split():
            return _numbers(value)
        return f"{short}.array({_numbers(value)}{'' if dtype in usual.split() else f', {short}.{dtype}'})"
    raise TypeError(f"{kind.__name__} has no short form")


def _container(value: Any) -> str:
    if len(value) > MOST_PARTS:
        raise ValueError("too long")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_code(key)}: {_code(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set):
        return "{" + ", ".join(sorted(map(_code, value))) + "}" if value else "set()"
    inner = ", ".join(map(_code, value))
    return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"


def _numbers(array: Any) -> str:
    """The numbers of an array, each with the fewest digits that give it again in the array's type."""
    if math.prod(shape_of(array)) > MOST_PARTS or 0 in shape_of(array)[:-1]:
        raise ValueError("too many numbers, or a shape that lists do not have")
    array = as_numpy(array)

    def nested(part: Any) -> str:
        if part.ndim:
            return f"[{', '.join(map(nested, part))}]"
        number = part.item()
        return _number(number, str(part)) if isinstance(number, float) else repr(number)

    return nested(array)


def _number(number: float, digits: str) -> str:
    if not math.isfinite(number):
        return f'float("{number}")'
    return repr(float(digits))


def _lambda(function: Callable[..., Any]) -> str:
    """A function of one expression as a lambda. Raises ValueError for any other, or if it needs names of its module."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)).strip().rstrip(","))
    if function.__name__ == "<lambda>":
        [node] = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
        body = node.body
    else:
        [node] = tree.body
        [*_, last] = node.body
        if len(node.body) - (ast.get_docstring(node) is not None) != 1 or not isinstance(last, ast.Return):
            raise ValueError("more than one expression")
        body = last.value
    parameters = [each.arg for each in node.args.args]
    if function.__closure__ or len(parameters) != function.__code__.co_argcount or node.args.defaults:
        raise ValueError("not a plain function")
    inner = {each.id for each in ast.walk(body) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    for each in ast.walk(body):
        if isinstance(each, ast.Name) and each.id not in {*parameters, *inner}:
            meant = function.__globals__.get(each.id)
            if each.id in function.__globals__ and meant is not sys.modules.get(MODULES.get(each.id, "")):
                raise ValueError(f"needs {each.id}")
    return f"lambda {', '.join(parameters)}: {ast.unparse(body)}"
