"""The safe parser, against Python's own arithmetic where the text is harmless and against malice where it is not."""

import contextlib
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_grpo_kit.tasks import ExpressionError, ascii_int, parse_expression
from mlx_grpo_kit.tasks.parsing import MAX_CHARACTERS, MAX_DIGITS
from tests.tasks.hostile import every_hostile_text


@every_hostile_text
def test_hostile_text_is_neither_number_nor_expression_and_refused_at_once(hostile_text):
    start = time.perf_counter()
    assert ascii_int(hostile_text) is None
    with pytest.raises(ExpressionError):
        parse_expression(hostile_text)
    assert time.perf_counter() - start < 0.1


def test_ascii_int_accepts_plain_integers():
    for number in (0, 7, 46, -3, 10**MAX_DIGITS - 1):
        assert ascii_int(str(number)) == number
    assert ascii_int("  46 ") == 46


@given(st.text(max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_text_is_parsed_or_refused_with_its_own_error(text):
    number = ascii_int(text)
    assert number is None or str(number) == text.strip(" ")
    with contextlib.suppress(ExpressionError):
        parse_expression(text)


def _write(node) -> str:
    return str(node) if isinstance(node, int) else f"({_write(node[0])}{node[1]}{_write(node[2])})"


def _numbers(node) -> tuple[int, ...]:
    return (node,) if isinstance(node, int) else _numbers(node[0]) + _numbers(node[2])


TREES = st.recursive(
    st.integers(0, 99), lambda child: st.tuples(child, st.sampled_from("+-*/"), child), max_leaves=8
).filter(lambda tree: len(_write(tree)) <= MAX_CHARACTERS)


@given(TREES, st.booleans())
@settings(max_examples=300, deadline=None)
def test_value_and_numbers_agree_with_python(tree, bare):
    """Python evaluates the same text over Fractions; `bare` drops the brackets, so precedence decides."""
    text = _write(tree)
    if bare:
        text = text.replace("(", "").replace(")", "")
    python = "".join(f"Fraction({part})" if part.isdigit() else part for part in _split(text))
    try:
        expected = eval(python, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="zero"):
            parse_expression(text)
        return
    expression = parse_expression(text)
    assert expression.value == expected
    assert expression.numbers == _numbers(tree)


def _split(text: str) -> list[str]:
    parts = [""]
    for character in text:
        if character.isdigit() and parts[-1].isdigit():
            parts[-1] += character
        else:
            parts.append(character)
    return parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2*(3+", "Character 6: expected a number or '(', found the end"),
        ("2*x", "Character 3: expected a number or '(', found 'x'"),
        ("(2 3)", "Character 4: expected an operator or ')', found '3'"),
        ("2)", "Character 2: expected an operator or the end, found ')'"),
        ("4/(5-5)", "Division by zero"),
        ("1" * 65, "65 characters; expected at most 64"),
        ("(" * 17 + "1" + ")" * 17, "More than 16 nested"),
        ("1+007", "007 has more than 9 digits or a leading zero"),
    ],
)
def test_errors_say_where_and_why(text, message):
    with pytest.raises(ExpressionError, match=re.escape(message)):
        parse_expression(text)
