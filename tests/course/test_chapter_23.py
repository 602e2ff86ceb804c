"""Chapter 23: its solutions against the kit."""

from fractions import Fraction

from mlx_grpo_kit.course.chapters.chapter_23 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_23.runs import RUNS, last_number, recorded
from mlx_grpo_kit.tasks import Larger
from mlx_grpo_kit.tasks import answers as kit
from tests.every import every


@every("text", [text for (text,) in chapter.FINAL_ANSWER.cases])
def test_the_exercise_s_final_answer_is_the_kit_s(text):
    assert chapter.final_answer(text) == kit.final_answer(text)


def test_numbers_that_are_equal_in_the_exercise_are_equal_in_the_kit():
    for said, right in chapter.SAME_NUMBER.cases:
        if chapter.same_number(said, right):
            assert kit.as_number(said) == kit.as_number(right)


def test_fractions_are_exact_in_the_solution():
    assert Fraction("0.1") != Fraction(0.1)
    assert not chapter.same_number("9007199254740993", "9007199254740992")


@every("name", RUNS)
def test_recorded_rewards_are_what_the_reward_pays(name):
    """The stored texts, rewards and exams fit each other and the functions."""
    (record, exam), task = recorded(name), Larger()
    texts = [each for step in record.steps for each in step.completions]
    assert len(record.steps) == 40
    assert len(texts) == 10 * 32
    for each in texts:
        a, b = (int(number) for number in each.prompt.rstrip("?").split(" larger, ")[1].split(" or "))
        problem = task.problem(a, b)
        reward = last_number if name == "the last number counts" else task.reward_funcs[0]
        assert reward([problem], [each.completion]) == [each.reward]
        assert each.correct == chapter.names_only(each.completion, problem.answer)
    assert exam["before"]["eval/accuracy"] < 0.1
    assert (exam["after"]["eval/accuracy"] > 0.85) == (name != "the last number counts")
