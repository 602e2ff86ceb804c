"""Schemas of functions: those of transformers' `get_json_schema`, and what cannot be shown to a model."""

from enum import Enum
from typing import Any, Literal, Optional, Union

import pytest

from mlx_grpo_kit.tasks import ToolError, get_json_schema
from mlx_grpo_kit.tasks.calculator import calculate
from mlx_grpo_kit.tasks.guess import Game


class Color(Enum):
    RED = "red"
    SIX = 6


class Elsewhere:
    pass


def with_sections(x: int, y: float = 2.0, *, z: str) -> int:
    """Do things. In one line

    and in a second paragraph.

    Args:
        x: The first
            goes on here.
        y: The second (choices: [1, 2])

        z: third: with a colon

    Returns:
        the sum
        on two lines

    Raises:
        ValueError: never
    """


def all_types(
    a: Optional[int],  # noqa: UP045
    b: int | str,
    c: list[int],
    d: dict[str, float],
    e: tuple[int, str],
    f: Literal["a", 1],
    g: Color,
    h: list,
    i: dict,
    j: Any,
    k: list[int] | str | None = None,
    m: Union[bool, float] = True,  # noqa: UP007
    n: Literal["x", "y"] = "x",
) -> None:
    """Take everything.

    Args:
        a: a
        b: b
        c: c
        d: d
        e: e
        f: f
        g: g
        h: h
        i: i
        j: j
        k: k (choices: ["tea", " coffee "])
        m: m
        n: n
    """


def nothing() -> "list[int]":
    """Nothing."""


async def coroutine(x: bool):
    """Wait.
    Args:
        x (bool): of a form with a type
            x: and one that looks like an argument
        x: yes
    """


def unknown_result(x: int) -> Elsewhere:
    """Return something.

    Args:
        x: number
    """


@pytest.mark.parametrize(
    "function", [with_sections, all_types, nothing, unknown_result, calculate, Game().guess, coroutine]
)
def test_the_schema_is_that_of_transformers(function):
    from transformers.utils import get_json_schema as theirs

    assert get_json_schema(function) == theirs(function)


def no_doc(x: int):
    pass


def no_hint(x):
    """X.

    Args:
        x: x
    """


def no_description(x: int):
    """X."""


def of_no_json_type(x: Elsewhere):
    """X.

    Args:
        x: x
    """


def of_broken_hint(x: "Missing"):  # noqa: F821
    """X.

    Args:
        x: x
    """


def of_bad_choices(x: int):
    """X.

    Args:
        x: x (choices: 1 and 2)
    """


def of_any_number(*x: int):
    """X.

    Args:
        x: x
    """


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_doc, "Tool 'no_doc' has no docstring"),
        (no_hint, "Argument 'x' of tool 'no_hint' has no type hint"),
        (no_description, "Argument 'x' of tool 'no_description' has no description"),
        (of_no_json_type, "Argument 'x' of tool 'of_no_json_type' has the type"),
        (of_broken_hint, "The type hints of tool 'of_broken_hint' cannot be read: name 'Missing'"),
        (of_bad_choices, "has choices that are not JSON"),
        (of_any_number, r"takes \*x"),
    ],
)
def test_a_function_that_cannot_be_shown(function, words):
    with pytest.raises(ToolError, match=words):
        get_json_schema(function)
