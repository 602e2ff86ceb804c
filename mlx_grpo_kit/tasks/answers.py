"""The final answer of a chat model: after its thoughts, in tags or a box, and as a number if it is one.

    final_answer("<think>5*3 is 15 ...</think>The sum is <answer>24</answer>")   # "24"
    as_number("1,000") == as_number("1000.0") == Fraction(1000)

Text is only searched and matched by bounded patterns; nothing that a model wrote is run.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 1_000_000
"""The maximum number of characters to read. A longer text counts as having no answer."""

MAX_NUMBER = 64
"""The maximum number of characters in a number."""

BLANKS = " \t\r\n"
"""White space around an answer. Python's `strip` would also remove two dozen other characters."""

_WITH_COMMAS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+"
_NUMBER = re.compile(
    rf"([+-]?)((?:{_WITH_COMMAS}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:/([0-9]+)|([eE][+-]?[0-9]{{1,3}}))?", re.ASCII
)
_LATEX_FRACTION = re.compile(r"([+-]?)\\d?frac\{([0-9]+)\}\{([0-9]+)\}", re.ASCII)
_SIGNS = {"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", r"\times": "*", r"\cdot": "*", r"\div": "/"}


def without_thoughts(text: str) -> str:
    """The text after `<think>...</think>`; a thought that never ends is removed.

    `<think>` may be missing, because some chat templates put it into the prompt.
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def final_answer(text: str, lines: int = 1) -> str:
    r"""The final answer of a completion, without white space around it; '' if there is none.

    Thoughts are ignored. The answer is in the last `<answer>...</answer>`, in the last `\boxed{...}` (inside the tags,
    if both exist), or else at the end of the text, after `####` if that occurs. A tag or a box that never closes does
    not count. Only the last answer counts, so that a policy cannot give several and be rewarded for the best.

    Args:
        text: the completion.
        lines: the number of lines in the answer: the last `lines` lines that are not blank. In a box a line break
            counts as a space, as in LaTeX, unless the answer has several lines.
    """
    if len(text) > MAX_CHARACTERS:
        return ""
    text = without_thoughts(text)
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        text = text[start + len("<answer>") : end]
    if (box := _last_box(text)) is not None:
        text = box if lines > 1 else box.replace("\r", " ").replace("\n", " ")
    last = [line for line in text.split("\n") if line.strip(BLANKS)][-lines:]
    return "\n".join(last).rpartition("####")[2].strip(BLANKS)


def _last_box(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`, which may contain nested braces."""
    end = len(text)
    while (start := text.rfind(r"\boxed{", 0, end)) >= 0:
        depth = 1
        first = start + len(r"\boxed{")
        for place in range(first, end):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[first:place]
        end = start
    return None


def as_number(text: str) -> Fraction | None:
    r"""The exact value of `text` as a number, or None if it is not one.

    Examples: `-3`, `+3`, `1,000`, `1000.0`, `.5`, `3/4`, `1e-5`, `$72`, `\frac{3}{4}`. Each comma must be followed by
        three digits, digits are ASCII, a minus sign may be Unicode's, an exponent has at most three digits, and a
        number at most `MAX_NUMBER` characters. A full stop at the end is ignored, and so are `$`, `*` and spaces around
        the number, as chat models write them, and a percent sign: `42%` is 42. Only the part after the last equals sign
        is read: `12 + 34 = 46` is 46.
    """
    text = unadorned(text.rpartition("=")[2] if len(text) <= MAX_CHARACTERS else "")
    text = text.removesuffix("%").removesuffix("\\").rstrip(" \t").replace("\u2212", "-", 1)
    if len(text) > MAX_NUMBER:
        return None
    if found := _LATEX_FRACTION.fullmatch(text):
        sign, above, below, exponent = *found.groups(), None
    elif found := _NUMBER.fullmatch(text):
        sign, above, below, exponent = found.groups()
    else:
        return None
    if below is not None and not int(below):
        return None
    value = Fraction(above.replace(",", "") + (exponent or "")) / int(below or 1)
    return -value if sign == "-" else value


def unadorned(text: str) -> str:
    """The text without the marks that chat models put around a short answer: spaces, `**`, `$`, `\\(`, a full stop."""
    text = text.strip(" \t").removesuffix(".")
    for opening, closing in (("**", "**"), ("$", "$"), (r"\(", r"\)")):
        text = text.removeprefix(opening).removesuffix(closing).strip(" \t")
    return text


def as_expression(text: str) -> str:
    """An arithmetic expression in the letters of `parse_expression`: `$5 \\times 3 + 9$` -> `5 * 3 + 9`."""
    text = unadorned(text)
    for sign, ascii_sign in _SIGNS.items():
        text = text.replace(sign, ascii_sign)
    return text
