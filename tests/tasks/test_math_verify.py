"""math-verify as a reward: it works in threads too, and a missing installation is an error that says so."""

import os
import threading

import pytest

from mlx_grpo_kit.tasks import Problem, RowsTask, TaskError
from mlx_grpo_kit.tasks import math_verify as judge
from tests.tasks.hostile import every_hostile_text

HALF = Problem("?", r"\frac{1}{2}")


def test_an_error_says_that_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(judge, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match="math-verify is not installed"):
        judge.math_verified([HALF], ["0.5"])


@pytest.mark.parametrize(
    ("answer", "said", "right"),
    [
        (r"\frac{1}{2}", r"It is \boxed{0.5}.", True), (r"\frac{1}{2}", "$1/2$", True),
        (r"\frac{1}{2}", r"\boxed{2}", False), (r"\frac{1}{2}", r"<think>\boxed{0.5}", False), ("46", "46", True),
        ("46", "", False), (r"x^2+2x+1", r"$(x+1)^2$", True),
    ],
)  # fmt: skip
def test_formulas(answer, said, right):
    assert judge.is_math_equal(Problem("?", answer), said) == right


def test_in_a_thread_and_in_a_task():
    rows = [{"question": f"Half of {n}?", "answer": rf"\frac{{{n}}}{{2}}"} for n in range(1, 40, 2)]
    task = RowsTask(rows, [judge.math_verified], judge.is_math_equal)
    problem, found = task.held_out(1)[0], []
    n = int(problem.data["question"].split()[-1][:-1])
    thread = threading.Thread(target=lambda: found.extend(task.reward_funcs[0]([problem] * 2, [f"${n / 2}$", "$7$"])))
    thread.start()
    thread.join()
    assert found == [1.0, 0.0]


@every_hostile_text
def test_hostile_completions_score_zero(hostile_text):
    assert not judge.is_math_equal(Problem("?", "1234"), hostile_text)


def test_a_judge_that_is_gone_is_begun_again():
    assert judge.is_math_equal(HALF, "$0.5$")
    judge._judge._process.kill()
    judge._judge._process.wait()
    assert judge.is_math_equal(HALF, "$0.5$")


def test_ctrl_c_in_a_terminal_does_not_end_the_judge():
    assert judge.is_math_equal(HALF, "$0.5$")
    assert os.getpgid(judge._judge._process.pid) != os.getpgrp()
