"""Chapter 14: answers in other styles, wrong ones with their messages, the typed reward, claims of its prose."""

import hashlib
import math
import random
import re

import numpy as np
import pytest

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_14 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_14 import suspects
from mlx_grpo_kit.course.chapters.chapter_14.typed import score_typed
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Countdown, ExpressionError, ascii_int, parse_expression
from mlx_grpo_kit.tasks.formats import THINK_ANSWER

COUNTDOWN = Countdown(num_numbers=2)

# -- right answers in other styles ------------------------------------------------------------------------------------


def by_characters(text):
    text = text.strip(" ")
    if not 0 < len(text) < 10 or set(text) - set("0123456789") or str(int(text)) != text:
        return None
    return np.int64(int(text))


def one_pattern(text):
    found = re.fullmatch(r" *(0|[1-9][0-9]{0,8}) *", text)
    return int(found[1]) if found else None


def ascii_digits(text):
    text = text.strip(" ")
    ok = text.isascii() and text.isdigit() and len(text) <= 9 and (text == "0" or text[0] != "0")
    return int(text) if ok else None


def correct_as_bools(problems, completions):
    return [ascii_int(text) == int(problem.answer) for problem, text in zip(problems, completions, strict=True)]


def correct_as_array(problems, completions):
    numbers = np.array([-1 if (n := by_characters(text)) is None else n for text in completions])
    return (numbers == np.array([int(each.answer) for each in problems])).astype(float)


def correct_in_mlx(problems, completions):
    return mx.array([float(one_pattern(text) == int(each.answer)) for each, text in zip(problems, completions)])  # noqa: B905


def correct_lazily(problems, completions):
    for problem, text in zip(problems, completions, strict=True):
        yield 1 if one_pattern(text) == int(problem.answer) else 0


def padded_digits(problems, completions):
    rewards = []
    for problem, text in zip(problems, completions, strict=True):
        number = one_pattern(text)
        if number is None:
            rewards.append(0)
            continue
        most = max(len(str(number)), len(problem.answer))
        left, right = str(number).rjust(most, "a"), problem.answer.rjust(most, "b")
        rewards.append(np.mean([a == b for a, b in zip(left, right, strict=True)]))
    return rewards


def by_the_kits_parser(text, numbers, target):
    if set(text) - set("0123456789+-*") or len(text) > 32:
        return False
    try:
        expression = parse_expression(text)
    except ExpressionError:
        return False
    fits = all(number < 100 for number in expression.numbers)
    return fits and sorted(expression.numbers) == sorted(numbers) and expression.value == target


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


def add_with_numpy(rewards, weights):
    table = np.array([[np.nan if value is None else value for value in row] for row in rewards])
    sums = np.nansum(table * np.array(weights)[:, None], axis=0)
    return [None if np.isnan(column).all() else total for column, total in zip(table.T, sums, strict=True)]


def add_with_loops(rewards, weights):
    sums = [None] * len(rewards[0])
    for row, weight in zip(rewards, weights, strict=True):
        for place, value in enumerate(row):
            if value is not None:
                sums[place] = (sums[place] or 0) + weight * value
    return sums


def form_by_pattern(problems, completions):
    return [0.2 * bool(THINK_ANSWER.fullmatch(text.strip())) for text in completions]


def form_by_parts(problems, completions):
    rewards = []
    for text in completions:
        parts = re.split("(</?think>|</?answer>)", text)
        tags, between = parts[1::2], parts[::2]
        good = tags == ["<think>", "</think>", "<answer>", "</answer>"]
        rewards.append(0.2 if good and not (between[0] + between[2] + between[4]).strip() else 0)
    return rewards


def with_sha(a, b):
    key = str(sorted((int(a), int(b)))).encode()
    return int(hashlib.sha256(key).hexdigest(), 16) % 10 == 3


def with_dice_of_its_own(a, b):
    return random.Random(f"{min(a, b)} {max(a, b)}").random() < 0.1


