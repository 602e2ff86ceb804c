"""Exercises of notebook 23: a real language model."""

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips


@dataclass(frozen=True, repr=False)
class _Text:
    """A text in which every character counts, including blanks at its ends and upper or lower case."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def exactly(function, *arguments):
    """The run of an exercise that returns a text in which every character counts."""
    text = function(*arguments)
    return {"text": _Text(text), "characters": len(text)} if isinstance(text, str) else text


# -- a chat as text ---------------------------------------------------------------------------------------------------


def chat_text(messages, thinking):
    """A chat as the text that the model continues."""
    text = ""
    for message in messages:
        text += "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>\n"
    text += "<|im_start|>assistant\n"
    if not thinking:
        text += "<think>\n\n</think>\n\n"
    return text


USER, SYSTEM = {"role": "user", "content": "12+34?"}, {"role": "system", "content": "Be brief.\nAlways."}
TURNS = [USER, {"role": "assistant", "content": "46"}, {"role": "user", "content": " And 1 more? "}]


def _any_chat(rng):
    roles = rng.choice(["system", "user", "assistant"], rng.integers(1, 5))
    words = np.array(["12", "+", "a b", "\n", " x", "?", "<think>"])
    return [{"role": str(role), "content": "".join(rng.choice(words, rng.integers(0, 4)))} for role in roles], bool(
        rng.integers(2)
    )


CHAT_TEXT = Exercise(
    "23.1",
    "A chat is one text",
    "Write `chat_text(messages, thinking)`, which returns the text that the model continues. `messages` is a list of "
    'dictionaries with "role" and "content". Each message becomes `<|im_start|>`, its role, a line break, its '
    "content, `<|im_end|>`, a line break. After the last message, open the assistant's turn: `<|im_start|>assistant` "
    "and a line break. If `thinking` is False, add an empty thought: `<think>`, two line breaks, `</think>`, two "
    "line breaks. If it is True, add nothing more: the model opens its thought itself.",
    minutes=8,
    difficulty=1,
    solution=chat_text,
    run=exactly,
    hints=(
        "Begin with an empty string and add to it, message by message. Leave the contents as they are, including "
        "blanks.",
        'Print `repr(tokenizer.render([{"role": "user", "content": "Hi"}], enable_thinking=False))` and compare '
        "character by character. Line breaks are the easiest to miss.",
    ),
    cases=(
        ([USER], False),
        ([USER], True),
        ([SYSTEM, USER], True),
        ([SYSTEM, USER], False),
        (TURNS, False),
        ([USER, {"role": "tool", "content": "so<|im_end|>it is"}], True),
        ([{"role": "user", "content": ""}], True),
        ([USER, {"role": "assistant", "content": "<think>\n4+2\n</think>\n\n46"}, USER], False),
        *drawn(4, _any_chat),
    ),
    mistakes=slips(
        chat_text,
        r"""
@ text += "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>\n"
no line break after a turn (2)
+ text += "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>"
! A line break is missing after `<|im_end|>`: the model has never seen two turns without one between them.
no line break after the role (2)
+ text += "<|im_start|>" + message["role"] + message["content"] + "<|im_end|>\n"
! A line break is missing between the role and the content.
blanks removed
+ text += "<|im_start|>" + message["role"] + "\n" + message["content"].strip() + "<|im_end|>\n"
! The content has to stay as it is, including blanks.

the turn is not opened
- text += "<|im_start|>assistant\n"
+ pass
! The assistant's turn is not opened: the model then writes the *user's* next words, or nothing.
the wrong way round (2)
- if not thinking:
+ if thinking:
! It is the other way round: an *empty* thought says that the thinking is over, so it belongs in the prompt when the
! model should not think.
one line break in the thought (2)
- text += "<think>\n\n</think>\n\n"
+ text += "<think>\n</think>\n"
! The empty thought has two line breaks inside it, and two after it.
""",
    ),
    also_right=r"""
def by_join(messages, thinking):
    turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join([*turns, "<|im_start|>assistant\n", "" if thinking else "<think>\n\n</think>\n\n"])
# join
by_join
# the template, which drops earlier thoughts: chats with thoughts are joined
from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.qwen3 import load_tokenizer
def by_the_template(messages, thinking):
    if any("</think>" in message["content"] for message in messages):
        return by_join(messages, thinking)
    return load_tokenizer(TINY_CHAT).render(messages, enable_thinking=thinking)
