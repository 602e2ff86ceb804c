"""Safe reading of a model's text, without running it: bounded integers and bounded arithmetic.

A completion is untrusted text. Python's own tools accept too much: `eval` runs programs, `int` accepts Arabic digits
and `' 4_2\\n'`, and `9**9**9` or a million digits would bring the machine down. Everything here reads a bounded number
of characters, accepts only ASCII, and computes exactly.
"""

from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 64
MAX_DIGITS = 9
MAX_DEPTH = 16
_DIGITS = frozenset("0123456789")  # str.isdigit accepts some 700 other characters


def ascii_int(text: str) -> int | None:
    """The integer in `text`, or None if it is not one.

    Accepted: 1 to `MAX_DIGITS` ASCII digits without superfluous leading zeros, a minus sign before them, spaces around
        them.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    text = text.strip(" ")
    digits = text.removeprefix("-")
    if not 1 <= len(digits) <= MAX_DIGITS or not _DIGITS.issuperset(digits) or str(int(text)) != text:
        return None
    return int(text)


class ExpressionError(ValueError):
    """The text is not an arithmetic expression of the accepted form; the message names the position and the reason."""


@dataclass(frozen=True)
class Expression:
    """The value of an expression.

    Attributes:
        value: the exact value.
        numbers: the numbers in the expression, from left to right.
    """

    value: Fraction
    numbers: tuple[int, ...]


def parse_expression(text: str) -> Expression:
    """Evaluate `+ - * /`, parentheses and whole numbers exactly, by recursive descent:

        sum     := product (('+' | '-') product)*
        product := factor (('*' | '/') factor)*
        factor  := number | '(' sum ')'

    There is no power, no sign, no decimal point and no name in the grammar. Spaces may separate the parts. The limits
    are `MAX_CHARACTERS` characters, `MAX_DEPTH` nested parentheses and `MAX_DIGITS` digits per number; so a value has
    at most `MAX_CHARACTERS` digits above and below its fraction bar.

    Raises:
        ExpressionError: the text violates the grammar or a limit, or divides by zero.
    """
    return _Parser(text).parse()


class _Parser:
    """The parser's position in the text, and the numbers read so far."""

    def __init__(self, text: str):
        if len(text) > MAX_CHARACTERS:
            raise ExpressionError(f"{len(text)} characters; expected at most {MAX_CHARACTERS}.")
        self.text = text
        self.position = 0
        self.depth = 0
        self.numbers: list[int] = []

    def parse(self) -> Expression:
        value = self.sum()
        if self.peek():
            raise self.error("an operator or the end")
        return Expression(value, tuple(self.numbers))

    def sum(self) -> Fraction:
        value = self.product()
        while (operator := self.peek()) in ("+", "-"):
            self.position += 1
            operand = self.product()
            value = value + operand if operator == "+" else value - operand
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while (operator := self.peek()) in ("*", "/"):
            self.position += 1
            operand = self.factor()
            if operator == "/" and operand == 0:
                raise ExpressionError(f"Division by zero before character {self.position + 1}.")
            value = value * operand if operator == "*" else value / operand
        return value

    def factor(self) -> Fraction:
        if self.peek() != "(":
            return self.number()
        self.position += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"More than {MAX_DEPTH} nested parentheses.")
        value = self.sum()
        if self.peek() != ")":
            raise self.error("an operator or ')'")
        self.position += 1
        self.depth -= 1
        return value

    def number(self) -> Fraction:
        if self.peek() not in _DIGITS:
            raise self.error("a number or '('")
        start = self.position
        while self.position < len(self.text) and self.text[self.position] in _DIGITS:
            self.position += 1
        digits = self.text[start : self.position]
        number = ascii_int(digits)
        if number is None:
            raise ExpressionError(f"The number {digits} has more than {MAX_DIGITS} digits or a leading zero.")
        self.numbers.append(number)
        return Fraction(number)

    def peek(self) -> str:
        """The next character that is not a space, or '' at the end."""
        while self.position < len(self.text) and self.text[self.position] == " ":
            self.position += 1
        return self.text[self.position : self.position + 1]

    def error(self, expected: str) -> ExpressionError:
        found = repr(self.peek()) if self.peek() else "the end"
        return ExpressionError(f"Character {self.position + 1}: expected {expected}, found {found}.")