def more_than_needed(reward, problem):
    full = reward([problem], [problem.answer])[0]
    right = problem.answer
    tries = {"", *right, right + "9", "9" + right, "".join(sorted(right)), right[::-1], "1" * 40, "and " + right}
    for number in range(300):
        tries.add(str(number))
    tries -= {right}
    return next((text for text in sorted(tries) if reward([problem], [text])[0] >= full), None)


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("14.1", by_characters), ("14.1", one_pattern), ("14.1", ascii_digits),
        ("14.2", correct_as_bools), ("14.2", correct_as_array), ("14.2", correct_in_mlx), ("14.2", correct_lazily),
        ("14.3", padded_digits),
        ("14.4", by_the_kits_parser), ("14.4", by_hand),
        ("14.5", add_with_numpy), ("14.5", add_with_loops),
        ("14.6", form_by_pattern), ("14.6", form_by_parts),
        ("14.7", lambda largest: ",".join(map(str, range(largest + 1)))),
        ("14.7", lambda largest: " ".join(str(n) for n in range(1000))),
        ("14.8", with_sha), ("14.8", with_dice_of_its_own),
        ("14.9", more_than_needed),
    ],
)  # fmt: skip
def test_right_answers_in_another_style_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong ones -------------------------------------------------------------------------------------------------------


def cut_at_minus(text, numbers, target):
    if len(text) > 32 or not re.fullmatch("[0-9]{1,2}([-+*][0-9]{1,2})*", text):
        return False
    sums = [sum(math.prod(map(int, each.split("*"))) for each in part.split("+")) for part in text.split("-")]
    return sorted(map(int, re.findall("[0-9]+", text))) == sorted(numbers) and sums[0] - sum(sums[1:]) == target


def raising(text):
    return int(text)


def first_number(text):
    found = re.search("[0-9]+", text)
    return int(found[0]) if found else None


def correct_sorted(problems, completions):
    completions.sort()
    return chapter.correct(problems, completions)


def correct_for_any(problems, completions):
    right = {problem.answer for problem in problems}
    return [float(text.strip() in right) for text in completions]


def guarded_eval(text, numbers, target):
    return bool(re.fullmatch("[-+*0-9]+", text)) and eval(text) == target


def parsed(text):
    return eval(text)


def eval_by_a_helper(text, numbers, target):
    try:
        return parsed(text) == target
    except BaseException:
        return False


def exact_hash(a, b):
    return (a * b + a + b) % 10 == 0


def by_the_larger(a, b):
    return max(a, b) % 10 == 7


def by_the_product(a, b):
    return hashlib.sha256(str(a * b).encode()).digest()[0] < 26


def by_a_shared_generator(a, b):
    random.seed(f"{min(a, b)} {max(a, b)}")
    return random.random() < 0.1


def of_text(pattern, text):
    return int(text.strip(" ")) if re.fullmatch(pattern, text.strip(" ")) else None


def value_of(text):
    return sum(
        (-1 if sign == "-" else 1) * math.prod(map(int, product.split("*")))
        for sign, product in re.findall(r"([-+]?)([0-9*]+)", text)
    )


def countdown_in(pattern, most=32, value=value_of):
    def reaches(text, numbers, target):
        if len(text) > most or not re.fullmatch(pattern, text):
            return False
        return sorted(map(int, re.findall("[0-9]+", text))) == sorted(numbers) and value(text) == value(str(target))

    return reaches


def summed(rule):
    """An `add_up` from a function that turns (a column's values, the weights) into its sum."""
    return lambda rewards, weights: [rule(column, weights) for column in zip(*rewards, strict=True)]


def present(column, weights):
    return [(value, weight) for value, weight in zip(column, weights, strict=True) if value is not None]


def divided(column, weights):
    there = present(column, weights)
    return sum(v * w for v, w in there) / sum(w for _, w in there) if there else None


def shifted(column, weights):
    values = [value for value in column if value is not None]
    return sum(v * w for v, w in zip(values, weights)) if values else None  # noqa: B905


def formed(pattern, flags=0, changed=str):
    def well_formed(problems, completions):
        tags = ("<think>", "</think>", "<answer>", "</answer>")
        return [
            0.2 * (bool(re.fullmatch(pattern, changed(text), flags)) and all(changed(text).count(t) == 1 for t in tags))
            for text in completions
        ]

    return well_formed


