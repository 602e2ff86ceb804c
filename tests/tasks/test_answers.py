"""Answers in what a chat model writes."""

import time
from fractions import Fraction

import pytest

from mlx_grpo_kit.tasks.answers import as_expression, as_number, comparable, final_answer, without_thoughts
from tests.every import every

ANSWERS = {
    "46": "46",
    " 46\n": "46",
    "12 plus 34\nmakes 46.": "makes 46.",
    "<answer>46</answer>": "46",
    "<answer>\n 46 \n</answer> I hope.": "46",
    "<think>12+34</think>46": "46",
    "<think>12+34</think>\n\n<answer>46</answer>": "46",
    "thoughts that a template began</think>46": "46",
    "<think>never ends <answer>46</answer>": "",
    "46 <think>never ends": "46",
    "<think>a</think>45<think>b</think>46": "46",
    "<think><answer>45</answer></think><answer>46</answer>": "46",
    "<answer>45</answer> no, <answer>46</answer>": "46",
    "<answer>45<answer>46</answer>": "46",
    "<answer>46": "<answer>46",
    "46</answer>": "46</answer>",
    "<answer>45</answer><answer>46": "45",
    r"so \boxed{46}.": "46",
    r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
    r"\boxed{1} and \boxed{{2}}": "{2}",
    r"\boxed{1} and \boxed{2": "1",
    r"\boxed{2": r"\boxed{2",
    r"<answer>\boxed{46}</answer>": "46",
    r"\boxed{45} <answer>46</answer>": "46",
    "#### 46": "46",
    "12 + 34 makes 46.\n#### 46\n": "46",
    "#### 45 #### 46": "46",
    "#### Sum\n46": "46",
    "<answer>#### 46</answer>": "46",
    "####": "",
    "": "",
    "\n\n": "",
    "<answer></answer>": "",
    "</answer><answer>46": "</answer><answer>46",
    "\\boxed{\\frac{1}\n{2}}": r"\frac{1} {2}",
    "so\n\n46\n \n": "46",
    "#### 46\nThat is it.": "46",
    "#### 46 apples": "46",
    "#### 46, as I said.\nDone": "46",
    "#### 12 + 34 = 46 apples\nDone": "46",
    "#### **46**\n\nIs it?": "**46**",
    "#### -$5 per day\nDone": "-$5",
    "#### 45\n#### 46\nDone": "46",
    "#### 46 or 47\n#### 48": "48",
    "#### 46\n\\boxed{47}": "47",
    "#### (1, 2)\nDone": "(1, 2)",
    "#### \\frac{1}{2}\nDone": r"\frac{1}{2}",
    "#### 1. Add\n46": "46",
    "#### Step 2: add\n46": "46",
    "#### 46 47": "46 47",
    "#### 46 / 2": "46 / 2",
    "#### 5*3+9": "5*3+9",
    "<think>#### 45\n</think>#### 46\nDone": "46",
}


def test_words_after_a_number():
    assert final_answer("#### 46 apples\nDone", words=True) == "46 apples"
    assert final_answer("#### 5*3+9 = 24, and so on", words=True) == "5*3+9 = 24, and so on"


@every(("text", "answer"), ANSWERS.items(), ids=map(repr, ANSWERS))
def test_final_answer(text, answer):
    assert final_answer(text) == answer


MATRIX = "\\begin{pmatrix} 1 \\\\\n2 \\end{pmatrix}"


@pytest.mark.parametrize(
    ("text", "lines", "answer"),
    [
        ("It is\nred\nblue", 2, "red\nblue"),
        ("red\n\n blue \n", 2, "red\n blue"),
        ("<answer>\nred\nblue\n</answer>", 2, "red\nblue"),
        ("<think>green\n</think>red\nblue", 3, "red\nblue"),
        ("so\n#### red\nblue", 2, "red\nblue"),
        (r"\boxed{red" + "\nblue}", 2, "red\nblue"),
        (f"so $\\boxed{{{MATRIX}}}$", 1, MATRIX.replace("\n", " ")),
    ],
)
def test_answers_of_several_lines(text, lines, answer):
    assert final_answer(text, lines) == answer


def test_what_is_too_long_is_not_read():
    assert final_answer("<answer>46</answer>" + " " * 1_000_000) == ""
    assert final_answer("x" * 900_000 + "\n46") == "46"