""",
    also_wrong=r"""
# no blanks at the end
lambda messages, thinking: chat_text(messages, thinking).rstrip("\n")
# no thoughts in earlier turns
lambda messages, thinking: chat_text(
    [each | {"content": each["content"].rpartition("</think>")[2].lstrip()} for each in messages], thinking
)
# no assistants
lambda messages, thinking: chat_text(messages, thinking).replace("<|im_start|>assistant\n", "")
# Users
- text += "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>\n"
+ text += "<|im_start|>" + message["role"].title() + "\n" + message["content"] + "<|im_end|>\n"
""",
)


# -- where it ends ----------------------------------------------------------------------------------------------------


def cut_at_end(ids, ends):
    """(the tokens before the first end token, whether there was one)."""
    for place, token in enumerate(ids):
        if token in ends:
            return ids[:place], True
    return ids, False


def _any_ids(rng):
    ids = rng.integers(0, 8, rng.integers(1, 10)).tolist()
    return ids, [int(each) for each in rng.choice(8, rng.integers(1, 3), replace=False)]


def _plain_pair(function, *arguments):
    """A list and a bool, even if the answer returned arrays."""
    got = function(*arguments)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        return got
    ids, ended = (each.tolist() if hasattr(each, "tolist") else each for each in got)
    return [*ids] if isinstance(ids, (list, tuple)) else ids, ended


CUT_AT_END = Exercise(
    "23.2",
    "Two tokens that end",
    "Write `cut_at_end(ids, ends)`. `ids` is a list of token ids that a model wrote, and `ends` is the list of ids "
    "that end a text. Return a pair: the ids before the first token that is one of the ends, and True. If there is "
    "no such token, return all ids and False.",
    minutes=6,
    difficulty=1,
    solution=cut_at_end,
    run=_plain_pair,
    hints=(
        "Go through `ids` from the left and stop at the first id that is in `ends`, whichever of the ends it is.",
        "`for place, token in enumerate(ids)`: if `token in ends`, return `ids[:place], True`.",
    ),
    cases=(
        ([5, 6, 2, 9], [2, 0]),
        ([5, 6, 0, 9], [2, 0]),
        ([5, 0, 6, 2], [2, 0]),
        ([2, 5], [2, 0]),
        ([5, 6, 7], [2, 0]),
        ([5, 2, 2, 7], [2]),
        ([5, 6, 3, 9], [2, 0, 3]),
        ([12, 20, 0, 7], [2, 0]),
        *drawn(5, _any_ids),
    ),
    mistakes=slips(
        cut_at_end,
        r"""
only the first end
- if token in ends:
+ if token == ends[0]:
! Any of the ends ends a text. A program that looks for only one of Qwen3's two ends continues after the other.
in the order of the ends
- for place, token in enumerate(ids):
-     if token in ends:
-         return ids[:place], True
+ for end in ends:
+     if end in ids:
+         return ids[: ids.index(end)], True
! The first end *in the text* counts. This answer looks for the first of `ends` first, wherever it occurs.
the end kept
- return ids[:place], True
+ return ids[: place + 1], True
! The end token itself is not part of the text.
the last end
- for place, token in enumerate(ids):
+ for place, token in reversed([*enumerate(ids)]):
! Your function cuts at the *last* end token. Cut at the first one.
""",
    ),
    also_right=r"""
# next
def cut_with_next(ids, ends):
    place = next((i for i, token in enumerate(ids) if token in set(ends)), None)
    return (list(ids), False) if place is None else (list(ids[:place]), True)
# NumPy
def cut_with_numpy(ids, ends):
    found = np.isin(ids, ends)
    return (np.array(ids)[: found.argmax()], True) if found.any() else (np.array(ids), False)
# MLX
from mlx_grpo_kit.runtime import mx
def cut_with_mlx(ids, ends):
    ids = mx.array(ids)
    is_end = (ids[:, None] == mx.array(ends)).any(axis=1)
    return (ids[: mx.argmax(is_end).item()], True) if is_end.any().item() else (ids, False)
""",
    also_wrong=r"""
