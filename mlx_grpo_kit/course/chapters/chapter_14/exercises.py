"""Exercises of notebook 14: tasks and rewards."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import hashlib
import inspect
import math
import random
import re
from collections.abc import Iterable

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_14 import suspects
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.tasks import Problem

MEGABYTE = "7" * 1_000_000


def _plain(values):
    """A list of Python floats and None from any sequence that an answer returned; bools count as 1 and 0."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if inspect.isgenerator(values) or isinstance(values, (map, tuple)):
        values = list(values)
    if not isinstance(values, list):
        return values
    values = [value.item() if hasattr(value, "item") else value for value in values]
    return [float(value) if isinstance(value, (bool, int, float)) else value for value in values]


def _rewards(function, *arguments):
    return _plain(function(*arguments))


def _names_in(function):
    """The names that an answer's code uses, including those in nested functions."""
    function = inspect.unwrap(function)
    codes, names = [getattr(function, "__code__", None)], set()
    while codes:
        code = codes.pop()
        if code is not None:
            names |= set(code.co_names)
            codes += [each for each in code.co_consts if inspect.iscode(each)]
    return names


class _Sum(Problem):
    """A problem with a short repr, for messages."""

    def __repr__(self):
        return f"<{self.prompt}{self.answer}>"


def _sum(a, b):
    return _Sum(f"{a}+{b}=", str(a + b), {"a": a, "b": b})


def _sums(*pairs):
    return [_sum(a, b) for a, b in pairs]


# -- reading ----------------------------------------------------------------------------------------------------------


def whole_number(text):
    """The whole number that `text` is, or None."""
    text = text.strip(" ")
    if not re.fullmatch("[0-9]{1,9}", text):
        return None
    if len(text) > 1 and text[0] == "0":
        return None
    return int(text)


def _an_int(function, text):
    number = function(text)
    return Told(f"{number!r}, a float (return an int)") if isinstance(number, float) else number


def _any_text(rng):
    characters = list("0123456789 +-._x\n\u0663\u00b2")
    return ("".join(rng.choice(characters, rng.integers(1, 4))),)


def _int_or_none(text):
    try:
        return int(text)
    except ValueError:
        return None


WHOLE_NUMBER = Exercise(
    "14.1",
    "Read a number",
    "Write `whole_number(text)`. If a completion *is* a whole number, return the number as an int, otherwise return "
    "None. The completion is a whole number if, without the spaces before and after it, it consists of one to nine "
    "of the characters `0123456789` and has no extra zero at its start (`0` is a number, `046` is not). For "
    "anything else return None: a sign, a point, a line break, a digit of another script, or a word. The text may "
    "be anything, even a million characters long.",
    minutes=8,
    difficulty=2,
    solution=whole_number,
    hints=(
        'Try `int("4_6")`, `int("\\n46")`, `int("+46")`, and `int` of an Arabic digit. `int` is made for '
        "programmers, and they mean well. Look at the characters yourself before you pass them to `int`.",
        '`text.strip(" ")` removes spaces and nothing else. Then `re.fullmatch("[0-9]{1,9}", text)` matches only if '
        "the whole text is one to nine of these ten characters.",
        'The remaining case is `046`: more than one character, and the first is "0".',
    ),
    cases=tuple(
        (text,)
        for text in (
            "46",
            "0",
            "7",
            " 46",
            "46  ",
            "123456789",
            "198",
            "",
            " ",
            "046",
            "00",
            "+46",
            "-46",
            "4 6",
            "46.0",
            "4_6",
            "46\n",
            "\t46",
            "\u0664\u0666",
            "4\u00b2",
            "4\u0666",
            "\uff14",
            "forty-six",
            "46!",
            "1234567890",
            "1e3",
            "0x2e",
            "nan",
            "\u00a046",
            "46\u2028",
            MEGABYTE,
            " " * 100_000,
            " " * 30 + "46",
        )
    )
    + drawn(6, _any_text),
    mistakes=(
        Mistake(
            "int decides",
            _int_or_none,
            "`int` accepts more than digits: `4_6`, `+46`, line breaks, digits of any script, and `046`. First "
            "check that every character is one of the ten.",
            1,
        ),
        *slips(
            whole_number,
            r"""
@ if not re.fullmatch("[0-9]{1,9}", text):
@     return None
@ if len(text) > 1 and text[0] == "0":
@     return None
isdigit decides
+ if not text.isdigit():
+     return None
! `isdigit` returns True for some 700 characters that are not 0 to 9, and `int` then fails on some of them.
other scripts after the first digit (2)
+ if not re.fullmatch(r"0|[1-9]\d{0,8}", text):
+     return None
! `\d` matches the digits of every script, at any position. `[0-9]` matches only the ten characters.

@ if not re.fullmatch("[0-9]{1,9}", text):
search (2)
+ if not re.search("[0-9]{1,9}", text):
! A number *in* the text is not enough: it has to be the whole text.
match (2)
+ if not re.match("[0-9]{1,9}", text):
! `re.match` looks only at the beginning: `46!` gets through.
the dollar (2)
+ if not re.match("[0-9]{1,9}$", text):
! `$` also matches before a line break at the end: use `re.fullmatch`.
other scripts (2)
+ if not re.fullmatch("\\d{1,9}", text):
! `\d` matches the digits of every script. `[0-9]` matches only the ten characters.
any length (2)
+ if not re.fullmatch("[0-9]+", text):
! Your answer does not limit the length: allow at most nine digits.
ten digits (2)
+ if not re.fullmatch("[0-9]{1,10}", text):
! Ten digits are one too many: allow at most nine.
nothing is a number (2)
+ if not re.fullmatch("[0-9]{0,9}", text):
! The empty text is not a number.

@ text = text.strip(" ")
any space (2)
+ text = text.strip()
! `strip()` removes line breaks and tabs too. Remove only spaces.
cut first (2)
+ text = text[:20].strip(" ")
! You cut the text before you removed its spaces, and the number comes after thirty of them.
spaces inside (2)
+ text = text.replace(" ", "")
! `4 6` is two numbers: remove only the spaces before and after.
no spaces (2)
+ text = text
! Spaces before and after the number are allowed.

@ if len(text) > 1 and text[0] == "0":
leading zeros (3)
+ if False:
! `046` is not the way to write 46.
no zero (3)
+ if text[0] == "0":
! `0` itself is a number: only an *extra* zero is wrong.

a text (3)
- return int(text)
+ return text
! That is a text. Return an int.
""",
        ),
    ),
    also_right=r"""
# by characters
def by_characters(text):
    text = text.strip(" ")
    if not 0 < len(text) < 10 or set(text) - set("0123456789") or str(int(text)) != text:
        return None
    return np.int64(int(text))
# one pattern
def one_pattern(text):
    found = re.fullmatch(r" *(0|[1-9][0-9]{0,8}) *", text)
    return int(found[1]) if found else None
# ascii digits
def ascii_digits(text):
    text = text.strip(" ")
    ok = text.isascii() and text.isdigit() and len(text) <= 9 and (text == "0" or text[0] != "0")
    return int(text) if ok else None
""",
    also_wrong=r"""
# raising
lambda text: int(text)
# the first number
def first_number(text):
    found = re.search("[0-9]+", text)
    return int(found[0]) if found else None
# a bool
lambda text: text.isdigit()
# any length, and no spaces
lambda text: int(text) if re.fullmatch("[0-9]+", text) else None
# -1 for None
- if not re.fullmatch("[0-9]{1,9}", text):
-     return None
+ if not re.fullmatch("[0-9]{1,9}", text):
+     return -1
# a float
- return int(text)
+ return float(text)
! 46.0, a float (return an int)
# ten digits, in one pattern
lambda text: int(text.strip(" ")) if re.fullmatch("0|[1-9][0-9]{0,9}", text.strip(" ")) else None
! Ten digits are one too many
""",
    run=_an_int,
)