@pytest.mark.parametrize("part", [r"\boxed{", "<answer>", "<think>", "</think>", "{", "}", r"\boxed{}", "\n"])
def test_time_grows_with_the_text_and_no_faster(part):
    final_answer(part * (900_000 // len(part)))  # one that grew with the square would not come to an end


def test_a_long_answer_is_compared_in_time_that_grows_no_faster():
    start = time.process_time()
    assert comparable("9" * 1_500_000) == "9" * 1_500_000
    assert time.process_time() - start < 5  # with the square of the length: a minute


def test_without_thoughts():
    assert without_thoughts("a<think>b</think>c") == "c"
    assert without_thoughts("a") == "a"
    assert without_thoughts("a<think>b") == "a"


NUMBERS = {
    **{"46": 46, "-46": -46, "046": 46, "46.": 46, " 7 ": 7, "1,000": 1000, "1000.0": 1000, "12 + 34 = 46": 46},
    **{"1,234,567.50": Fraction(2469135, 2), "0.1": Fraction(1, 10), "3/4": Fraction(3, 4), "-3/4": Fraction(-3, 4)},
    **{"1.5/3": Fraction(1, 2), r"\frac{3}{4}": Fraction(3, 4), r"-\dfrac{3}{4}": Fraction(-3, 4)},
    **{"+46": 46, ".5": Fraction(1, 2), "-.5": -Fraction(1, 2), "\u221246": -46, r"+\frac{3}{4}": Fraction(3, 4)},
    **{"46%": 46, "46 %.": 46, r"$46\%$": 46, "**46%**": 46, "+.5/2": Fraction(1, 4)},
    **{"1e16": 10**16, "5e-05": Fraction(1, 20_000), "-1.5E+2": -150, ".5e1": 5, "1,000e-3": 1},
    **{"$72": 72, "$1,000$": 1000, "**46**": 46, r"\(46\)": 46},
    **{"-$5": -5, "$-5": -5, r"-\$5": -5, r"\$-5": -5, r"$-\$5$": -5, "\u2212$5": -5, "- $ 5": -5, "+$5": 5, "$+5": 5},
    **{r"\$72": 72, r"$\$72$": 72, r"72\$": 72, "72 \u20ac": 72, "\u20ac72": 72, "-\u00a372.50.": -Fraction(145, 2)},
    **{
        r"72\%": 72, "`72`": 72, r"\[72\]": 72, "**72.**": 72, "$72.$": 72, "$72$.": 72,
        r"$\frac{3}{4}$.": Fraction(3, 4),
    },
    **{"1{,}000": 1000, r"1,\!000": 1000, r"1\,000": 1000, r"\$1,000.00": 1000, r"\tfrac{3}{4}": Fraction(3, 4)},
}  # fmt: skip


@every(("text", "number"), NUMBERS.items())
def test_numbers(text, number):
    assert as_number(text) == number
    assert isinstance(as_number(text), Fraction)


NONE = [
    *("", "x", "46 47", "46 apples", "1 = ", "print(1)", "1\n2", "5-1", "2^10", "--1", "+-1", "-\u22121", "+", "0x2e"),
    *("1,00", "10,00,000", ",100", "1,000,", ".", "..", "1..", ".5.5", "%", "%46", "46%%", "4_6", "46\0", "1e9999"),
    *("1e", "e5", "1e+", "1e5.0", "1e5/2", "1/2e5", "2e 5"),
    *("inf", "nan", "1/0", "1/0.0", r"\frac{1}{0}", "\u0663", "4\u00b2", "\ud80046", "\u00a046", "\u201446", "9" * 65),
    *("-$-5", "$--5", "--$5", "$", "-$", r"\$", "$5$5", "5$5", "(5)", r"\$\$\$\$5 6", "5 dollars"),
    "1" * 1_000_000,
    r"\$" * 400_000,
]


@every("text", NONE, ids=lambda text: repr(text[:20]))
def test_no_numbers(text):
    assert as_number(text) is None


EQUAL = [
    ["(1, 2)", "(1,2)", "( 1 , 2 )", r"\left(1, 2\right)", "(1.0, 4/2)", "$(1,2)$.", "**(1,2)**", "(x, y) = (1, 2)"],
    ["[1, 2]", "[1,2]", r"\left[ 1, 2 \right]"],
    [r"\{1, 2\}", r"$\{1,2\}$", "{1, 2}"],
    ["(2, 1)"],
    ["(1, 2, 3)", r"\(\left(1,2,3\right)\)"],
    ["(1,234)", "(1, 234)"],
    ["1234", "1,234", "$1,234"],
    [r"(-\infty, 3]", r"(-\infty,3]", r"\left( -\infty , 3.0 \right]"],
    ["((1,2),(3,4))", "((1, 2), (3, 4))"],
    ["Paris", "paris.", "**Paris**"],
    ["a, b", "a,b"],
    ["1/2", "0.5", r"\frac{1}{2}"],
    ["a/b"],
    ["("],
    [""],
]


def test_answers_that_are_compared():
    forms = [[comparable(text) for text in texts] for texts in EQUAL]
    for number, (first, *others) in enumerate(forms):
        assert others == [first] * len(others), EQUAL[number]
        assert all(first != other for other, *_ in forms[:number]), EQUAL[number]
    for part in ("(", "1,", "()", "=", ")(", "\\left", "$"):
        comparable(part * 100_000)


def test_expressions():
    assert as_expression(r" $5 \times 3 + 9$.") == "5 * 3 + 9"
    assert as_expression("**(5\u00b73)\u22129\u00f72**") == "(5*3)-9/2"
    assert as_expression("9**9") == "9**9"
