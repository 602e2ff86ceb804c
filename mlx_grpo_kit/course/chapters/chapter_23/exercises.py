"""Exercises of notebook 23: a real Qwen3."""

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


def _exactly(function, *arguments):
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
    "Write `chat_text(messages, thinking)`. It returns the text that the model continues. `messages` is a list of "
    'dictionaries with "role" and "content". Each message becomes `<|im_start|>`, its role, a line break, its '
    "content, `<|im_end|>`, a line break. After the last message, open the assistant's turn: `<|im_start|>assistant` "
    "and a line break. If `thinking` is False, add an empty thought: `<think>`, two line breaks, `</think>`, two "
    "line breaks. If it is True, add nothing more: the model opens its thought itself.",
    minutes=8,
    difficulty=1,
    solution=chat_text,
    run=_exactly,
    hints=(
        "Begin with an empty text and add to it, message by message. Leave the contents as they are, including blanks.",
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
! That is the *last* end token.
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
    run=_exactly,
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
! Without tags, the answer is the last line, not all of them.
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
    "Write `same_number(said, right)` for two texts. Return True if both are numbers and the numbers are equal. Here "
    "a number is an optional minus, digits `0` to `9`, and optionally a point with more digits after it. There may "
    "be commas before the point; then one to three digits come before the first comma, and exactly three after each. "
    "Nothing else is a number. Compare exactly, and do not execute anything that a model wrote.",
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
! `72.50` and `72.5` are different texts, but the same number.
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


# -- a row ------------------------------------------------------------------------------------------------------------


def gold_answer(answer):
    """The number at the end of a GSM8K answer, as a text without commas, or None."""
    if "####" not in answer:
        return None
    return answer.rpartition("####")[2].strip().replace(",", "")


def _any_row(rng):
    a, b = (int(each) for each in rng.integers(100, 5000, 2))
    return (f"{a} and {b} are {a + b:,}.{rng.choice([chr(10), ' '])}####{rng.choice(['', ' '])}{a + b:,}\n",)


GOLD_ANSWER = Exercise(
    "23.5",
    "The answer in a row",
    "Write `gold_answer(answer)`. `answer` is the answer of a row in GSM8K's form: a calculation in words, and the "
    "number after the last `####`. Return that number as a text without blanks around it and without commas, or None "
    "if there is no `####`.",
    minutes=5,
    difficulty=1,
    solution=gold_answer,
    run=_exactly,
    hints=(
        '`answer.rpartition("####")[2]` is the part after the last `####`.',
        "Without any `####` that would be the whole text, so check for it first.",
    ),
    cases=(
        ("27 + 15 = 42\n#### 42",),
        ("#### 1,050",),
        ("#### 7 #### 8",),
        ("42",),
        ("",),
        ("a\n####-3\n",),
        ("It is 5, not 6.\n#### 1,234,567",),
        ("half of it\n#### 2.50",),
        ("Take bus #5.",),
        *drawn(4, _any_row),
    ),
    mistakes=slips(
        gold_answer,
        r"""
the last word (2)
- if "####" not in answer:
-     return None
+ if True:
+     return answer.split()[-1].replace(",", "") if answer.split() else None
! That is the last word, even if there is no `####` before it.

@ return answer.rpartition("####")[2].strip().replace(",", "")
the first
+ return answer.partition("####")[2].strip().replace(",", "")
! That is the text after the *first* `####`.
commas
+ return answer.rpartition("####")[2].strip()
! The commas are still there.
blanks
+ return answer.rpartition("####")[2].replace(",", "")
! Blanks and line breaks around the number are still there.

no #### (2)
- return None
+ return answer
! Without `####` there is no answer in the row: return None.
""",
    ),
    also_right=r"""
# split
lambda answer: answer.split("####")[-1].strip().replace(",", "") if "####" in answer else None
# a pattern
def gold_by_pattern(answer):
    found = re.findall(r"####\s*([^#]*)", answer)
    return "".join(found[-1].split(",")).strip() if found else None
""",
    also_wrong=r"""
# whole numbers
lambda answer: str(int(float(gold_answer(answer)))) if "####" in answer else None
# a blank after it
lambda answer: answer.split("#### ")[-1].replace(",", "") if "####" in answer else None
# a single #
lambda answer: answer[answer.rfind("#") + 1 :].strip().replace(",", "") if "#" in answer else None
""",
)


# -- the cost of a step -----------------------------------------------------------------------------------------------


def step_seconds(parameters, rows, prompt, completion, flops, bandwidth):
    """(seconds of sampling, seconds of learning) of a GRPO step."""
    a_token = max(2 * parameters / bandwidth, 2 * parameters * rows / flops)
    learning = 6 * parameters * rows * (prompt + completion) / flops
    return completion * a_token, learning


def _plain_numbers(function, *arguments):
    """A pair of numbers, from an array of two."""
    got = function(*arguments)
    return tuple(got.tolist()) if getattr(got, "shape", None) == (2,) else got


def _any_machine(rng):
    return (
        float(rng.uniform(1e8, 1e10)),
        int(rng.integers(1, 200)),
        int(rng.integers(10, 300)),
        int(rng.integers(10, 1000)),
        float(10 ** rng.uniform(10, 15)),
        float(10 ** rng.uniform(10, 12.5)),
    )


STEP_SECONDS = Exercise(
    "23.6",
    "What a step costs",
    "Write `step_seconds(parameters, rows, prompt, completion, flops, bandwidth)`. Return a pair: the seconds that a "
    "GRPO step takes to sample, and the seconds that it takes to learn, at best. Sampling goes token by token, "
    "`completion` times. Each time, all weights are read once for all `rows` together (2 bytes per parameter, at "
    "`bandwidth` bytes per second), and each row takes 2 operations per parameter (at `flops` operations per "
    "second). Reading and computing run at the same time, so the **longer** of the two counts. Learning takes 6 "
    "operations per parameter for every token of every row, in the prompt and in the completion. (Ignore the time to "
    "read the prompts before sampling: it is small.)",
    minutes=10,
    difficulty=2,
    solution=step_seconds,
    run=_plain_numbers,
    hints=(
        "For one token of all rows: reading takes `2 * parameters / bandwidth` seconds, computing takes `2 * "
        "parameters * rows / flops`. Which one is longer?",
        "Take the `max` of the two, times `completion`. Learning: `6 * parameters * rows * (prompt + completion) / "
        "flops`.",
    ),
    cases=(
        (6e8, 1, 40, 100, 1e13, 1e11),
        (6e8, 64, 40, 100, 1e11, 1e11),
        (6e8, 64, 40, 256, 1e15, 3e12),
        (6e8, 1, 2, 4, 1e15, 1e10),
        *drawn(4, _any_machine),
    ),
    mistakes=slips(
        step_seconds,
        r"""
@ a_token = max(2 * parameters / bandwidth, 2 * parameters * rows / flops)
one after the other
+ a_token = sum((2 * parameters / bandwidth, 2 * parameters * rows / flops))
! Reading and computing run at the same time: the longer of the two counts, not their sum.
read for every row
+ a_token = max(2 * parameters * rows / bandwidth, 2 * parameters * rows / flops)
! The weights are read once for all rows together: that is why a batch costs little more than one row.
one row computed
+ a_token = max(2 * parameters / bandwidth, 2 * parameters / flops)
! Every row has to be computed.

@ learning = 6 * parameters * rows * (prompt + completion) / flops
without the prompt (2)
+ learning = 6 * parameters * rows * completion / flops
! Learning processes the prompt too.
forward only (2)
+ learning = 2 * parameters * rows * (prompt + completion) / flops
! The forward pass takes 2 operations per parameter; the backward pass takes twice as many in addition.
""",
    ),
    also_right=r"""
def cost_of_each_token(parameters, rows, prompt, completion, flops, bandwidth):
    reading, computing = 2 * parameters / bandwidth, rows * 2 * parameters / flops
    return sum(max(reading, computing) for _ in range(completion)), (2 + 4) * parameters * rows * (
        prompt + completion
    ) / flops
# each token
cost_of_each_token
# an array
lambda *arguments: np.array(cost_of_each_token(*arguments))
""",
    also_wrong=r"""
# learning reads the weights
- learning = 6 * parameters * rows * (prompt + completion) / flops
+ learning = max(6 * parameters * rows * (prompt + completion) / flops, 2 * parameters / bandwidth)
# reading only
- a_token = max(2 * parameters / bandwidth, 2 * parameters * rows / flops)
+ a_token = 2 * parameters / bandwidth
# a sum
lambda *arguments: sum(step_seconds(*arguments))
""",
)


# -- how exact is an accuracy -----------------------------------------------------------------------------------------


def share_range(right, n):
    """(smallest, largest) share p within two of its standard deviations of right / n."""
    share = right / n
    middle = share + 2 / n
    half = 2 * (share * (1 - share) / n + 1 / n**2) ** 0.5
    return (middle - half) / (1 + 4 / n), (middle + half) / (1 + 4 / n)


def _any_exam(rng):
    n = int(rng.integers(2, 600))
    return int(rng.integers(0, n + 1)), n


_OF_P = (
    "That puts the share that you *saw* in the place of p: after 0 of 10 right answers it claims that the share is "
    "0, without any doubt. The spread belongs to p, and each p has its own."
)

SHARE_RANGE = Exercise(
    "23.7",
    "How exact is an accuracy?",
    "Write `share_range(right, n)`: `right` of `n` problems were solved. Return a pair: the smallest and the largest "
    "share p from 0 to 1 for which your result, `right / n`, is at most two standard deviations away from p. For a "
    "share p the standard deviation is the square root of `p * (1 - p) / n`. Use a formula or a search, as you like, "
    "but both numbers have to be right to six digits.",
    minutes=10,
    difficulty=2,
    solution=share_range,
    run=_plain_numbers,
    hints=(
        "At both ends the distance is *exactly* two standard deviations: `(right / n - p)**2 == 4 * p * (1 - p) / "
        "n`. That is a quadratic equation in p. Or search: `right / n` itself always fits, and 0 and 1 usually do "
        "not; halve the interval between them about fifty times.",
        "With `share = right / n` the equation is `(1 + 4 / n) * p**2 - (2 * share + 4 / n) * p + share**2 == 0`, "
        "and its two solutions are the two ends.",
    ),
    cases=((8, 10), (0, 10), (10, 10), (35, 90), (1, 1), (0, 1), (1, 256), (500, 1000), *drawn(4, _any_exam)),
    mistakes=slips(
        share_range,
        r"""
@ middle = share + 2 / n
@ half = 2 * (share * (1 - share) / n + 1 / n**2) ** 0.5
@ return (middle - half) / (1 + 4 / n), (middle + half) / (1 + 4 / n)
the observed share
+ half = 2 * (share * (1 - share) / n) ** 0.5
+ return share - half, share + half
! That puts the share that you *saw* in the place of p: after 0 of 10 right answers it claims that the share is 0,
! without any doubt. The spread belongs to p, and each p has its own.
the observed share, cut off
+ half = 2 * (share * (1 - share) / n) ** 0.5
+ return max(share - half, 0.0), min(share + half, 1.0)
! Cutting off only hides the mistake. That puts the share that you *saw* in the place of p: after 0 of 10 right answers
! it claims that the share is 0, without any doubt. The spread belongs to p, and each p has its own.
the largest spread
+ return max(share - n**-0.5, 0.0), min(share + n**-0.5, 1.0)
! That uses the spread of p = 0.5 for every p. It is the largest, so the range is too wide near 0 and 1.

one standard deviation
- middle = share + 2 / n
- half = 2 * (share * (1 - share) / n + 1 / n**2) ** 0.5
- return (middle - half) / (1 + 4 / n), (middle + half) / (1 + 4 / n)
+ middle = share + 0.5 / n
+ half = 1 * (share * (1 - share) / n + 0.25 / n**2) ** 0.5
+ return (middle - half) / (1 + 1 / n), (middle + half) / (1 + 1 / n)
! That is one standard deviation; it should be two.
""",
    ),
    also_right=r"""
# halving, on both sides of the observed share, which always fits
import math
def range_by_halving(right, n):
    def end(inside, outside):
        for _ in range(60):
            p = (inside + outside) / 2
            fits = abs(right / n - p) <= 2 * math.sqrt(p * (1 - p) / n)
            inside, outside = (p, outside) if fits else (inside, p)
        return inside

    return [end(right / n, 0.0), end(right / n, 1.0)]
# roots
def range_by_roots(right, n):
    share = right / n
    return np.sort(np.roots([1 + 4 / n, -2 * share - 4 / n, share**2]).real)
# an array of MLX
from mlx_grpo_kit.runtime import mx
lambda right, n: mx.array(share_range(right, n))
""",
    also_wrong=r"""
# the largest spread, not cut off
lambda right, n: (right / n - 1 / n**0.5, right / n + 1 / n**0.5)
# the observed share, in NumPy
def wald(right, n):
    share = np.float64(right / n)
    return tuple(share + np.array([-2, 2]) * np.sqrt(share * (1 - share) / n))

! in the place of p
# rounded
lambda right, n: [round(each, 3) for each in share_range(right, n)]
# the largest first
lambda right, n: share_range(right, n)[::-1]
# two problems at least
lambda right, n: share_range(right, max(n, 2))
# one right answer at least
lambda right, n: share_range(max(right, 1), n)
""",
)


# -- the exam in the book ---------------------------------------------------------------------------------------------


def leaked(exam, training, n):
    """The positions of exam questions that share n words in a row with a training text."""

    def words(text):
        return re.findall("[a-z0-9]+", text.lower())

    def runs(found, length):
        return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}

    book, known, places = [words(text) for text in training], {}, []
    for place, text in enumerate(exam):
        own = words(text)
        length = min(n, len(own))
        if length and length not in known:
            known[length] = set().union(*(runs(found, length) for found in book))
        if length and runs(own, length) & known[length]:
            places.append(place)
    return places