# digits of an end
- if token in ends:
+ if any(str(end) in str(token) for end in ends):
# ends left out
lambda ids, ends: ([i for i in ids if i not in ends], any(i in ends for i in ids))
# two ends
- if token in ends:
+ if token in ends[:2]:
""",
)


# -- the final answer -------------------------------------------------------------------------------------------------


def final_answer(text):
    """The final answer of a completion; '' if it gives none."""
    text = text.rpartition("</think>")[2]
    text = text.partition("<think>")[0]
    before, closed, _ = text.rpartition("</answer>")
    _, opened, inside = before.rpartition("<answer>")
    if opened and closed:
        return inside.strip()
    return text.strip().rpartition("\n")[2].strip()


def _any_completion(rng):
    parts = ["<think>", "</think>", "<answer>", "</answer>", "46", "45", "\n", " "]
    start = "".join(rng.choice(["", "<think>2+4=6</think>", "<think>hm\n"], 1))
    text = start + "".join(rng.choice(parts[4:], rng.integers(1, 4)))
    return (text + str(rng.choice(["", "<answer>7</answer>", "<answer>8</answer>\n", "\n9"])),)


FINAL_ANSWER = Exercise(
    "23.3",
    "What is the final answer?",
    "Write `final_answer(text)`. First remove the thoughts: everything up to the last `</think>` is ignored, and so "
    "is everything after a `<think>` that is not closed. Of the rest, return the text inside the **last** "
    "`<answer>...</answer>` (one that is not closed does not count), or the last line if there is none. Strip white "
    "space around the result; if nothing is left, return ''.",
    minutes=15,
    difficulty=3,
    solution=final_answer,
    run=exactly,
    hints=(
        '`text.rpartition("</think>")[2]` is the part after the last `</think>`, or all of the text if there is none.',
        'Then `text.partition("<think>")[0]` is the part before a thought that never ends.',
        'Look for the end first: `before, closed, _ = text.rpartition("</answer>")`, and then for the last '
        '`<answer>` in `before`. Without tags, take the last line: `text.strip().rpartition("\\n")[2]`.',
    ),
    cases=(
        ("46",),
        (" 46\n",),
        ("So:\n46 ",),
        ("<answer>46</answer>",),
        ("<answer> 46\n</answer> I hope.",),
        ("<think>2+4=6</think>\n\n<answer>46</answer>",),
        ("<think>maybe <answer>45</answer></think>46",),
        ("<think>maybe <answer>45</answer>",),
        ("46 <think>or not",),
        ("hm</think>46",),
        ("<think>a</think>45<think>b</think>46",),
        ("<answer>45</answer> no, <answer>46</answer>",),
        ("<answer>45</answer>\n<answer>46",),
        ("46</answer>",),
        ("",),
        ("<answer></answer>",),
        ("\n \n",),
        ("<answer>3 Apples</answer>",),
        ("<answer>6  *  7</answer>",),
        ("It is 46.",),
        ("So:\nIt is X",),
        *drawn(8, _any_completion),
    ),
    mistakes=slips(
        final_answer,
        r"""
the first answer (3)
- before, closed, _ = text.rpartition("</answer>")
- _, opened, inside = before.rpartition("<answer>")
+ _, opened, inside = text.partition("<answer>")
+ inside, closed, _ = inside.partition("</answer>")
! That is the first answer. A policy that may correct itself should be judged by its last word, and a policy that may
! give several answers must not be rewarded for the best.
an open thought counts (2)
- text = text.rpartition("</think>")[2]
- text = text.partition("<think>")[0]
+ text = re.sub("<think>.*?</think>", "", text, flags=re.DOTALL).replace("<think>", "")
+ text = text.rpartition("</think>")[2]
! A thought that never ends was cut off in mid-sentence. Text inside it is not an answer.
an answer that is not closed (3)
- before, closed, _ = text.rpartition("</answer>")
- _, opened, inside = before.rpartition("<answer>")
- if opened and closed:
-     return inside.strip()
+ _, opened, inside = text.rpartition("<answer>")
+ if opened:
+     return inside.partition("</answer>")[0].strip()
! An `<answer>` that is not closed was cut off: 4 may be the beginning of 46.
the first thought only
- text = text.rpartition("</think>")[2]
+ text = text.partition("</think>")[2]
! After the *first* `</think>` another thought may follow. And if there is no `</think>`, `partition` returns "".
thoughts count
- text = text.rpartition("</think>")[2]
- text = text.partition("<think>")[0]
+ pass
+ pass
! The model's thoughts are not its answer.
the whole rest (3)
- return text.strip().rpartition("\n")[2].strip()
+ return text.strip()
! Without tags, the answer is the last line alone.
""",
    ),
    also_right=r"""
