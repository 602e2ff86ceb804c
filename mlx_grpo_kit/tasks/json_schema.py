"""The JSON schema that describes a Python function to a model: its name, its arguments, its docstring.

The schema equals that of `transformers.utils.get_json_schema` for the same function.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

JSON_TYPES: dict[Any, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
    list: "array", tuple: "array", dict: "object",
}  # fmt: skip
SCALARS = (int, float, str, bool, type(None))

SECTION = re.compile(r"^(Args|Returns|Raises):[ \t]*$", re.MULTILINE)
ARGUMENT = re.compile(r"([ \t]*)(\w+):(.*)")
CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


class ToolError(TypeError):
    """A tool or an environment cannot be described to a model; the message names it and what it lacks."""


def get_json_schema(function: Callable) -> dict[str, Any]:
    """The schema of a function with type hints and a docstring whose `Args` section has a line for each argument.

    A description that ends in `(choices: ["tea", "coffee"])` lists the values that are allowed.

    Returns:
        `{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`, with "return" if the
        docstring describes the result.

    Raises:
        ToolError: the docstring is missing, or an argument has no type hint, no description, or a type without a JSON
            equivalent.
    """
    name = getattr(function, "__name__", type(function).__name__)
    doc = inspect.getdoc(function)
    if not doc:
        raise ToolError(f"Tool {name!r} has no docstring; expected one that describes the tool and has a section Args.")
    description, described, returned = _sections(doc.strip())
    hints = _hints(function, name)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolError(f"Tool {name!r} takes *{parameter.name}; expected named arguments, which a model can give.")
        if parameter.annotation is parameter.empty:
            raise ToolError(f"Argument {parameter.name!r} of tool {name!r} has no type hint; expected one such as int.")
        if parameter.name not in described:
            raise ToolError(
                f"Argument {parameter.name!r} of tool {name!r} has no description; expected a line "
                f"'{parameter.name}: ...' in the section Args of its docstring."
            )
        schema = _schema_of(hints[parameter.name], f"Argument {parameter.name!r} of tool {name!r}")
        words = described[parameter.name]
        if choices := CHOICES.search(words):
            try:
                values = json.loads(choices.group(1))
            except ValueError as error:
                raise ToolError(
                    f"Argument {parameter.name!r} of tool {name!r} has choices that are not JSON ({error}); expected "
                    'a list such as (choices: ["tea", "coffee"]).'
                ) from error
            schema["enum"] = [value.strip() if isinstance(value, str) else value for value in values]
            words = words[: choices.start()].strip()
        properties[parameter.name] = schema | {"description": words}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    found = {"name": name, "description": description, "parameters": parameters}
    if "return" in hints:
        try:
            result = _schema_of(hints["return"], name)
        except ToolError:
            pass  # the model never writes it
        else:
            found["return"] = result | ({"description": returned} if returned is not None else {})
    return {"type": "function", "function": found}


def _sections(doc: str) -> tuple[str, dict[str, str], str | None]:
    """The description of a function, of each argument, and of the result, from its docstring."""
    starts = [*SECTION.finditer(doc)]
    ends = [*(each.start() for each in starts[1:]), len(doc)]
    found = {each.group(1): doc[each.end() : end] for each, end in zip(starts, ends, strict=False)}
    description = doc[: starts[0].start()] if starts else doc
    described: dict[str, list[str]] = {}
    lines = [line for line in found.get("Args", "").split("\n") if line.strip()]
    words: list[str] = []
    for line in lines:
        begins = ARGUMENT.match(line)
        if begins and len(begins.group(1)) <= len(lines[0]) - len(lines[0].lstrip()):
            words = described[begins.group(2)] = []
            line = begins.group(3)
        words.append(line.strip())
    returned = found["Returns"].strip() if "Returns" in found else None
    return description.strip(), {name: " ".join(words).strip() for name, words in described.items()}, returned


def _hints(function: Callable, name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except Exception as error:  # a hint in quotes may run any code
        raise ToolError(f"The type hints of tool {name!r} cannot be read: {error}.") from error


def _schema_of(hint: Any, what: str) -> dict[str, Any]:
    """The schema of a type hint."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of([member.value for member in hint], what)
    if origin is None and hint in JSON_TYPES:
        return {"type": JSON_TYPES[hint]}
    if origin is Union or origin is types.UnionType:
        return _any_of([_schema_of(each, what) for each in args if each is not type(None)]) | (
            {"nullable": True} if type(None) in args else {}
        )
    if origin is Literal:
        return _one_of([*args], what)
    if origin is list:
        return {"type": "array", "items": _schema_of(args[0], what)}
    if origin is tuple and len(args) > 1 and ... not in args:
        return {"type": "array", "prefixItems": [_schema_of(each, what) for each in args]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(args[1], what)}
    raise ToolError(
        f"{what} has the type {hint!r}; expected one with a JSON equivalent: int, float, str, bool, list, dict, "
        "Literal, an Enum, or a union of these."
    )


def _any_of(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(schemas) == 1:
        return schemas[0]
    if all(each.keys() == {"type"} and isinstance(each["type"], str) for each in schemas):
        names = sorted({each["type"] for each in schemas})
        return {"type": names[0] if len(names) == 1 else names}
    return {"anyOf": [*schemas]}


def _one_of(values: list[Any], what: str) -> dict[str, Any]:
    if not values or not all(type(value) in SCALARS for value in values):
        raise ToolError(f"{what} allows the values {values!r}; expected strings, numbers, True, False or None.")
    names = [*dict.fromkeys(JSON_TYPES[type(value)] for value in values)]
    return {"type": names[0] if len(names) == 1 else names, "enum": values}