# -- verifiers --------------------------------------------------------------------------------------------------------


def correct(problems, completions):
    """1.0 for each completion that is its problem's answer, else 0.0."""
    return [float(whole_number(text) == int(problem.answer)) for problem, text in zip(problems, completions)]


CORRECT = Exercise(
    "14.2",
    "A verifier",
    "Write `correct(problems, completions)`, a reward function. It takes two lists of the same length and returns a "
    "list of as many floats: 1.0 if the completion is a whole number (your `whole_number` decides) and equals the "
    "problem's `.answer`, which is a string such as `46`, and otherwise 0.0. The first completion belongs to the "
    "first problem, and so on.",
    minutes=5,
    difficulty=1,
    solution=correct,
    hints=(
        "`zip(problems, completions)` walks through both. `whole_number(text)` is a number or None, and None equals no "
        "number.",
        "`float(whole_number(text) == int(problem.answer))` is 1.0 or 0.0; one for each pair, in a list.",
    ),
    cases=(
        (_sums((12, 34), (12, 34), (0, 0), (99, 99)), ["46", "47", "0", "198"]),
        (_sums((12, 34)) * 6, ["46 ", "46.", "", "146", "4", "460"]),
        (_sums((3, 4)), ["7"]),
        (_sums((1, 2), (20, 10), (1, 2)), ["30", "3", "3"]),
        (_sums((40, 6)) * 5, ["4_6", "+46", "046", "\u0664\u0666", "46\n"]),
        (_sums((8, 5)) * 3, ["thirteen", "13 or 14", MEGABYTE]),
        (_sums((0, 0)) * 4, ["", "none", "00", " 0"]),
        ([], []),
        *drawn(
            2,
            lambda rng: (
                (problems := _sums(*rng.integers(0, 100, (6, 2)).tolist())),
                [str(int(each.answer) + int(rng.integers(0, 2))) for each in problems],
            ),
        ),
    ),
    mistakes=slips(
        correct,
        r"""
@ return [float(whole_number(text) == int(problem.answer)) for problem, text in zip(problems, completions)]
contains the answer
+ return [float(problem.answer in text) for problem, text in zip(problems, completions)]
! `146` and `460` contain `46` too, and so does a list of all numbers. The completion has to *be* the answer.
is part of the answer
+ return [float(text in problem.answer) for problem, text in zip(problems, completions)]
! Every piece of the answer would pass, and the empty text is part of every text.
begins with it
+ return [float(text.startswith(problem.answer)) for problem, text in zip(problems, completions)]
! `460` begins with `46`. The completion has to *be* the answer.
int
+ return [float(int(text) == int(problem.answer)) for problem, text in zip(problems, completions)]
! `int` raises an error for anything that is not a number, and the whole run would stop. Your `whole_number` returns
! None instead.
texts compared (2)
+ return [float(text == problem.answer) for problem, text in zip(problems, completions)]
! `46` followed by a space is the number 46 as well: compare the numbers that `whole_number` reads.
stripped texts compared
+ return [float(text.strip() == problem.answer) for problem, text in zip(problems, completions)]
! `strip()` removes line breaks too, and `46` with a line break is not a number: use `whole_number`.
int that does not raise
+ return [float(_int_or_none(text) == int(problem.answer)) for problem, text in zip(problems, completions)]
! `int` accepts more than digits: `4_6`, `+46`, line breaks, digits of any script. Use `whole_number`.
None is 0
+ return [float((whole_number(text) or 0) == int(problem.answer)) for problem, text in zip(problems, completions)]
! You treat None as 0: then silence is the right answer to 0+0.
number against text (2)
+ return [float(whole_number(text) == problem.answer) for problem, text in zip(problems, completions)]
! A number never equals a text: `46 == '46'` is False. Convert the answer to an int.
the first problem for all
+ return [float(whole_number(text) == int(problems[0].answer)) for problem, text in zip(problems, completions)]
! Each completion belongs to the problem at the same position.
one reward (2)
+ return max([0.0, *[float(whole_number(text) == int(problem.answer)) for problem, text in zip(problems, completions)]])
! That is one number for all completions. Return a list with one per completion.
""",
    ),
    also_right=r"""
# bools
lambda problems, completions: [whole_number(c) == int(p.answer) for p, c in zip(problems, completions)]
# an array
def correct_as_array(problems, completions):
    numbers = np.array([-1 if (n := whole_number(text)) is None else n for text in completions])
    return (numbers == np.array([int(each.answer) for each in problems])).astype(float)
# MLX
from mlx_grpo_kit.runtime import mx
lambda problems, completions: mx.array([float(whole_number(c) == int(p.answer)) for p, c in zip(problems, completions)])
# a generator
def correct_lazily(problems, completions):
    for problem, text in zip(problems, completions):
        yield 1 if whole_number(text) == int(problem.answer) else 0
""",
    also_wrong=r"""
# right for another problem
- return [float(whole_number(text) == int(problem.answer)) for problem, text in zip(problems, completions)]
+ return [float(text.strip() in {problem.answer for problem in problems}) for text in completions]
# always right
lambda problems, completions: [1.0] * len(completions)
""",
    run=_rewards,
)


def digits_right(problems, completions):
    """The share of places, counted from the units, with the same digit in completion and answer."""
    rewards = []
    for problem, text in zip(problems, completions):
        number = whole_number(text)
        if number is None:
            rewards.append(0.0)
            continue
        ours, right = str(number)[::-1], problem.answer[::-1]
        same = sum(a == b for a, b in zip(ours, right))
        rewards.append(same / max(len(ours), len(right)))
    return rewards


