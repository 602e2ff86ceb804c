"""Format rewards: what has the form, what nearly has it, and texts that would stall a careless pattern."""

import re
import time

import pytest

from mlx_grpo_kit.tasks.formats import DIGITS, MAX_CHARACTERS, THINK_ANSWER, format_reward, tags_reward
from mlx_grpo_kit.tasks.signatures import takes_names
from tests.tasks.hostile import every_hostile_text

GOOD = [
    "<think>1 + 2</think><answer>3</answer>",
    "<think>\nlong\nreasons\n</think>\n\n<answer>\n3\n</answer>\n",
    "<think></think><answer></answer>",
    "<think>a < b, </ b> and <b></think> <answer>x</answer>",
]
BAD = [
    "",
    "3",
    "<answer>3</answer>",
    "<think>x</think>",
    "<think>x</think><answer>3",
    "<think>x</think> so <answer>3</answer>",
    "I <think>x</think><answer>3</answer>",
    "<think>x</think><answer>3</answer> done",
    "<answer>3</answer><think>x</think>",
    "<think>x<think></think><answer>3</answer>",
    "<think>x</think><answer>3</answer><answer>4</answer>",
    "<think>x<answer>1</answer></think><answer>3</answer>",
    "<think>x</think><answer><think>3</answer>",
    "<THINK>x</THINK><ANSWER>3</ANSWER>",
]


def scores(func, texts):
    return func([None] * len(texts), texts)


def test_think_and_answer():
    strict = format_reward(THINK_ANSWER, value=0.2)
    assert scores(strict, GOOD) == [0.2] * len(GOOD)
    assert scores(strict, BAD) == [0.0] * len(BAD)
    assert strict.__name__ == "format"
    assert not takes_names(strict)


def test_anywhere_where_not_strict():
    soft = format_reward(THINK_ANSWER, strict=False, name="soft")
    paid = [text for text, value in zip(BAD, scores(soft, BAD), strict=True) if value]
    assert paid == [BAD[6], BAD[7], BAD[9], BAD[10]]
    assert soft.__name__ == "soft"


def test_digits_and_then_the_end():
    digits = format_reward(DIGITS)
    assert scores(digits, ["0", "46", "198", "046"]) == [1.0] * 4
    for text in ("", "1980", "4 6", "46\n", "-4", "4.0", "\u0664\u0666", "46="):
        assert scores(digits, [text]) == [0.0], text


@every_hostile_text
def test_no_hostile_text_has_a_form(hostile_text):
    functions = (format_reward(THINK_ANSWER), tags_reward(), format_reward(THINK_ANSWER, strict=False))
    assert [scores(function, [hostile_text]) for function in functions] == [[0.0]] * 3


@pytest.mark.parametrize(
    "text",
    ["<think>" * 14_000, "<think>" + "<" * 99_000, "<think></think>" + " " * 99_000, "</think><answer>" * 6_000],
    ids=["opened", "brackets", "spaces", "pairs"],
)
def test_long_texts_take_no_long_time(text):
    start = time.process_time()
    assert scores(format_reward(THINK_ANSWER), [text]) == [0.0]
    assert time.process_time() - start < 5  # against hours


def test_what_is_too_long_has_no_form():
    assert scores(format_reward("a+"), ["a" * MAX_CHARACTERS, "a" * (MAX_CHARACTERS + 1)]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (GOOD[0], 1.0),
        ("words <think> x </think> <answer> 3 </answer> words", 1.0),
        ("<think>x</think><answer>3", 0.75),
        ("<think>x</think>", 0.5),
        ("<think>x", 0.25),
        ("</think><answer>3</answer>", 0.0),
        ("<think>x<think></think><answer>3</answer>", 0.0),
        ("<answer>3</answer><think>x</think>", 0.5),
        ("<think></think>" * 2, 0.0),
        ("", 0.0),
    ],
)
def test_a_share_for_each_tag_in_its_place(text, share):
    assert scores(tags_reward(), [text]) == [share]
    assert scores(tags_reward(0.4, tags=("<think>", "</think>", "<answer>", "</answer>")), [text]) == [0.4 * share]


def test_a_pattern_that_is_none():
    with pytest.raises(re.error):
        format_reward("(")