# index
def answer_by_index(text):
    if "</think>" in text:
        text = text[text.rindex("</think>") + 8 :]
    if "<think>" in text:
        text = text[: text.index("<think>")]
    if "</answer>" in text:
        before = text[: text.rindex("</answer>")]
        if "<answer>" in before:
            return before[before.rindex("<answer>") + 8 :].strip()
    lines = text.strip().split("\n")
    return lines[-1].strip()
""",
    also_wrong=r"""
# stripped
lambda text: text.strip()
# the last line
lambda text: text.split("</think>")[-1].strip().split("\n")[-1]
# inside the last tags
lambda text: (re.findall("<answer>(.*?)</answer>", text, re.S) or [text])[-1].strip()
# small letters
lambda text: final_answer(text).lower()
# single blanks
lambda text: " ".join(final_answer(text).split())
# no blanks
lambda text: final_answer(text).replace(" ", "")
# no full stop
lambda text: final_answer(text).rstrip(".")
""",
)


# -- the same number --------------------------------------------------------------------------------------------------


def same_number(said, right):
    """True if two texts are the same number."""
    numbers = []
    for text in (said, right):
        if not re.fullmatch(r"-?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)?", text):
            return False
        numbers.append(Fraction(text.replace(",", "")))
    return numbers[0] == numbers[1]


def _plain_bool(function, *arguments):
    """A plain bool, even if the answer returned a NumPy bool."""
    got = function(*arguments)
    return bool(got) if isinstance(got, np.bool_) else got


def _any_numbers(rng):
    number = int(rng.integers(0, 10_000_000))
    styles = [str(number), f"{number:,}", f"{number}.0", f"{number:,}.00", f"-{number}", f"{number + 1}"]
    return str(rng.choice(styles)), str(rng.choice(styles))


SAME_NUMBER = Exercise(
    "23.4",
    "1,000 is 1000.0",
    "Write `same_number(said, right)` for two strings. Return True if both are numbers and the numbers are equal. "
    "Here a number is an optional minus, digits `0` to `9`, and optionally a point with more digits after it. There "
    "may be commas before the point; then one to three digits come before the first comma, and exactly three after "
    "each. Nothing else is a number. Compare exactly, and do not execute anything that a model wrote.",
    minutes=12,
    difficulty=2,
    solution=same_number,
    run=_plain_bool,
    hints=(
        "Check the characters first, with a pattern for `re.fullmatch`: `[0-9]{1,3}(,[0-9]{3})+` with commas, "
        "`[0-9]+` without, and after either of them an optional `(\\.[0-9]+)?`.",
        "Then compare exactly. A float has about 16 digits. `fractions.Fraction(text)` keeps any number of digits, "
        "and it also reads `1000.0`.",
    ),
    cases=(
        ("1,000", "1000.0"),
        ("1000", "1,000"),
        ("72", "72"),
        ("72.50", "72.5"),
        ("-3", "-3.0"),
        ("0", "-0"),
        ("1,234,567", "1234567"),
        ("46", "47"),
        ("10,00", "1000"),
        ("1,0000", "10000"),
        ("1000,", "1000"),
        (",100", "100"),
        ("1,000.5", "1000.5"),
        ("9007199254740993", "9007199254740992"),
        ("0.1", "0.10000000000000001"),
        ("40+6", "46"),
        ("23*2", "46"),
        ("1e3", "1000"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("4_6", "46"),
        ("46\n", "46"),
        (" 46", "46"),
        ("\u0664\u0666", "46"),
        ("46 apples", "46"),
        ("", ""),
        ("46.", "46"),
        ("046", "46"),
        ("+46", "46"),
        ("--46", "46"),
        ("92/2", "46"),
        (".5", "0.5"),
        ("46", "46 apples"),
        ("1,000000", "1000000"),
        ("1000,000", "1000000"),
        ("0.123,456", "0.123456"),
        ("-46", "46"),
        ("1" * 40, "1" * 39 + "2"),
        *drawn(6, _any_numbers),
    ),
    mistakes=slips(
        same_number,
        r"""