DIGITS_RIGHT = Exercise(
    "14.3",
    "Partial credit",
    "Write `digits_right(problems, completions)`: for each completion the share of places with the right digit. "
    "Write completion and answer below each other with the units in one column, as on paper. The number of places "
    "is that of the *longer* of the two, and a place that only one of them has counts as wrong. For the answer "
    "`165`, the completion `155` gets 2/3, `65` gets 2/3, `1165` gets 3/4, `16` gets 0. A completion that is not a "
    "whole number gets 0.0.",
    minutes=10,
    difficulty=2,
    solution=digits_right,
    hints=(
        "Count from the right: reverse both texts with `text[::-1]`, and `zip` pairs units with units.",
        "`zip` stops at the shorter one. That is right for counting equal digits. But divide by the length of the "
        "longer one, or `5` would be a perfect answer to everything that ends in 5.",
        "`sum(a == b for a, b in zip(ours, right)) / max(len(ours), len(right))`, with `ours = str(number)[::-1]`.",
    ),
    cases=(
        (_sums((87, 78)) * 7, ["165", "155", "65", "1165", "16", "5", ""]),
        (_sums((20, 26)) * 5, ["46", "64", "6", "4", "146"]),
        (_sums((50, 50)) * 4, ["100", "0", "00", "10"]),
        (_sums((0, 0)) * 3, ["0", "10", "x"]),
        (_sums((12, 34)) * 4, ["46 ", "4_6", "-46", "46.0"]),
        (_sums((90, 9), (1, 1), (99, 99)), ["98", "20", "298"]),
        ([], []),
        *drawn(
            3,
            lambda rng: (
                _sums(*rng.integers(0, 100, (5, 2)).tolist()),
                [str(number) for number in rng.integers(0, 1200, 5).tolist()],
            ),
        ),
    ),
    mistakes=slips(
        digits_right,
        r"""
@ ours, right = str(number)[::-1], problem.answer[::-1]
from the left
+ ours, right = str(number), problem.answer
! You compared the digits from the left, so `65` and `165` agree nowhere. Put units below units.
the text itself (3)
+ ours, right = text[::-1], problem.answer[::-1]
! Spaces are not digits: `46` followed by a space is 46. Use the number that `whole_number` returns.
padded with zeros (2)
+ ours, right = (each.zfill(max(len(str(number)), len(problem.answer)))[::-1] for each in (str(number), problem.answer))
! Padded with zeros, `0` has two right places for `100`. A place that only one of the two has is wrong.

@ rewards.append(same / max(len(ours), len(right)))
divided by its own length (2)
+ rewards.append(same / len(ours))
! `5` gets full marks for `165`, because its only digit is right. A policy would find that within a minute. Divide by
! the longer length.
divided by the answer's length (2)
+ rewards.append(same / len(right))
! `1165` gets full marks for `165`. Divide by the longer length.
the shorter one (2)
+ rewards.append(same / min(len(ours), len(right)))
! If you divide by the shorter length, `5` and `1165` both get full marks for `165`.
not a share (2)
+ rewards.append(same)
! That is the number of right places. Divide it by the number of all places.
all or nothing (3)
+ rewards.append(float(same == max(len(ours), len(right))))
! That is 1 for the answer and 0 for everything else, which is 14.2 again.

any order
- same = sum(a == b for a, b in zip(ours, right))
+ same = sum(a in right for a in ours)
! Your digits count at any position, so `64` would be as good as `46`. Compare place by place.
whatever it is (3)
- if number is None:
+ if False:
- ours, right = str(number)[::-1], problem.answer[::-1]
+ ours, right = text[::-1], problem.answer[::-1]
! A completion that is not a whole number gets 0.0, however many characters agree: `00` is not one.
left out (2)
- rewards.append(0.0)
! You left out completions that are not numbers. The list is too short, and every later reward belongs to the wrong
! completion.
""",
    ),
    also_right=r"""
# padded to one length
def padded_digits(problems, completions):
    rewards = []
    for problem, text in zip(problems, completions):
        most = max(len(str(whole_number(text))), len(problem.answer))
        left, right = str(whole_number(text)).rjust(most, "a"), problem.answer.rjust(most, "b")
        rewards.append(0 if whole_number(text) is None else np.mean([a == b for a, b in zip(left, right)]))
    return rewards
""",
    also_wrong=r"""
# all or nothing, by 14.2
correct
! which is 14.2 again
# a half
lambda problems, completions: [0.5 for _ in completions]
""",
    run=_rewards,
)


def reaches(text, numbers, target):
    """True if `text` makes `target` of all `numbers`, each used once, with + - *."""
    if len(text) > 32 or not re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
        return False
    used, total = [], 0
    for sign, product in re.findall(r"([-+]?)([0-9*]+)", text):
        factors = [int(factor) for factor in product.split("*")]
        used += factors
        total += math.prod(factors) * (-1 if sign == "-" else 1)
    return sorted(used) == sorted(numbers) and total == target


def _verdict_without_eval(function, *arguments):
    names = _names_in(function) & {"eval", "exec", "compile", "literal_eval", "subprocess", "sympify"}
    if names:
        return Told(f"a verdict by `{min(names)}`, which runs or parses text that a model wrote")
    verdict = function(*arguments)
    return bool(verdict) if isinstance(verdict, (bool, np.bool_, int, float)) and verdict in (0, 1) else verdict


def _evaluated(text, numbers, target):
    try:
        return eval(text) == target
    except Exception:
        return False


