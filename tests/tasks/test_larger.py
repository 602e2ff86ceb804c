"""The larger of two numbers: what counts as the answer, and the split."""

import numpy as np
import pytest

from mlx_grpo_kit.tasks import Larger, get_task, validate_task
from tests.tasks.hostile import every_hostile_text


@pytest.fixture(scope="module")
def task():
    return get_task("larger")


def test_prompts_as_texts_and_as_chats(task):
    validate_task(task)
    problem = task.problem(18, 21)
    assert (problem.prompt, problem.answer, problem.data) == ("max(18,21)=", "21", {"a": 18, "b": 21})
    chat = task.in_chat()
    assert chat.put(problem).prompt == [{"role": "user", "content": "Which number is larger, 18 or 21?"}]
    assert (chat.max_completion_length, chat.name) == (12, "larger-chat")


@pytest.mark.parametrize(
    ("completion", "is_right"),
    [
        *((right, True) for right in ("21", "The larger number is 21.", "21. Yes, **21**", "(21)")),
        *(
            (both, False)
            for both in ("18 is larger than 21.", "21 is larger than 18.", "18? No: 21!", "21 > 18, so 21")
        ),
        *((wrong, False) for wrong in ("18", "", "21.5", "1,021", "210", "\u0662\u0661")),
        ("<think>18</think>21", True),
        ("<think>so it is 21", False),
        ("2" * 2_000_000 + " 21", False),
    ],
)
def test_only_the_larger_number_may_be_named(task, completion, is_right):
    problem = task.problem(18, 21)
    assert task.is_correct(problem, completion) == is_right
    assert task.reward_funcs[0]([problem], [completion]) == [float(is_right)]


@every_hostile_text
def test_hostile_completions_score_zero(task, hostile_text):
    assert task.reward_funcs[0]([task.problem(18, 21)], [hostile_text]) == [0.0]


def test_seeds_repeat_and_held_out_pairs_are_never_drawn(task):
    drawn = task.sample(np.random.default_rng(3), 30_000)
    assert drawn == Larger().sample(np.random.default_rng(3), 30_000)
    held_out = task.held_out(800)
    assert held_out[:5] == task.held_out(5)
    assert len({problem.prompt for problem in held_out}) == 800
    for problem in (*drawn, *held_out):
        assert 10 <= min(problem.data.values()) < max(problem.data.values()) <= 99
    pairs = [{frozenset(problem.data.values()) for problem in side} for side in (drawn, held_out)]
    assert not pairs[0] & pairs[1]
    first_is_larger = np.mean([problem.data["a"] > problem.data["b"] for problem in drawn])
    assert abs(first_is_larger - 0.5) < 0.02