@ if not re.fullmatch(r"-?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)?", text):
@     return False
@ numbers.append(Fraction(text.replace(",", "")))
as floats (2)
+ try:
+     numbers.append(float(text.replace(",", "")))
+ except ValueError:
+     return False
! `float` accepts more than digits (`1e3`, `nan`, `4_6`, blanks) and loses digits after the sixteenth.
as texts (2)
+ numbers.append(text.replace(",", ""))
! `72.50` and `72.5` are different strings, but the same number.
evaluated
+ try:
+     numbers.append(eval(text.replace(",", ""), {"__builtins__": {}}))
+ except Exception:
+     return False
! `eval` executes what a model wrote. Here `40+6` is not a number, and `9**9**9` would freeze your machine.

@ if not re.fullmatch(r"-?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)?", text):
commas anywhere
+ if not re.fullmatch(r"-?[0-9,]*[0-9](\.[0-9]+)?", text):
! `10,00` is not a thousand: exactly three digits have to follow each comma.
without decimals
+ if not re.fullmatch(r"-?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)", text):
! A number may end in a point with digits after it.
no minus
+ if not re.fullmatch(r"([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)?", text):
! A number may begin with a minus.
the beginning
+ if not re.match(r"-?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)?", text):
! `46 apples` begins with a number; it has to *be* one.
other digits
+ if not re.fullmatch(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?", text):
! `\d` matches the digits of every script; `[0-9]` matches only these ten.

not exact (2)
- numbers.append(Fraction(text.replace(",", "")))
+ numbers.append(float(text.replace(",", "")))
! A float loses digits after the sixteenth.
""",
    ),
    also_right=r"""
from decimal import Decimal

def same_by_decimal(said, right):
    def read(text):
        whole = re.fullmatch("-?([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:[.][0-9]+)?", text)
        return Decimal(text.replace(",", "")) if whole else None

    a, b = read(said), read(right)
    return a is not None and b is not None and a == b
# Decimal
same_by_decimal
# a bool of NumPy
lambda said, right: np.bool_(same_by_decimal(said, right))
""",
    also_wrong=r"""
# equal texts
lambda a, b: a == b
# two minuses
lambda a, b: same_number(a.replace("--", ""), b)
# a fraction
lambda a, b: same_number(a, b) or (a == "92/2" and Fraction(a) == Fraction(b))
# the kit's numbers
from mlx_grpo_kit.tasks import answers as kit
lambda a, b: kit.as_number(a) == kit.as_number(b)
# nearly equal
lambda a, b: abs(float(a.replace(",", "")) - float(b.replace(",", ""))) < 1e-6
# a plus
lambda a, b: same_number(a.lstrip("+"), b)
# no minus
lambda a, b: same_number(a.lstrip("-"), b.lstrip("-"))
# a point first
lambda a, b: same_number("0" + a if a[:1] == "." else a, b)
# the first word
lambda a, b: same_number(a, b.split()[0] if b else b)
# six digits after a comma
lambda a, b: same_number(a.replace("1,000000", "1000000"), b)
# thirty characters
lambda a, b: same_number(a[:30], b[:30])
""",
)


# -- a reward that says what it means ---------------------------------------------------------------------------------


def names_only(text, number):
    """True if `text` names `number` and no other number."""
    return set(re.findall("[0-9]+", text)) == {number}


def _any_answer(rng):
    a, b = (str(each) for each in rng.integers(10, 100, 2))
    texts = [f"The larger number is {a}.", f"{a} is larger than {b}.", f"{a}! Yes, {a}", f"{a}, {a} or {b}", f"{a}{b}"]
    text = str(rng.choice([*texts, a, "No."]))
    return text, a


NAMES_ONLY = Exercise(
    "23.9",
    "Only the larger number",
    "Write `names_only(text, number)`. `text` is what a model answered, and `number` is the right answer as a string "
    'of digits, such as "83". A number in the text is an unbroken run of the digits `0` to `9`, as long as possible. '
    "Return True if the text names at least one number and every number in it is `number`, otherwise False. Compare "
    'strings: in this exercise "083" is not "83". (Whether the sentence around the number is true is more than this '
    "verifier asks.)",
    minutes=5,
    difficulty=1,
    solution=names_only,
    run=_plain_bool,
    hints=(
        '`re.findall("[0-9]+", text)` is the list of all longest runs of digits.',
        "When is every element of a list equal to one value, and the list not empty? Think of the set of its elements: "
        '`set(["83", "83"]) == {"83"}` is True, and the set of an empty list is empty.',
    ),
    cases=(
        ("The larger number is 83.", "83"),
        ("37 is larger than 83.", "83"),
        ("83 is larger than 37.", "83"),
        ("83", "83"),
        ("37", "83"),
        ("I do not know.", "83"),
        ("", "83"),
        ("83! It is 83.", "83"),
        ("83, yes, 83, although some people in the world may tell you that it is 37", "83"),
        ("The number 83 is not the largest in terms of", "83"),
        ("It is 837.", "83"),
        ("It is 083", "83"),
        ("3 and 7", "37"),
        ("8 3", "83"),
        ("83.5", "83"),
        ("\u0668\u0663 is larger", "83"),
        ("83, in Arabic \u0668\u0663", "83"),
        ("37th or 83", "83"),
        ("The 83rd.", "83"),
        ("8383", "83"),
        ("8,3", "83"),
        ("number-83", "83"),
        ("83\n37", "83"),
        ("7", "7"),
        *drawn(20, _any_answer),
    ),
    mistakes=slips(
        names_only,
        r"""
@ return set(re.findall("[0-9]+", text)) == {number}
the last one (1)
+ return re.findall("[0-9]+", text)[-1:] == [number]
! Only the last number counts in your function, as in the run that was paid for `37 is larger than 83.`
anywhere (1)
+ return number in re.findall("[0-9]+", text)
! An answer that names the right number among others gets True. It may not name any other.
part of the text (2)
+ return number in text
! You look for the digits anywhere in the text. `It is 837.` contains 83, but the number that it names is 837.
no number (1)
+ return all(each == number for each in re.findall("[0-9]+", text))
! A text without any number gets True: `all` of nothing is True. Ask for at least one.
once (1)
+ return re.findall("[0-9]+", text) == [number]
! `83! It is 83.` names only the right number, although twice. It should get True.
as numbers (2)
+ return {int(each) for each in re.findall("[0-9]+", text)} == {int(number)}
! You compare whole numbers, for which `083` is 83. Compare the strings of digits.
every kind of digit (2)
+ return set(re.findall(r"\d+", text)) == {number}
! In Python `\d` and `isdigit` also accept the digits of other scripts. Only `0` to `9` count here.
whole words (2)
+ return set(re.findall(r"\b[0-9]+\b", text)) == {number}
! A run of digits next to letters is a number too: `37th or 83` names 37 as well.
""",
    ),
    also_right=r"""
# a loop
def by_loop(text, number):
    found = False
    for each in re.findall("[0-9]+", text):
        if each != number:
            return False
        found = True
    return found
# character by character
def by_characters(text, number):
    runs, run = [], ""
    for character in text + " ":
        if character in "0123456789":
            run += character
        elif run:
            runs, run = [*runs, run], ""
    return bool(runs) and all(each == number for each in runs)
# split
lambda text, number: {each for each in re.split("[^0-9]+", text) if each} == {number}
# a NumPy bool
lambda text, number: np.bool_(set(re.findall("[0-9]+", text)) == {number})
""",
    also_wrong=r"""
# always
lambda text, number: True
# never
lambda text, number: False
# the sentence
lambda text, number: text == f"The larger number is {number}."
# words
lambda text, number: {each for each in text.split() if each.isdigit()} == {number}
# the first
lambda text, number: re.findall("[0-9]+", text)[:1] == [number]
# nothing left without it
lambda text, number: number in text and not re.search("[0-9]", text.replace(number, ""))
# without commas
lambda text, number: set(re.findall("[0-9]+", text.replace(",", ""))) == {number}
# with a minus
lambda text, number: set(re.findall("-?[0-9]+", text)) == {number}
# the first line
lambda text, number: set(re.findall("[0-9]+", text.partition("\n")[0])) == {number}
# every digit that Python knows

! other scripts
lambda text, number: {*"".join(each if each.isdigit() else " " for each in text).split()} == {number}
# at most two
lambda text, number: set(re.findall("[0-9]+", text)[:2]) == {number} and len(text) < 60
""",
    explain="The kit's task `larger` is this rule, and also refuses decimals and a thought that is not closed.",
)
