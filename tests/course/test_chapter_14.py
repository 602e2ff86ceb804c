"""Chapter 14: honest rewards and holes, the typed reward, claims of its prose."""

import math
import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_14 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_14 import suspects
from mlx_grpo_kit.course.chapters.chapter_14.typed import score_typed
from mlx_grpo_kit.tasks import Addition, Countdown

COUNTDOWN = Countdown(num_numbers=2)


def test_honest_rewards_have_no_hole_and_the_others_do():
    problem = Addition.problem(87, 78)
    for reward in (*suspects.HONEST, *suspects.HOLED):
        assert (chapter.find_hole(reward, problem) is None) == (reward in suspects.HONEST), reward.__name__
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
