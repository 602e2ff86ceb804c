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
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9"
_PRICE = re.compile(rf"([+-]?)[ \t]*[{_CURRENCY}][ \t]*([+-]?)")
_ESCAPES = {r"\$": "$", r"\%": "%", "{,}": ",", r"\!": "", r"\,": "", r"\;": "", r"\ ": " ", "\u2212": "-"}
_WRAPPERS = (("**", "**"), ("`", "`"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_VALUE = re.compile(rf"[-+*`(\[{{\\. \u2212{_CURRENCY}]*(?:[0-9]|[dt]?frac)")
_HEADING = re.compile(r"\**[0-9]+[.):]\**\s+\S")
_LATEX_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}", re.ASCII)
_SIGNS = {"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", r"\times": "*", r"\cdot": "*", r"\div": "/"}


def without_thoughts(text: str) -> str:
    """The text after `<think>...</think>`; a thought that never ends is removed.

    `<think>` may be missing, because some chat templates put it into the prompt.
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def final_answer(text: str, lines: int = 1, *, words: bool = False) -> str:
    r"""The final answer of a completion, without white space around it; '' if there is none.

    Thoughts are ignored. The answer is in the last `<answer>...</answer>`, in the last `\boxed{...}` (inside the tags,
    if both exist), in the line of the last `####`, or else at the end of the text. A tag or a box that never closes
    does not count. Text may follow an answer that is marked; after `####` only if a number or a bracket begins there,
    because `#### Step 2` is a heading. Only the last answer counts, so that a policy cannot give several and be
    rewarded for the best.

    Args:
        text: the completion.
        words: False to leave out words that follow a number after `####`, as in `#### 42 apples`.
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
    if lines == 1 and (marked := after_mark(text)) is not None:
        return marked if words else without_words(marked)
    last = [line for line in text.split("\n") if line.strip(BLANKS)][-lines:]
    return "\n".join(last).rpartition("####")[2].strip(BLANKS)


def after_mark(text: str) -> str | None:
    """The rest of the line after the last `####`; None if there is no mark, or if it is that of a heading."""
    _, mark, after = text.rpartition("####")
    line, _, more = after.partition("\n")
    line = line.strip(BLANKS)
    answers = not more.strip(BLANKS) or (_VALUE.match(line) and not _HEADING.match(line))
    return line if mark and answers else None


def without_words(line: str) -> str:
    """The number at the beginning of `42 apples` or `12 + 34 = 46, as I said`; any other line unchanged."""
    number, _, rest = line.rpartition("=")[2].strip(BLANKS).partition(" ")
    number, rest = number.rstrip(",;:!?"), rest.lstrip(f" -\u2013\u2014(,;:%.!?{_CURRENCY}")
    only_words_follow = not rest or rest[0].isalpha()
    return number if as_number(line) is None and as_number(number) is not None and only_words_follow else line


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
        the number, as chat models write them, LaTeX's escapes and spaces (`\$72`, `1{,}000`), a currency sign before or
        after the sign or at the end (`-$5`, `$-5`, `5 $`), and a percent sign: `42%` is 42. Only the part after the
        last equals sign is read: `12 + 34 = 46` is 46.
    """
    text = text.rpartition("=")[2].strip(" \t") if len(text) <= MAX_CHARACTERS else ""
    if len(text) > 2 * MAX_NUMBER:
        return None
    for escape, plain in _ESCAPES.items():
        text = text.replace(escape, plain)
    text = unadorned(text).removesuffix("%").rstrip(f" \t{_CURRENCY}")
    if price := _PRICE.match(text):
        text = price[1] + price[2] + text[price.end() :]
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
    text = text.strip(" \t")
    inside = text.removesuffix(".")
    for opening, closing in _WRAPPERS:
        inside = inside.removeprefix(opening).removesuffix(closing).strip(" \t")
    return inside if text.endswith(".") else inside.removesuffix(".").rstrip(" \t")


def comparable(text: str) -> Fraction | tuple[Fraction | str, ...] | str:
    r"""A line of an answer in a form that is equal for equal answers: a number, a list in brackets, or a text.

    `(1,2)` is `(1, 2)` and `(1.0, \frac{4}{2})`, but not `[1, 2]`. Case and spaces of a text are ignored, and the marks
    that `unadorned` removes.
    """
    if (number := as_number(text)) is not None:
        return number
    plain = re.sub(r"\\(?:left|right)(?![a-z])|\\(?=[{}])", "", unadorned(text))
    plain = re.sub(r"\s*([,;()\[\]{}])\s*", r"\1", " ".join(plain.split()).casefold())
    last = plain.rpartition("=")[2]
    cuts, depth = [-1], 0
    for place, character in enumerate(last):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 1:
            cuts.append(place)
    items = [last[cut + 1 : end] for cut, end in zip(cuts, [*cuts[1:], None], strict=True)]
    if len(items) == 1 or items[0][:1] not in ("(", "[", "{") or items[-1][-1:] not in (")", "]", "}"):
        return plain
    opening, items[0], closing, items[-1] = items[0][0], items[0][1:], items[-1][-1], items[-1][:-1]
    numbers = map(as_number, items)
    found = [item if number is None else number for item, number in zip(items, numbers, strict=True)]
    return (opening, *found, closing)


def as_expression(text: str) -> str:
    """An arithmetic expression in the letters of `parse_expression`: `$5 \\times 3 + 9$` -> `5 * 3 + 9`."""
    text = unadorned(text)
    for sign, ascii_sign in _SIGNS.items():
        text = text.replace(sign, ascii_sign)
    return text
