"""Chapter 26: its solutions against SciPy and a run that was measured, and the checklist of the project."""

import re

import numpy as np
import pytest
from scipy import stats

from mlx_grpo_kit.course.chapters.chapter_14.exercises import fool
from mlx_grpo_kit.course.chapters.chapter_26 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_26.project import checklist
from mlx_grpo_kit.tasks import Addition, Problem, RowsTask
from tests.every import every


@every(("right", "n"), chapter.SHARE_RANGE.cases)
def test_the_range_of_a_share_is_wilsons(right, n):
    level = 2 * stats.norm.cdf(2) - 1
    theirs = stats.binomtest(right, n).proportion_ci(level, method="wilson")
    assert chapter.share_range(right, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_the_formula_against_the_run_that_was_measured():
    """Qwen3-0.6B's shape in float32, 8 x 64 tokens on two idle cores: 41 s per step, with 4 bytes per weight."""
    sampling, learning = chapter.step_seconds(6e8, 8, 12, 64, flops=4e11, bandwidth=2.3e10)
    assert (round(sampling), round(2 * sampling), round(learning)) == (3, 7, 5)
    assert 0.25 < (2 * sampling + learning) / 41 < 0.35


# -- the checklist of the project -------------------------------------------------------------------------------------

RUNS = [{"seed": seed, "before": 0.4, "after": after} for seed, after in enumerate((0.55, 0.6, 0.62))]
ATTACKS = ["46 or 47", "<answer>4</answer>" * 9]


def holds(task, runs=RUNS, attacks=ATTACKS):
    return {item.name: item.holds for item in checklist(task, runs, attacks)}


def words_of(task, name, runs=RUNS, attacks=ATTACKS):
    return next(item.words for item in checklist(task, runs, attacks) if item.name == name)


def test_a_good_project():
    for task in (Addition(), Addition().in_chat()):
        found = holds(task)
        assert found.pop("read") is None
        assert all(found.values()), found
    assert "8 of 9 hold." in str(checklist(Addition(), RUNS, ATTACKS))


def test_an_object_that_is_not_a_task():
    assert holds(object())["a task"] is False


def test_a_task_that_asks_what_it_holds_out():
    task = Addition()
    task.sample = lambda rng, n: [task.held_out(256)[i] for i in rng.integers(0, 256, n)]
    assert holds(task)["held out"] is False
    assert "training asks held-out problems" in words_of(task, "held out")


def test_a_task_without_a_seed():
    task, rng = Addition(), np.random.default_rng()
    sample = task.sample
    task.sample = lambda _, n: sample(rng, n)
    assert "different problems for the same seed" in words_of(task, "seeds")


def test_problems_that_occur_twice():
    task = Addition()
    first = task.held_out(1)[0]
    task.held_out = lambda n: [first] * n
    assert "occur twice" in words_of(task, "held out")


def test_a_right_answer_that_is_refused():
    task = Addition()
    task.is_correct = lambda problem, completion: completion == f"{problem.answer}."
    assert "is not accepted for" in words_of(task, "right answers")


def test_rewards_that_lazy_texts_get():
    def lenient(problems, completions):
        pairs = zip(problems, completions, strict=True)
        return [float(problem.answer in re.findall("[0-9]+", text)) for problem, text in pairs]

    task = Addition(reward_funcs=[lenient])
    assert holds(task)["attacks"] is True  # no lazy text finds the hole
    assert "is paid 1 on average" in words_of(task, "attacks", attacks=[fool(198)])

    def anything(problems, completions):
        return [1.0] * len(completions)

    assert "'' is paid 1 on average" in words_of(Addition(reward_funcs=[anything]), "attacks")
    assert "think of some of your own" in words_of(Addition(), "attacks", attacks=[])


def test_one_text_that_is_right_everywhere():
    task = Addition()
    task.is_correct = lambda problem, completion: problem.answer in completion.split()
    assert "counts as right on 100%" in words_of(task, "attacks", attacks=[fool(198)])


def test_runs_that_show_little():
    assert holds(Addition(), RUNS[:2])["several seeds"] is False
    assert holds(Addition(), [{**run, "seed": 0} for run in RUNS])["several seeds"] is False
    assert holds(Addition(), RUNS[:1])["a gain"] is False
    assert holds(Addition(), [{"seed": 0, "after": 0.5}])["a baseline"] is False
    shaky = [{"seed": seed, "before": 0.4, "after": after} for seed, after in enumerate((0.2, 0.5, 0.6))]
    assert holds(Addition(), shaky)["a gain"] is False
    assert "+0.190, with a standard error of 0.021 over 3 runs" in words_of(Addition(), "a gain")


def test_few_problems_and_problems_without_answers():
    rows = RowsTask([{"question": f"{n}?", "answer": n} for n in range(100)])
    assert holds(rows)["enough problems"] is False
    silent = RowsTask(
        [{"prompt": f"{n}?"} for n in range(100)],
        [lambda problems, completions: [0.0] * len(completions)],
        lambda problem, text: False,
    )
    assert holds(silent)["right answers"] is None
    assert isinstance(silent.held_out(1)[0], Problem)