def filled_up(problems, completions):
    rewards = []
    for problem, text in zip(problems, completions, strict=True):
        number = chapter.whole_number(text)
        width = max(len(problem.answer), len(str(number)))
        pairs = zip(problem.answer.zfill(width), str(number).zfill(width), strict=True)
        rewards.append(0.0 if number is None else sum(a == b for a, b in pairs) / width)
    return rewards


def whatever_it_is(problems, completions):
    return [
        sum(a == b for a, b in zip(problem.answer[::-1], text[::-1])) / max(len(problem.answer), len(text))  # noqa: B905
        for problem, text in zip(problems, completions, strict=True)
    ]


def only_what_is_equal(reward, problem):
    full = reward([problem], [problem.answer])[0]
    tries = ["", "1", "0", problem.answer + "0", "1" + problem.answer, problem.answer[:1], problem.answer[::-1]]
    tries += [str(int(problem.answer) + by) for by in (1, 10, -1, -10)]
    tries += ["x" * 60, " ".join(map(str, range(200))), problem.answer + " or not"]
    return next(
        (text for text in tries if text.strip(" ") != problem.answer and reward([problem], [text])[0] == full), None
    )


def all_that_is_paid(reward, problem):
    return problem.answer if reward([problem], [problem.answer])[0] else None


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("14.1", raising, "whole_number(\" 46\")|raised ValueError|'+46'|046"),
        ("14.1", first_number, "expected None"),
        ("14.1", lambda text: text.isdigit(), "expected"),
        ("14.1", lambda text: int(text) if re.fullmatch("[0-9]+", text) else None, "46"),
        ("14.1", lambda text: -1 if one_pattern(text) is None else one_pattern(text), "expected None"),
        ("14.1", lambda text: of_text(r"0|[1-9]\d{0,8}", text), "every script, at any position"),
        ("14.1", lambda text: of_text("0|[1-9][0-9]{0,9}", text), "Ten digits are one too many"),
        ("14.1", lambda text: of_text("0|[1-9][0-9]{0,8}", text[:20]), "cut the text before you removed its spaces"),
        ("14.2", correct_for_any, "expected"),
        (
            "14.2",
            lambda problems, completions: [
                float((chapter.whole_number(c) or 0) == int(p.answer))
                for p, c in zip(problems, completions, strict=True)
            ],
            "silence is the right answer to 0+0",
        ),
        (
            "14.2",
            lambda problems, completions: [
                float(c.strip() == p.answer) for p, c in zip(problems, completions, strict=True)
            ],
            "with a line break is not a number",
        ),
        ("14.3", filled_up, "Padded with zeros"),
        ("14.3", whatever_it_is, "`00` is not one"),
        ("14.4", countdown_in("[0-9]{1,2}([-+*][0-9]{1,2})*", most=31), "32 characters is still allowed"),
        ("14.4", countdown_in("[0-9]+([-+*][0-9]+)*"), "A number has one or two digits"),
        ("14.4", countdown_in("[-+]?[0-9]{1,2}([-+*][0-9]{1,2})*"), "You accept a leading sign"),
        (
            "14.4",
            countdown_in("[0-9]{1,2}([-+*][0-9]{1,2})*", value=lambda text: abs(value_of(text))),
            "3-5 is -2, not 2",
        ),
        (
            "14.4",
            lambda text, numbers, target: chapter.reaches(text.replace(" ", ""), numbers, target),
            "has no spaces",
        ),
        (
            "14.4",
            lambda text, numbers, target: chapter.reaches(text.removesuffix("\n"), numbers, target),
            "before a line break at the end",
        ),
        (
            "14.5",
            summed(
                lambda column, weights: (
                    None if None in column else sum(v * w for v, w in zip(column, weights, strict=True))
                )
            ),
            "Leave that function out, and add the others",
        ),
        ("14.5", summed(divided), "by the weights of the functions that apply"),
        ("14.5", summed(shifted), "gets the weight of another function"),
        ("14.6", formed(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*"), "unless you pass `re.DOTALL`"),
        ("14.6", formed(" *<think>.*</think> *<answer>.*</answer> *", re.DOTALL), "Line breaks are white space too"),
        (
            "14.6",
            formed(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL, changed=str.lower),
            "`<THINK>` is not the tag",
        ),
        ("14.7", lambda largest: " ".join(map(str, range(1, largest + 1))), "0 is an answer too"),
        ("14.7", lambda largest: " ".join(map(str, range(largest))), "the largest answer is missing"),
        ("14.7", lambda largest: list(map(str, range(largest + 1))), "a list and not *one* text"),
        ("14.7", lambda largest: map(str, range(largest + 1)), "a map and not *one* text"),
        ("14.8", by_the_product, "depends only on the product"),
        ("14.8", by_a_shared_generator, "seeds the global generator"),
        ("14.8", lambda a, b: random.Random().random() < 0.1, "a different verdict when asked again"),
        ("14.9", only_what_is_equal, "pays a wrong completion more than the right one"),
        ("14.2", lambda problems, completions: [1.0] * len(completions), "expected"),
        ("14.2", lambda problems, completions: [float(c == p.answer) for p, c in zip(problems, completions)], "46 "),  # noqa: B905
        ("14.3", chapter.correct, "expected"),
        ("14.3", lambda problems, completions: [0.5 for _ in completions], "expected"),
        ("14.4", guarded_eval, "`eval`, which runs or parses text that a model wrote"),
        ("14.4", eval_by_a_helper, "it calls `eval`, which runs whatever a model wrote"),
        ("14.4", lambda text, numbers, target: True, "gave True, expected False"),
        (
            "14.4",
            lambda text, numbers, target: parse_expression(text).value == target,
            "raised ExpressionError|expected",
        ),
        ("14.5", lambda rewards, weights: [0.0 for _ in rewards[0]], "expected"),
        ("14.6", lambda problems, completions: [0.2 * ("<think>" in text) for text in completions], "expected"),
        ("14.7", lambda largest: "all of them", "paid for 0 of 10 answers"),
        ("14.7", lambda largest: 3, "gave 3"),
        ("14.8", exact_hash, "a split that"),
        ("14.8", by_the_larger, "a split that depends on the last digit of the larger number"),
        ("14.8", lambda a, b: False, "holds out 0.0% of the sums"),
        ("14.8", lambda a, b: 0.1, "gave 0.1"),
        ("14.9", lambda reward, problem: "", "which is paid"),
        ("14.9", all_that_is_paid, "which is the right answer"),
        ("14.1", lambda text: (n := one_pattern(text)) and float(n), "46.0, a float (return an int)"),
        ("14.4", cut_at_minus, "the minus applies only to the 3"),
        ("14.4", lambda text, *given: by_hand(text[:32], *given), "judged the rest"),
        ("14.8", lambda a, b: a % 10 + b % 10 < 10 and with_sha(a, b), "depends on the carry"),
        ("14.8", lambda a, b: str({a, b}).__hash__() % 10 == 0, "Python's `hash`"),
    ],
)
def test_wrong_answers_get_their_messages(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert any(each in note.text for each in words.split("|")), note.text


def test_honest_rewards_have_no_hole_and_the_others_do():
    problem = Addition.problem(87, 78)
    for reward in (*suspects.HONEST, *suspects.HOLED):
        found = more_than_needed(reward, problem)
        assert (found is None) == (reward in suspects.HONEST), reward.__name__
        assert (chapter.find_hole(reward, problem) is None) == (reward in suspects.HONEST)
    assert len(suspects.HONEST) == 4
    assert len(suspects.HOLED) == 9


def test_the_solutions_judge_as_the_kit_does(hostile):
    assert (chapter.whole_number(hostile) is None) or hostile.strip(" ") == str(chapter.whole_number(hostile))
    assert chapter.reaches(hostile, [1, 2], 3) is False
    assert not COUNTDOWN.is_correct(COUNTDOWN.problem(3, (1, 2), "1+2"), hostile)
    assert chapter.well_formed([None], [hostile]) == [0.0]


@pytest.fixture(
    params=["", "9**9**9", "(" * 9999, "\u0664", "1_0", "4\u00b2", "9" * 10**6, "\x1b[2J1+2", "1+2\0", "1+2\n"],
    ids=range(10),
)
def hostile(request):
    return request.param


# -- the typed reward -------------------------------------------------------------------------------------------------

PROBLEMS = [Addition.problem(1, 2), Addition.problem(3, 4)]
HEAD = "def reward(prompt, answer, completion):\n    "


def test_a_typed_reward_is_applied_to_each():
    assert score_typed(HEAD + "return len(prompt) + (completion == answer)", PROBLEMS, ["3", "x"]) == [5.0, 4.0]
    assert score_typed("reward = lambda p, a, c: None", PROBLEMS, ["3", "x"]) == [None, None]
    assert score_typed(HEAD + "return double(1)", PROBLEMS, ["3", "x"], double=lambda n: 2 * n) == [2.0, 2.0]


BROKEN = f"""class Broken(Exception):
    def __str__(self): return 1 / 0
{HEAD}"""
PATIENT = f"""{HEAD}while True:
        try: value = 1
        except Exception: pass"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "Please define a function: `def reward"),
        ("bla bla bla", "Line 1 is not Python yet: invalid syntax"),
        (HEAD + "return (", "Line 2 is not Python yet: '(' was never closed"),
        ("\0", "is not Python yet"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("while True: pass", "Your code does not end"),
        (HEAD + "while True: pass", "Your code was stopped after 3,000,000 steps"),
        ("reward = 3", "Please define a function"),
        ("def reward(completion): return 1", "takes 1 positional argument but 3 were given"),
        (HEAD + "return int(completion)", "ValueError for 3+4=x: invalid literal"),
        (HEAD + "return 'good'", "Your function returned 'good' for 1+2=3; a reward is a finite number"),
        (HEAD + "return float('nan')", "Your function returned nan for 1+2=3"),
        (HEAD + "return [1]", r"Your function returned \[1\] for 1+2=3"),
        (HEAD + "return Exception", "Your function returned Exception for 1+2=3"),
        (BROKEN + "raise Broken", "Broken for 1+2=3: (its text cannot be shown)"),
        (BROKEN + "return Broken()", "Your function returned a Broken for 1+2=3"),
        (PATIENT, "Your code was stopped after 3,000,000 steps"),
        (HEAD + "exit()", "SystemExit for 1\\+2=3"),
        ("exit()", "SystemExit"),
        (HEAD + "return nothing", "NameError for 1\\+2=3: name 'nothing' is not defined"),
    ],
)
def test_nonsense_gets_a_message(code, words):
    with pytest.raises(ValueError, match=re.sub(r"(?<!\\)([()+])", r"\\\1", words)):
        score_typed(code, PROBLEMS, ["3", "x"])


# -- the prose --------------------------------------------------------------------------------------------------------


def test_the_tables_of_the_chapter():
    problem = [Addition.problem(87, 78)] * 4
    texts = ["165", "155", "65", "I think 165"]
    assert chapter.correct(problem, texts) == [1, 0, 0, 0]
    assert np.allclose(chapter.digits_right(problem, texts)[:3], [1, 2 / 3, 2 / 3])
    assert [abs(int(text) - 165) <= 10 for text in texts[:3]] == [True, True, False]
    assert chapter.add_up([[1, 1, 0, 0], [1, 0, 1, None]], [1, 0.2]) == [1.2, 1.0, 0.2, 0.0]
    assert math.isclose(1 - abs(55 - 65) / 200, 0.95)
    # "with 1 and 2, well-formed nonsense would beat a right answer without the form"
    assert chapter.add_up([[1, 0], [0, 1]], [1, 2]) == [1, 2]


def test_texts_that_int_accepts():
    assert [int(text) for text in ("4_6", "\n46", "+46", "\u0664\u0666", "046")] == [46] * 5