def _places(function, exam, training, n):
    """Positions as a list, from a list, a tuple or an array."""
    got = function(list(exam), list(training), n)
    return [int(each) for each in got] if isinstance(got, (list, tuple, np.ndarray)) else got


def _a_book_of_sums(rng):
    """Sums in few words, so that many texts have words in common; two of them are copied with changes."""
    marks, names = ["?", " ?", "...", ""], ["Ann", "Ben", "Cleo"]
    texts = [
        f"{rng.choice(names)} has {rng.integers(1, 6)} and gets {rng.integers(1, 6)}. How many now{rng.choice(marks)}"
        for _ in range(24)
    ]
    exam, training = texts[:8], texts[8:]
    training += [exam[0].upper(), "It is said: " + exam[1].replace(" ", "  ")]
    return exam, training, int(rng.integers(3, 11))


_MANY = [f"What is {a} plus {b} minus {a * b} in words?" for a in range(20) for b in range(20)]

LEAKED = Exercise(
    "23.8",
    "Exam questions in the training data",
    "Write `leaked(exam, training, n)` for two lists of texts. The words of a text are its runs of letters a to z "
    'and digits, in lower case: `re.findall("[a-z0-9]+", text.lower())`. A question of the exam is **leaked** if n '
    "consecutive words of it also occur consecutively, in the same order, in one training text. If a question has "
    "fewer than n words, use all of its words instead of n. A question without words is not leaked. Return the list "
    "of the positions, counted from 0, of the leaked questions. Both lists may be long: go through each of them a "
    "few times, and do not compare all pairs.",
    minutes=12,
    difficulty=2,
    solution=leaked,
    run=_places,
    work=20,
    hints=(
        "The runs of n words of a text are `tuple(found[i:i + n])` for `i` from 0 to `len(found) - n`. Tuples can be "
        "elements of a set.",
        "Build one set with all runs of all training texts, once. Then a question is leaked if one of its own runs "
        "is in the set. A question of k words, with k less than n, needs the set of runs of k words.",
    ),
    cases=(
        (["What is 2+3?", "What is 3+2?"], ["Tell me: what is 2 + 3"], 4),
        (["a b c d", "d c b a", "x a b c"], ["a b c d e"], 3),
        (["one two three", "two", "", "???", "four"], ["Two, three; one two three", "five"], 8),
        (["Ben has 12 coins."], ["Ben has 1 coin", "has 12 coins ben"], 3),
        (["a b", "b a"], [], 2),
        (["b c", "c d"], ["a b", "c d"], 2),
        (["the end is near", "the end"], ["near is the", "the end"], 1),
        (_MANY[::2], _MANY[1::2], 9),
        *drawn(4, _a_book_of_sums),
    ),
    mistakes=slips(
        leaked,
        r"""
@ book, known, places = [words(text) for text in training], {}, []
whole texts
+ known = {text.lower().strip() for text in training}
+ return [place for place, text in enumerate(exam) if text.lower().strip() in known]
! That finds only texts that are equal as a whole. A question that was copied with a word more or less at the start can
! be memorized as well.
in any order
+ book, exam = ([set(words(text)) for text in texts] for texts in (training, exam))
+ found = [own and any(len(own & each) >= min(n, len(own)) for each in book) for own in exam]
+ return [place for place, hit in enumerate(found) if hit]
! Those words occur, but not in a row. Nearly all questions about coins use the same words.

@ return re.findall("[a-z0-9]+", text.lower())
letters as they are
+ return re.findall("[A-Za-z0-9]+", text)
! `Two` and `two` are the same word: convert the text to lower case first.
split at blanks
+ return text.lower().split()
! That leaves punctuation in the words: `3?` and `3` are the same word. Use `re.findall("[a-z0-9]+", ...)`.

one run too few
- return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}
+ return {tuple(found[i : i + length]) for i in range(len(found) - length)}
! The last run is missing.
short questions ignored (2)
- length = min(n, len(own))
+ length = n if len(own) >= n else 0
! A question of fewer than n words can be leaked too, with all of its words.
""",
    ),
    also_right=r"""
# runs of words as texts between blanks, of all lengths at once
def leaked_by_text(exam, training, n):
    book = [re.sub("[^a-z0-9]+", " ", text.lower()).split() for text in training]
    runs = {k: {" ".join(b[i : i + k]) for b in book for i in range(len(b) - k + 1)} for k in range(1, n + 1)}
    places = []
    for place, text in enumerate(exam):
        words = re.findall("[a-z0-9]+", text.lower())
        k = min(n, len(words))
        if k and any(" ".join(words[i : i + k]) in runs[k] for i in range(len(words) - k + 1)):
            places.append(place)
    return tuple(places)
# counted
import itertools
def leaked_by_counter(exam, training, n):
    def runs(text, k):
        words = re.findall("[a-z0-9]+", text.lower())
        return zip(*(words[i:] for i in range(k)), strict=False)

    lengths = [min(n, len(re.findall("[a-z0-9]+", text.lower()))) for text in exam]
    known = {k: set(itertools.chain.from_iterable(runs(text, k) for text in training)) for k in {*lengths} - {0}}
    marks = [k > 0 and not known[k].isdisjoint(runs(text, k)) for text, k in zip(exam, lengths, strict=True)]
    return np.flatnonzero(marks)
""",
    also_wrong=r"""
# pair by pair
def leaked_pair_by_pair(exam, training, n):
    def padded(text):
        return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "

    places = []
    for place, text in enumerate(exam):
        words = padded(text).split()
        k = min(n, len(words))
        runs = [f" {' '.join(words[i : i + k])} " for i in range(len(words) - k + 1)] if k else []
        if any(run in padded(other) for run in runs for other in training):
            places.append(place)
    return places

! work
# never the first
lambda exam, training, n: sorted(set(leaked(exam, training, n)) - {0})
# one word less
lambda exam, training, n: leaked(exam, training, n - 1)
# texts
lambda exam, training, n: [exam[place] for place in leaked(exam, training, n)]
# equal texts
lambda exam, training, n: [place for place, text in enumerate(exam) if text in training]
# one book
lambda exam, training, n: leaked(exam, [" ".join(training)], n)
""",
    explain="GPT-3's authors searched in this way, for 8 to 13 words in a row, depending on the length of an exam's "
    "questions. They reported the results on the remaining questions next to the others.",
)
