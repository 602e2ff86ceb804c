"""The arguments of a tool call: JSON as its standard has it, in the types that the tool's schema names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

DEEPEST = 64
"""The maximum number of lists and objects inside each other."""
TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def read_json(text: str) -> Any:
    """The value of a JSON text that a model wrote. It can be written as JSON and encoded as UTF-8 again.

    Raises ValueError for other texts, and for what Python's parser lets through: NaN, numbers that are too large for a
    float, halves of surrogate pairs, and nesting deeper than `DEEPEST`.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check(value, 0)
    return value


def _check(value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(TOO_DEEP)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it contains NaN, or a number that is too large for a float")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("it contains half of a surrogate pair")
    if isinstance(value, list | dict):
        for part in value if isinstance(value, list) else [*value, *value.values()]:
            _check(part, depth + 1)


def typed(arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the types of the tool's schema: the text "7" becomes 7 where an integer is expected.

    The rules are those of transformers' `parse_response(..., tools=...)`, with which TRL reads calls. A text that is
    not of the expected type stays a text, and so does one that `read_json` rejects.
    """
    found = dict(arguments)
    for name, value in arguments.items():
        types = _types_of(properties.get(name))
        if isinstance(value, str):
            found[name] = _converted(value, types)
        elif isinstance(value, list) and types and "array" not in types:
            found[name] = [_converted(each, types) if isinstance(each, str) else each for each in value]
    return found


def _types_of(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    declared = schema.get("type", [])
    types = [declared] if isinstance(declared, str) else [*declared]
    types += [each for choice in schema.get("anyOf", ()) for each in _types_of(choice)]
    return [*types, "null"] if schema.get("nullable") else types


def _converted(text: str, types: list[str]) -> Any:
    """The text as the first of the types other than "string" that it can be; unchanged if it can be none."""
    for name in types:
        try:
            if name == "integer":
                return _integer(text)
            if name == "number":
                number = float(text)
                if math.isfinite(number):
                    return int(number) if number.is_integer() and "." not in text else number
            if name == "boolean" and text.strip().lower() in ("true", "1", "false", "0"):
                return text.strip().lower() in ("true", "1")
            if name == "null" and text.strip() in ("null", "None"):
                return None
            if name in ("object", "array") and isinstance(value := read_json(text), dict if name == "object" else list):
                return value
        except (ValueError, OverflowError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # "3.0" is an integer too
        if not number.is_integer():
            raise
        return int(number)
