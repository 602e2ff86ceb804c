"""Calling a task that returns or raises what it should not: the message names the task and the call."""

import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.tasks import Addition, Problem, TaskError
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems, sample_problems

PROBLEM = Problem("1+1=", "2")


def failing(*_):
    raise KeyError("answer")


def leaving(*_):
    sys.exit(0)


def task(returned):
    method = returned if callable(returned) else lambda *_: returned
    return SimpleNamespace(name="mine", sample=method, held_out=method, is_correct=method)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "returned 0 problems; expected 2"),
        ([PROBLEM], "returned 1 problems; expected 2"),
        ([PROBLEM] * 3, "returned more than 2 problems; expected 2"),
        (lambda *_: itertools.repeat(PROBLEM), "returned more than 2 problems; expected 2"),
        (None, "raised TypeError"),
        ([PROBLEM, "1+1="], "returned str at position 1; expected a Problem"),
        ([Problem(None, "2"), PROBLEM], "returned Problem at position 0; expected a Problem whose prompt is a str"),
        (failing, "raised KeyError: 'answer'"),
        (leaving, "raised SystemExit: 0"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_problems_that_are_none(returned, message):
    with pytest.raises(TaskError, match=rf"^Task 'mine': sample\(rng, 2\) {message}"):
        sample_problems(task(returned), np.random.default_rng(0), 2)
    with pytest.raises(TaskError, match=rf"^Task 'mine': held_out\(2\) {message}"):
        held_out_problems(task(returned), 2)


def test_problems_may_come_from_any_iterable():
    for returned in ((PROBLEM,) * 2, lambda *_: (PROBLEM for _ in range(2))):
        assert sample_problems(task(returned), np.random.default_rng(0), 2) == [PROBLEM] * 2


@pytest.mark.parametrize("judge", [failing, leaving])
def test_a_judge_that_fails(judge):
    with pytest.raises(TaskError, match=r"^Task 'mine': is_correct\(problem, completion\) raised "):
        are_correct(task(judge), [PROBLEM], ["2"])


def test_a_task_that_explains_itself_is_not_explained_again():
    with pytest.raises(TaskError, match=r"^held_out\(99999\) asks for 99999 problems, but 'addition' has only"):
        held_out_problems(Addition(), 99999)