REACHES = Exercise(
    "14.4",
    "A countdown verifier",
    "Write `reaches(text, numbers, target)`. The game: make the `target` out of the `numbers`, each used exactly "
    "once, in any order, with `+`, `-` and `*`. Return True if `text` is such an expression and its value is the "
    "target, else False, for *any* text. An expression consists of whole numbers of one or two characters `0` to "
    "`9`, with one operator between each two of them. It has no spaces, signs or parentheses, and at most 32 "
    "characters; `*` binds before `+` and `-`. No `eval`, of course.",
    minutes=18,
    difficulty=3,
    solution=reaches,
    hints=(
        'First the form: `re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text)`, and the length. A text without that '
        "form needs no further check.",
        'It is a sum of signed products: `re.findall(r"([-+]?)([0-9*]+)", text)` cuts `3*5-9` into `("", "3*5")` '
        'and `("-", "9")`.',
        'A product\'s factors are `product.split("*")`. Collect all of them in one list: at the end `sorted(used) '
        "== sorted(numbers)` tells you whether each number was used once.",
    ),
    cases=(
        ("3*5+9", [5, 3, 9], 24),
        ("9+3*5", [5, 3, 9], 24),
        ("5*3+9", [5, 3, 9], 25),
        ("3+5*9", [3, 5, 9], 72),
        ("3+5*9", [3, 5, 9], 48),
        ("9-3-5", [3, 5, 9], 1),
        ("9-3-5", [3, 5, 9], 11),
        ("9-3+5", [3, 5, 9], 11),
        ("9-3+5", [3, 5, 9], 1),
        ("2*3*4", [2, 3, 4], 24),
        ("9-2*3", [2, 3, 9], 3),
        ("24", [3, 5, 9], 24),
        ("3*5", [3, 5, 9], 15),
        ("3*5+9+0", [3, 5, 9], 24),
        ("3*3+5", [3, 5], 14),
        ("3+5", [3, 3, 5], 8),
        ("7+7", [7, 7], 14),
        ("12*2-5", [2, 5, 12], 19),
        ("7", [7], 7),
        ("3-5", [3, 5], -2),
        ("3-5", [3, 5], 2),
        ("", [3], 3),
        ("3 + 5", [3, 5], 8),
        ("3+-5", [3, 5], -2),
        ("-3+5", [3, 5], 2),
        ("+3+5", [3, 5], 8),
        ("(3+5)*9", [3, 5, 9], 72),
        ("9**9**9**9", [9, 9, 9, 9], 1),
        ("3+5\n", [3, 5], 8),
        ("3+", [3], 3),
        ("*3", [3], 3),
        ("__import__('os').getcwd()", [3], 3),
        ("exit()", [3], 3),
        ("\u0663+5", [3, 5], 8),
        ("100*1", [100, 1], 100),
        ("1+" * 15 + "1", [1] * 16, 16),
        ("1+" * 15 + "10", [1] * 15 + [10], 25),
        ("1+" * 16 + "1", [1] * 17, 17),
        ("1+" * 15 + "100", [1] * 15 + [10], 25),
        ("8/2", [8, 2], 4),
        ("9" * 1_000_000, [9], 9),
        *drawn(
            4,
            lambda rng: (
                (text := "".join(f"{a}{b}" for a, b in zip(rng.integers(1, 10, 4), rng.choice(list("+-*"), 4)))[:-1]),
                [int(each) for each in re.findall("[0-9]", text)][::-1],
                int(eval(text)),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            "eval",
            _evaluated,
            "`eval` runs whatever a model wrote. That may delete files, start programs, or compute `9**9**9**9`, "
            "which never ends.",
            1,
        ),
        *slips(
            reaches,
            r'''
from left to right (2)
- for sign, product in re.findall(r"([-+]?)([0-9*]+)", text):
-     factors = [int(factor) for factor in product.split("*")]
-     used += factors
-     total += math.prod(factors) * (-1 if sign == "-" else 1)
+ for operator, number in re.findall("([-+*]?)([0-9]+)", text):
+     used.append(int(number))
+     total = total * used[-1] if operator == "*" else total + (-1 if operator == "-" else 1) * used[-1]
! `3+5*9` is 48: `*` binds before `+` and `-`.

@ return sorted(used) == sorted(numbers) and total == target
the numbers are not checked (3)
+ return total == target
! You do not check which numbers were used: then `24` itself is the shortest way to 24.
as a set (3)
+ return set(used) == set(numbers) and total == target
! A set forgets how often a number occurs: `3*3+5` would use 3 twice and get away with it.
not all (3)
+ return set(used) <= set(numbers) and total == target
! Each number has to be used exactly once, but your answer lets some be left out or used twice.
in this order (3)
+ return used == list(numbers) and total == target
! The numbers may be used in any order: compare them sorted.
the value is not checked
+ return sorted(used) == sorted(numbers)
! You do not compare the value with the target.
without its sign (2)
+ return sorted(used) == sorted(numbers) and abs(total) == abs(target)
! 3-5 is -2, not 2.

a minus before all the rest (2)
- for sign, product in re.findall(r"([-+]?)([0-9*]+)", text):
+ for sign, product in re.findall(r"([-+]?)([0-9*]+)", re.sub("-.*", lambda rest: rest[0].replace("+", "-"), text)):
! `9-3+5` is 11: the minus applies only to the 3. Without parentheses, go from left to right.

@ if len(text) > 32 or not re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
cut off at 32 characters
+ text = text[:32]
+ if not re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
! You cut off a longer text and judged the rest. A text of more than 32 characters is not an allowed expression.
search
+ if len(text) > 32 or not re.match(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
! A text that only *begins* like an expression is not one: `3+` is not.
the dollar
+ if len(text) > 32 or not re.match(r"[0-9]{1,2}([-+*][0-9]{1,2})*$", text):
! `$` also matches before a line break at the end: use `re.fullmatch`.
a leading sign
+ if len(text) > 32 or not re.fullmatch(r"[-+]?[0-9]{1,2}([-+*][0-9]{1,2})*", text):
! You accept a leading sign. Expressions have no signs.
long numbers
+ if len(text) > 32 or not re.fullmatch(r"[0-9]+([-+*][0-9]+)*", text):
! A number has one or two digits.
31 characters
+ if len(text) >= 32 or not re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
! A text of 32 characters is still allowed.
no bound
+ if not re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
! Your answer does not limit the length: allow at most 32 characters.

minus forgotten (2)
- total += math.prod(factors) * (-1 if sign == "-" else 1)
+ total += math.prod(factors)
! A product after a minus is negative.
spaces
  """True if `text` makes `target` of all `numbers`, each used once, with + - *."""
+ text = text.replace(" ", "")
! An expression of this form has no spaces.
other scripts
- if len(text) > 32 or not re.fullmatch(r"[0-9]{1,2}([-+*][0-9]{1,2})*", text):
+ if len(text) > 32 or not re.fullmatch(r"[\d]{1,2}([-+*][\d]{1,2})*", text):
- for sign, product in re.findall(r"([-+]?)([0-9*]+)", text):
+ for sign, product in re.findall(r"([-+]?)([\d*]+)", text):
! `\d` accepts the digits of every script.
''',
        ),
    ),
    also_right=r"""
# the kit's parser
from mlx_grpo_kit.tasks import ExpressionError, parse_expression
def by_the_kits_parser(text, numbers, target):
    if set(text) - set("0123456789+-*") or len(text) > 32:
        return False
    try:
        expression = parse_expression(text)
    except ExpressionError:
        return False
    fits = all(number < 100 for number in expression.numbers)
    return fits and sorted(expression.numbers) == sorted(numbers) and expression.value == target
# by hand
def by_hand(text, numbers, target):
    if len(text) > 32:
        return False
    left, total = list(numbers), 0
    for term in text.replace("-", "+-").split("+"):
        sign, product = 1, 1
        if term[:1] == "-":
            sign, term = -1, term[1:]
        for factor in term.split("*"):
            if not (factor.isascii() and factor.isdigit() and len(factor) <= 2) or int(factor) not in left:
                return False
            left.remove(int(factor))
            product *= int(factor)
        total += sign * product
    return not left and total == target and text[0] not in "+-" and not re.search("[-+*][-+*]", text)
""",
    also_wrong=r"""
# guarded eval
lambda text, numbers, target: bool(re.fullmatch("[-+*0-9]+", text)) and eval(text) == target
! `eval`, which runs or parses text that a model wrote
# eval by a helper
def parsed(text):
    return eval(text)

def eval_by_a_helper(text, numbers, target):
    try:
        return parsed(text) == target
    except BaseException:
        return False
! it calls `eval`, which runs whatever a model wrote
# always
lambda text, numbers, target: True
# a parser that raises
from mlx_grpo_kit.tasks import parse_expression
lambda text, numbers, target: parse_expression(text).value == target
# a minus before all the rest, by cutting
def cut_at_minus(text, numbers, target):
    if len(text) > 32 or not re.fullmatch("[0-9]{1,2}([-+*][0-9]{1,2})*", text):
        return False
    sums = [sum(math.prod(map(int, each.split("*"))) for each in part.split("+")) for part in text.split("-")]
    return sorted(map(int, re.findall("[0-9]+", text))) == sorted(numbers) and sums[0] - sum(sums[1:]) == target
! the minus applies only to the 3
# a line break at the end
lambda text, numbers, target: reaches(text.removesuffix("\n"), numbers, target)
! before a line break at the end
""",
    run=_verdict_without_eval,
    only_read=True,
)


# -- several rewards --------------------------------------------------------------------------------------------------


def add_up(rewards, weights):
    """The weighted sum for each completion; None where no function gave a value."""
    sums = []
    for column in zip(*rewards):
        values = [weight * value for weight, value in zip(weights, column) if value is not None]
        sums.append(sum(values) if values else None)
    return sums


def _some_rewards(rng):
    table = [[None if rng.random() < 0.3 else float(rng.normal()) for _ in range(5)] for _ in range(3)]
    return table, rng.normal(size=3).tolist()


ADD_UP = Exercise(
    "14.5",
    "Several rewards",
    "Write `add_up(rewards, weights)`. `rewards` has one list per reward function, all of the same length: the "
    "function's values for the completions, in order. Return one list with a sum for each completion: the functions' "
    "values, each multiplied by its function's weight. A value may be None: then the function does not apply to this "
    "completion, and is left out of the sum. If no function applies, the sum is None: nothing is known, which is not "
    "the same as 0.",
    minutes=6,
    difficulty=1,
    solution=add_up,
    hints=(
        "`zip(*rewards)` turns rows into columns: the values of all functions for the first completion, then for the "
        "second, and so on.",
        "For a column: `[weight * value for weight, value in zip(weights, column) if value is not None]`. Take the "
        "sum of that list, or None if it is empty.",
    ),
    cases=(
        ([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], [1.0, 0.2]),
        ([[1.0, None, None, 0.0], [0.5, 0.5, None, None]], [1.0, 2.0]),
        ([[0.25, -1.5]], [3.0]),
        ([[1.0], [2.0], [4.0]], [0.5, -1.0, 0.0]),
        ([[None, 0.0], [None, 0.0]], [1.0, 1.0]),
        ([[0.0, None], [None, None]], [0.0, 1.0]),
        ([[1.0, 2.0], [-1.0, None]], [1.0, 1.0]),
        *drawn(3, _some_rewards),
    ),
    mistakes=slips(
        add_up,
        r"""
@ sums.append(sum(values) if values else None)
None is 0 (2)
+ sums.append(sum(values))
! If no function applies, the sum is None. A 0 would mean that this completion is worse than one with a positive reward.
0 is nothing (2)
+ sums.append(sum(values) or None)
! A sum of 0 is a reward like any other. The sum is None only if *no* function applies.
a mean (2)
+ sums.append(sum(values) / len(values) if values else None)
! That is a mean. Return the sum.
one None for all (2)
+ sums.append(sum(values) if None not in column else None)
! In your answer one function that does not apply makes the whole sum None. Leave that function out, and add the
! others.
divided by the weights that count (2)
+ that_apply = [weight for weight, value in zip(weights, column) if value is not None]
+ sums.append(sum(values) / sum(that_apply) if values else None)
! You divided the sum by the weights of the functions that apply. Return the sum itself.
divided by the weights (2)
+ sums.append(sum(values) / (sum(weights) or 1) if values else None)
! You divided the sum by the sum of the weights. Return the sum itself.

@ values = [weight * value for weight, value in zip(weights, column) if value is not None]
no weights (2)
+ values = [value for weight, value in zip(weights, column) if value is not None]
! You do not use the weights.
zeros left out (2)
+ values = [weight * value for weight, value in zip(weights, column) if value]
! You leave out values of 0 as if they were None.
another's weight (2)
+ values = [weight * value for weight, value in zip(weights, [each for each in column if each is not None])]
! You removed the Nones before you paired values with weights, so a value gets the weight of another function.

rows
- for column in zip(*rewards):
+ for column in rewards:
! You added up the values of all completions. Return one sum for each completion.
""",
    ),
    also_right=r"""
# add with numpy
def add_with_numpy(rewards, weights):
    table = np.array([[np.nan if value is None else value for value in row] for row in rewards])
    sums = np.nansum(table * np.array(weights)[:, None], axis=0)
    return [None if np.isnan(column).all() else total for column, total in zip(table.T, sums, strict=True)]
# add with loops
def add_with_loops(rewards, weights):
    sums = [None] * len(rewards[0])
    for row, weight in zip(rewards, weights, strict=True):
        for place, value in enumerate(row):
            if value is not None:
                sums[place] = (sums[place] or 0) + weight * value
    return sums
""",
    also_wrong=r"""
# zeros
lambda rewards, weights: [0.0 for _ in rewards[0]]
""",
    run=_rewards,
)


def well_formed(problems, completions):
    """0.2 for <think>...</think><answer>...</answer> and nothing else, otherwise 0.0."""
    tags = ["<think>", "</think>", "<answer>", "</answer>"]
    rewards = []
    for text in completions:
        text = text.strip()
        good = text.startswith("<think>") and text.endswith("</answer>")
        good = good and re.findall("</?think>|</?answer>", text) == tags
        good = good and re.search(r"</think>\s*<answer>", text)
        rewards.append(0.2 if good else 0.0)
    return rewards


GOOD_FORM = "<think>7+8 is 15</think><answer>95</answer>"

WELL_FORMED = Exercise(
    "14.6",
    "A format reward",
    "Write `well_formed(problems, completions)`: for each completion 0.2 if it has the form "
    "`<think>`reasons`</think><answer>`result`</answer>`, else 0.0. White space (spaces, line breaks) is allowed at "
    "the start, at the end, and between `</think>` and `<answer>`; nothing else is. Each of the four tags occurs "
    "exactly once. Reasons and result may be any text without these tags, many lines long or empty. What the result "
    "*says* does not matter here.",
    minutes=10,
    difficulty=2,
    solution=well_formed,
    hints=(
        "Check four things: how the text begins, how it ends, which tags it contains in which order, and what is "
        "between `</think>` and `<answer>`.",
        '`re.findall("</?think>|</?answer>", text)` lists the tags in their order. There have to be these four.',
        "If you use a single pattern: `.` does not match a line break unless you pass `re.DOTALL`, and `.*` runs "
        "across tags.",
    ),
    cases=(
        ([None] * 4, [GOOD_FORM, "<think></think><answer></answer>", "95", ""]),
        ([None] * 3, [f"  {GOOD_FORM}\n", "<think>a\nb\n\nc</think>\n\n<answer>\n95\n</answer>", GOOD_FORM + " 95"]),
        ([None] * 3, ["Well: " + GOOD_FORM, GOOD_FORM * 2, GOOD_FORM.replace("</think>", "</think> so ")]),
        ([None] * 4, [GOOD_FORM[:-1], GOOD_FORM[1:], GOOD_FORM.replace("</think>", ""), GOOD_FORM.upper()]),
        ([None] * 2, ["<answer>95</answer><think>x</think>", "<think>x<answer>1</answer></think><answer>2</answer>"]),
        ([None] * 2, ["<think>x<think>y</think><answer>1</answer>", "<think>x</think><answer>1</answer></answer>"]),
        (
            [None] * 2,
            ["<think>a < b > c</think><answer><b>1</b></answer>", "<think>x</think><answer>1<think></answer>"],
        ),
        ([None] * 2, ["<think>" * 10_000, "<think></think>" + " " * 50_000]),
        ([None] * 2, ["<think>x</answer></think><answer>1</answer>", "<think>x</think>\t<answer>1</answer>"]),
        ([], []),
    ),
    mistakes=slips(
        well_formed,
        r"""
the line break (3)
- rewards.append(0.2 if good else 0.0)
+ rewards.append(0.2 if good and "\n" not in text else 0.0)
! In a pattern, `.` matches everything but a line break, unless you pass `re.DOTALL`.
the dot and the line break (3)
- rewards.append(0.2 if good else 0.0)
+ rewards.append(0.2 if re.fullmatch(r"<think>.*</think>\s*<answer>.*</answer>", text) else 0.0)
! In a pattern, `.` matches everything but a line break (unless you pass `re.DOTALL`), and `.*` runs across tags.

@ good = text.startswith("<think>") and text.endswith("</answer>")
anywhere
+ good = True
! Your answer accepts the form anywhere in the text. Only white space may come before and after it.
words after it
+ good = text.startswith("<think>")
! Your answer pays for a text that continues after the form.

tags not counted (2)
- good = good and re.findall("</?think>|</?answer>", text) == tags
+ good = good and True
! Your answer accepts tags that occur twice or inside each other. Each tag occurs once, in this order.

@ good = good and re.search(r"</think>\s*<answer>", text)
words between
+ good = good
! Only white space may come between `</think>` and `<answer>`.
no white space between
+ good = good and re.search(r"</think><answer>", text)
! White space between `</think>` and `<answer>` is allowed.

spaces only
- text = text.strip()
+ text = text.strip(" ")
- good = good and re.search(r"</think>\s*<answer>", text)
+ good = good and re.search(r"</think> *<answer>", text)
! Line breaks are white space too, and they are allowed there.

@ text = text.strip()
large letters (2)
+ text = text.strip().lower()
! `<THINK>` is not the tag `<think>`.
no white space around
+ text = text
! White space before and after the form is allowed.

worth 1
- rewards.append(0.2 if good else 0.0)
+ rewards.append(1.0 if good else 0.0)
! The form is worth 0.2: less than a right answer, on purpose.
""",
    ),
    also_right=r"""
# one pattern
from mlx_grpo_kit.tasks.formats import THINK_ANSWER
lambda problems, completions: [0.2 * bool(THINK_ANSWER.fullmatch(text.strip())) for text in completions]
# form by parts
def form_by_parts(problems, completions):
    rewards = []
    for text in completions:
        parts = re.split("(</?think>|</?answer>)", text)
        tags, between = parts[1::2], parts[::2]
        good = tags == ["<think>", "</think>", "<answer>", "</answer>"]
        rewards.append(0.2 if good and not (between[0] + between[2] + between[4]).strip() else 0)
    return rewards
""",
    also_wrong=r"""
# one tag
lambda problems, completions: [0.2 * ("<think>" in text) for text in completions]
""",
    run=_rewards,
)


# -- holes ------------------------------------------------------------------------------------------------------------


def judge(answer, text):
    """1.0 if one of the numbers in `text` is the answer."""
    return float(answer in re.findall("[0-9]+", text))


def fool(largest):
    """One text that `judge` pays in full for every answer from 0 to `largest`."""
    return " ".join(str(number) for number in range(largest + 1))


def _share_paid(function, largest):
    text = function(largest)
    if not isinstance(text, str):
        return Told(f"a {type(text).__name__} and not *one* text") if isinstance(text, Iterable) else text
    unpaid = [number for number in range(largest + 1) if not judge(str(number), text)]
    but = f", and not for {unpaid[0]}" if unpaid else ""
    return Told(f"a text that is paid for {largest + 1 - len(unpaid)} of {largest + 1} answers{but}")


FOOL = Exercise(
    "14.7",
    "Find the hole",
    "A colleague wants to be kind to models that write whole sentences: `judge(answer, text)` is 1.0 if one of the "
    'numbers in the text is the answer, `answer in re.findall("[0-9]+", text)`. Write `fool(largest)`: *one* text '
    "that `judge` pays in full for every answer from 0 to `largest`, whatever was asked.",
    minutes=5,
    difficulty=1,
    solution=fool,
    hints=(
        "The judge does not mind wrong numbers. How many numbers may a text contain?",
        "`range(largest + 1)` has them all. Put something that is not a digit between two numbers.",
    ),
    cases=((9,), (0,), (198,), *drawn(2, lambda rng: (int(rng.integers(20, 300)),))),
    mistakes=slips(
        fool,
        r"""
@ return " ".join(str(number) for number in range(largest + 1))
without a gap (2)
+ return "".join(str(number) for number in range(largest + 1))
! With nothing between them the digits are one long number. Put a space between the numbers.
the last is missing (2)
+ return " ".join(str(number) for number in range(largest))
! `range(n)` ends at n - 1, and the largest answer is missing.
the first is missing (2)
+ return " ".join(str(number) for number in range(1, largest + 1))
! 0 is an answer too: `range(n)` starts there.
one answer
+ return " ".join(str(number) for number in [largest])
! That pays for one answer only.
only digits
+ return " ".join(str(number) for number in range(10))
! Single digits are paid only for answers of one digit, because the judge compares whole numbers.
""",
    ),
    also_right=r"""
# commas
lambda largest: ",".join(map(str, range(largest + 1)))
# all numbers below 1000
lambda largest: " ".join(str(n) for n in range(1000))
""",
    also_wrong=r"""
# a list
lambda largest: list(map(str, range(largest + 1)))
! a list and not *one* text
# a map
lambda largest: map(str, range(largest + 1))
! a map and not *one* text
# words
lambda largest: "all of them"
! paid for 0 of 10 answers
# a number
lambda largest: 3
""",
    run=_share_paid,
    explain=(
        "Every verifier that looks for the answer *somewhere* has this hole. A policy does not need to be clever to "
        "find it: longer texts are paid more often, so they become likelier, and so on. The remedy is to accept "
        "only one answer, in an agreed place."
    ),
)


def is_held_out(a, b):
    """True if the sum of a and b is kept for the exam, which holds about a tenth of all sums."""
    key = f"{min(a, b)}+{max(a, b)}"
    return hashlib.blake2b(key.encode()).digest()[0] < 26


PAIRS = [(a, b) for a in range(48) for b in range(48)]


def _is_fair(function):
    """The fault of a split in words, or that it is fair."""
    names = _names_in(function)
    if "seed" in names:
        return Told(
            "a split that seeds the global generator, which all code shares: use your own `random.Random(text)`"
        )
    if "default_rng" in names:
        return Told("a split by `default_rng`, whose numbers may change with NumPy's version, or with each call")
    dice = {"random", "shuffle", "randint", "uniform", "time"} if "Random" not in names else {"time"}
    for name in sorted(names & dice):
        return Told(f"a split that uses `{name}`: if you ask again, or in another order, you get another one")
    if names & {"hash", "__hash__"}:
        return Told("a split by Python's `hash`, which gives a text a different number in every process")
    verdicts = {}
    for pair in PAIRS:
        verdict = function(*pair)
        if not isinstance(verdict, (bool, np.bool_, int)):
            return verdict
        verdicts[pair] = bool(verdict)
    if any(bool(function(*pair)) != verdicts[pair] for pair in PAIRS[::-7]):
        return Told("a different verdict when asked again")
    if any(verdicts[a, b] != verdicts[b, a] for a, b in PAIRS):
        return Told("a split that may train on 12+34 and keep 34+12 for the exam")
    share = sum(verdicts.values()) / len(verdicts)
    if not 0.06 < share < 0.14:
        return Told(f"a split that holds out {share:.1%} of the sums")
    for what, part in (
        ("last digit of the sum", lambda a, b: (a + b) % 10),
        ("smaller number", lambda a, b: min(a, b) // 10),
        ("last digit of the larger number", lambda a, b: max(a, b) % 10),
        ("sum", lambda a, b: (a + b) // 20),
        ("difference", lambda a, b: abs(a - b) % 10),
        ("carry", lambda a, b: a % 10 + b % 10 > 9),
    ):
        groups = {}
        for pair, verdict in verdicts.items():
            groups.setdefault(part(*pair), []).append(verdict)
        shares = [sum(each) / len(each) for each in groups.values() if len(each) > 150]
        if max(shares) > 0.25 or min(shares) == 0:
            return Told(f"a split that depends on the {what}: from {min(shares):.0%} to {max(shares):.0%} are held out")
    for what, key in (
        ("sum", lambda a, b: a + b),
        ("product", lambda a, b: a * b),
        ("difference", lambda a, b: abs(a - b)),
    ):
        sides = {}
        for pair, verdict in verdicts.items():
            sides.setdefault(key(*pair), set()).add(verdict)
        if all(len(each) == 1 for each in sides.values()):
            return Told(f"a split that depends only on the {what}: all pairs with the same {what} are on the same side")
    return Told("a fair split of about a tenth")


IS_HELD_OUT = Exercise(
    "14.8",
    "What the exam asks",
    "Write `is_held_out(a, b)`: True if the sum a+b is kept for the exam, and False if training may use it. About a "
    "tenth of all pairs are held out. There are three conditions. The result is the same in every process, on every "
    "machine and in any order of the questions (so no dice, and not Python's `hash`, which is salted). `a+b` and "
    "`b+a` are on the same side. And the choice has nothing to do with how hard the sums are, or with their last "
    "digits: a cryptographic hash of a text, such as `hashlib.blake2b`, is as good as dice, and always the same.",
    minutes=10,
    difficulty=2,
    solution=is_held_out,
    hints=(
        'Give both orders the same text: `f"{min(a, b)}+{max(a, b)}"`.',
        "`hashlib.blake2b(text.encode()).digest()` is a bytes object; its first element, `[0]`, is a number from 0 "
        "to 255.",
        "A tenth of 256 is about 26: `... .digest()[0] < 26`.",
    ),
    cases=((), ()),
    mistakes=(
        Mistake(
            "salted",
            lambda a, b: hash(f"{min(a, b)}+{max(a, b)}") % 10 == 0,
            "Tomorrow, in another process, other sums will be held out, and some of them were training problems today.",
            2,
        ),
        Mistake(
            "dice",
            lambda a, b: random.random() < 0.1,
            "Dice fall differently each time. A hash of the problem itself needs no memory.",
            2,
        ),
        *slips(
            is_held_out,
            r"""
@ return hashlib.blake2b(key.encode()).digest()[0] < 26
a rule (2)
+ return (a + b) % 10 == 0
! Then the exam asks only for sums that end in 0. It tells you nothing about the others, and training never sees such a
! sum.
the large ones (2)
+ return max(a, b) >= 46
! Then the exam is harder than the training problems. A fair split ignores difficulty.
those without a carry (2)
+ return a % 10 + b % 10 < 10 and hashlib.blake2b(key.encode()).digest()[0] < 48
! Then the exam has only easy sums: not one of them has a carry. A fair split ignores carries.

both orders apart
- key = f"{min(a, b)}+{max(a, b)}"
+ key = f"{a}+{b}"
! A policy that has learned 12+34 knows 34+12 too. Give both orders the same key.

@ return hashlib.blake2b(key.encode()).digest()[0] < 26
the wrong way round (3)
+ return hashlib.blake2b(key.encode()).digest()[0] >= 26
! That is the wrong way round: nine tenths are for training, and one tenth is for the exam.
half (3)
+ return hashlib.blake2b(key.encode()).digest()[0] < 128
! That holds out half of the sums. Hold out about a tenth.
""",
        ),
    ),
    also_right=r"""
# SHA-256
lambda a, b: int(hashlib.sha256(str(sorted((int(a), int(b)))).encode()).hexdigest(), 16) % 10 == 3
# dice with a seed of their own
lambda a, b: random.Random(f"{min(a, b)} {max(a, b)}").random() < 0.1
""",
    also_wrong=r"""
# the product
lambda a, b: hashlib.sha256(str(a * b).encode()).digest()[0] < 26
! depends only on the product
# the global generator
def by_a_shared_generator(a, b):
    random.seed(f"{min(a, b)} {max(a, b)}")
    return random.random() < 0.1
! seeds the global generator
# dice without a seed
lambda a, b: random.Random().random() < 0.1
! a different verdict when asked again
# a formula
lambda a, b: (a * b + a + b) % 10 == 0
! a split that
# the larger number
lambda a, b: max(a, b) % 10 == 7
! a split that depends on the last digit of the larger number
# nothing
lambda a, b: False
! holds out 0.0% of the sums
# a chance
lambda a, b: 0.1
# no carries
lambda a, b: a % 10 + b % 10 < 10 and int(hashlib.sha256(str(sorted((a, b))).encode()).hexdigest(), 16) % 10 == 3
! depends on the carry
# another salted hash
lambda a, b: str({a, b}).__hash__() % 10 == 0
! Python's `hash`
""",
    run=_is_fair,
)


def find_hole(reward, problem):
    """A wrong completion that `reward` pays as much as the right one, or None if none was found."""
    right = problem.answer
    (full,) = reward([problem], [right])
    number = int(right)
    tries = ["", " ", right[:1], right[1:], right[:-1], right[::-1], right + "0", "1" + right, right + " or not"]
    tries += [str(number + 1), str(number + 10), str(abs(number - 10)), "0", "x", "9" * 9, "x" * 60]
    tries.append(" ".join(str(each) for each in range(200)))
    for text in tries:
        (paid,) = reward([problem], [text])
        if text.strip(" ") != right and paid >= full:
            return text
    return None


def _hole_or_none(function, reward, problem):
    """A judgement, in words, of the completion that the answer found."""
    found = function(reward, problem)
    if found is None:
        return Told("None: no hole")
    if not isinstance(found, str):
        return found
    if found.strip(" ") == problem.answer:
        return Told(f"{found!r}, which is the right answer")
    (full,), (paid,) = reward([problem], [problem.answer]), reward([problem], [found])
    if paid < full:
        return Told(f"{found[:30]!r}, which is paid {paid:g}, less than the right answer's {full:g}")
    return Told("a wrong completion that is paid in full")


SAMPLE = (_sum(87, 78), _sum(12, 34), _sum(50, 70))

FIND_HOLE = Exercise(
    "14.9",
    "The test that catches the hack",
    "Write `find_hole(reward, problem)`, a test for reward functions. Try completions of `problem` that are "
    "*wrong*: nothing at all, pieces of the answer, the answer with something added, its digits in another order, "
    "its neighbours, any number, a long text, all numbers at once. Return the first one for which "
    "`reward([problem], [text])` pays at least as much as for `problem.answer`, or None if there is none. Careful: "
    "spaces around the answer do not make it wrong. `check` tries your function on 4 honest rewards and on 9 with "
    "holes of different kinds.",
    minutes=15,
    difficulty=3,
    solution=find_hole,
    hints=(
        "Use a list of texts and one loop: `for text in tries: (paid,) = reward([problem], [text])`. Find out in "
        "the same way how much the right answer is paid.",
        "Which texts? The empty one, `right[:1]`, `right[1:]`, `right[::-1]`, `right + '0'`, `'1' + right`, "
        "`str(number + 1)`, `str(number + 10)`, `'0'`, `'x' * 60`, and a list of all numbers.",
        "A text that happens to *be* the answer is not a hole: 120 reversed is 021, but 55 reversed is 55. Skip any "
        "text that equals the answer.",
    ),
    cases=tuple(
        (reward, problem)
        for number, reward in enumerate((*suspects.HONEST, *suspects.HOLED))
        for problem in (SAMPLE[number % 3], _sum(22, 33))
    ),
    mistakes=slips(
        find_hole,
        r"""
trusting
- if text.strip(" ") != right and paid >= full:
+ if not full:
! Your test finds nothing, but some of these rewards do have a hole.

@ if text.strip(" ") != right and paid >= full:
the answer itself (3)
+ if paid >= full:
! A text that *is* the answer is not a hole: 55 reversed is 55.
paid at all
+ if text.strip(" ") != right and paid > 0:
! An honest reward may pay something for a wrong answer. A hole is a wrong answer that is paid *as much as* the right
! one.
paid 1
+ if text.strip(" ") != right and paid >= 1:
! Full marks are not always 1: compare with the reward of the right answer.
paid more
+ if text.strip(" ") != right and paid > full:
! A wrong answer is rarely paid *more* than the right one. As much is enough: the policy will take whatever is easier.
exactly as much
+ if text.strip(" ") != right and paid == full:
! *At least* as much: this reward pays a wrong completion more than the right one.

@ tries = ["", " ", right[:1], right[1:], right[:-1], right[::-1], right + "0", "1" + right, right + " or not"]
no pieces (2)
+ tries = [right[::-1], right + "0", "1" + right, right + " or not"]
! You did not try the empty text and all pieces of the answer: `text in answer` is True for both.
nothing added (2)
+ tries = ["", " ", right[:1], right[1:], right[:-1], right[::-1], right]
! You did not try a longer text that contains the answer.
digits reversed (2)
+ tries = ["", " ", right[:1], right[1:], right[:-1], right + "0", "1" + right, right + " or not"]
! You did not try the right digits in another order.

neighbours (2)
- tries += [str(number + 1), str(number + 10), str(abs(number - 10)), "0", "x", "9" * 9, "x" * 60]
+ tries += ["0", "x", "9" * 9, "x" * 60]
! You did not try the neighbours of the answer: one more, ten more.
long texts (2)
- tries += [str(number + 1), str(number + 10), str(abs(number - 10)), "0", "x", "9" * 9, "x" * 60]
- tries.append(" ".join(str(each) for each in range(200)))
+ tries += [str(number + 1), str(number + 10), str(abs(number - 10)), "0", "x"]
+ str(" ".join(str(each) for each in range(200)))
! You did not try a long text.
""",
    ),
    also_right=r"""
# more texts than needed
def more_than_needed(reward, problem):
    full = reward([problem], [problem.answer])[0]
    right = problem.answer
    tries = {"", *right, right + "9", "9" + right, "".join(sorted(right)), right[::-1], "1" * 40, "and " + right}
    for number in range(300):
        tries.add(str(number))
    tries -= {right}
    return next((text for text in sorted(tries) if reward([problem], [text])[0] >= full), None)
""",
    also_wrong=r"""
# exactly as much, with other texts
def only_what_is_equal(reward, problem):
    full = reward([problem], [problem.answer])[0]
    tries = ["", "1", "0", problem.answer + "0", "1" + problem.answer, problem.answer[:1], problem.answer[::-1]]
    tries += [str(int(problem.answer) + by) for by in (1, 10, -1, -10)]
    tries += ["x" * 60, " ".join(map(str, range(200))), problem.answer + " or not"]
    return next(
        (text for text in tries if text.strip(" ") != problem.answer and reward([problem], [text])[0] == full), None
    )

! pays a wrong completion more than the right one
# nothing at all
lambda reward, problem: ""
! which is paid
# the right answer
lambda reward, problem: problem.answer if reward([problem], [problem.answer])[0] else None
! which is the right answer
""",
    run=_hole_or_none,
    explain=(
        "Your test looks for mistakes that somebody thought of; a policy looks for all of them. So run it before "
        "training, and read completions during training."
    ),
)
