"""Parsers of option values (argparse's `type`)."""

from __future__ import annotations

import argparse
import json
import math
import re
from typing import Any


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number.")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too small; expected more than 0.")
    return value


def seconds(text: str) -> float:
    """A finite number above 0; infinity for "none"."""
    return math.inf if text == "none" else positive(text)


def name(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty. Is a shell variable not set?")
    return text


def whole_number(text: str) -> int:
    """A whole number of any sign."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number.") from None


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too small; expected at least 1.")
    return value


def seed(text: str) -> int:
    """A whole number of 64 bits, without a sign."""
    value = whole_number(text)
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{value} is out of range; expected 0 to 2^64 - 1.")
    return value


def numbers(text: str) -> tuple[float, ...]:
    """Finite numbers separated by commas."""
    return tuple(number(each) for each in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Words separated by commas."""
    return tuple(text.split(","))


def amount(text: str) -> int | str:
    """A whole number of at least 0, or all."""
    if text == "all":
        return text
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount; expected a whole number of at least 0, or all.")
    return value


def named_value(text: str) -> tuple[str, Any]:
    """A name and a value, parsed as JSON if possible and otherwise a string."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def task(text: str) -> tuple[str, dict[str, Any]]:
    """A task's name and its arguments: gym:gcd,max_value=9."""
    found, *settings = re.split(r",(?=[^\W\d]\w*=)", name(text))
    return name(found), dict(map(named_value, settings))


def tasks(text: str) -> list[str]:
    """Several tasks, separated by commas, each with its arguments: addition,max_operand=9,gym:gcd is two."""
    return [name(each) for each in re.split(r",(?![^\W\d]\w*=)", text)]


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object, such as {{"enable_thinking": false}}.')
    return value


def is_bfloat16(text: str) -> bool:
    """Read the name of a dtype as the setting that GRPOConfig calls bf16."""
    if text not in ("float32", "bfloat16"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a dtype for training; expected float32 or bfloat16.")
    return text == "bfloat16"
