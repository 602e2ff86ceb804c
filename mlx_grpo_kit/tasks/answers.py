"""The answer in what a chat model wrote: behind its thoughts, in tags or a box, and as a number if it is one.

    final_answer("<think>5*3 is 15 ...</think>The sum is <answer>24</answer>")   # "24"
    as_number("1,000") == as_number("1000.0") == Fraction(1000)

Everything is read by search and by bounded patterns; nothing that a model wrote is run.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 1_000_000
"""A longer text has no answer: what is read of a model's text is bounded."""

MAX_NUMBER = 64
"""Characters of a number."""

BLANKS = " \t\r\n"
"""White space around an answer. Python's `strip` takes two dozen other characters for it."""

_WITH_COMMAS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+"
_NUMBER = re.compile(rf"([+-]?)((?:{_WITH_COMMAS}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:/([0-9]+))?", re.ASCII)
_LATEX_FRACTION = re.compile(r"([+-]?)\\d?frac\{([0-9]+)\}\{([0-9]+)\}", re.ASCII)
_SIGNS = {"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", r"\times": "*", r"\cdot": "*", r"\div": "/"}


def without_thoughts(text: str) -> str:
    """What stands behind `<think>...</think>`; a thought that never ends is cut off from where it began.

    `<think>` may be missing, because some templates write it into the prompt.
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def final_answer(text: str) -> str:
    r"""The answer that a completion ends in, without white space around it; '' where there is none.

    Thoughts are left out. What is left is searched for the last `<answer>...</answer>`, for the last `\boxed{...}` (in
    the answer's tags too), and has its last line taken where there is neither, or what stands there behind `####`. What
    never closes is no tag or box. There is one answer, the last, so that a policy cannot give several and be paid for
    the best.
    """
    if len(text) > MAX_CHARACTERS:
        return ""
    text = without_thoughts(text)
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        text = text[start + len("<answer>") : end]
    if (box := _last_box(text)) is not None:
        text = box
    last_line = text.strip(BLANKS).rpartition("\n")[2]
    return last_line.rpartition("####")[2].strip(BLANKS)


def _last_box(text: str) -> str | None:
    r"""What the last `\boxed{...}` that closes holds, braces inside counted."""
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
    """The number that `text` is, exactly, or None: `-3`, `+3`, `1,000`, `1000.0`, `.5`, `3/4`, `$72`, `\\frac{3}{4}`.

    Commas have to stand before three digits each, digits are ASCII, a minus may be Unicode's, and there are at most
    `MAX_NUMBER` characters. A full stop at the end, and `$`, `*` and spaces around the number, as chat models write
    them, are no part of it, nor is a percent sign: `42%` is 42. What stands before an equals sign is none either:
    `12 + 34 = 46` is 46.
    """
    text = unadorned(text.rpartition("=")[2] if len(text) <= MAX_CHARACTERS else "")
    text = text.removesuffix("%").removesuffix("\\").rstrip(" \t").replace("\u2212", "-", 1)
    if len(text) > MAX_NUMBER:
        return None
    if (found := _LATEX_FRACTION.fullmatch(text)) or (found := _NUMBER.fullmatch(text)):
        sign, above, below = found.groups()
    else:
        return None
    if below is not None and not int(below):
        return None
    value = Fraction(above.replace(",", "")) / int(below or 1)
    return -value if sign == "-" else value


def unadorned(text: str) -> str:
    """Without the marks that chat models put around a short answer: spaces, `**`, `$`, `\\(`, a full stop."""
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
