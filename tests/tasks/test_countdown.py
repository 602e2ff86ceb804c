"""The countdown task: its problems, its rewards, its split."""

from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest

from mlx_grpo_kit.tasks import Countdown
from mlx_grpo_kit.tasks.countdown import shortest_solutions
from tests.tasks.hostile import every_hostile_text


@pytest.fixture(scope="module")
def task():
    return Countdown()


def scores(task, problem, completion):
    return {function.__name__: function([problem], [completion])[0] for function in task.reward_funcs}


def test_prompt_and_facts(task):
    problem = task.problem(24, (5, 3, 9), "3*5+9")
    assert problem.prompt == "24 from 5 3 9:"
    assert problem.data == {"target": 24, "numbers": (5, 3, 9)}


@pytest.mark.parametrize(
    ("completion", "correct", "uses_numbers"),
    [
        ("3*5+9", 1.0, 0.1), ("9+5*3", 1.0, 0.1), ("(3*5)+9", 1.0, 0.1), (" 3 * 5 + 9 ", 1.0, 0.1),
        ("3+5+9", 0.0, 0.1), ("3*5+9=24", 0.0, 0.0), ("24", 0.0, 0.0), ("3*8", 0.0, 0.0), ("3*5+9+9-9", 0.0, 0.0),
        ("3*5", 0.0, 0.0), ("35-9", 0.0, 0.0),
    ],
)  # fmt: skip
def test_rewards(task, completion, correct, uses_numbers):
    problem = task.problem(24, (5, 3, 9), "3*5+9")
    assert scores(task, problem, completion) == {"correct": correct, "uses_numbers": uses_numbers}
    assert task.is_correct(problem, completion) == bool(correct)


def test_numbers_that_occur_twice_must_be_used_twice(task):
    problem = task.problem(11, (5, 5, 1), "5+5+1")
    assert task.is_correct(problem, "5+1+5")
    assert not task.is_correct(problem, "5+5+1+1-1")
    assert not task.is_correct(problem, "1+1+5+5-1")


def test_division_is_exact(task):
    assert task.is_correct(task.problem(3, (2, 2, 3), ""), "2*(3/2)")
    assert not task.is_correct(task.problem(2, (2, 2, 3), ""), "2*(3/2)")
    assert task.is_correct(task.problem(3, (9, 3, 1), ""), "1/(3/9)")


@every_hostile_text
def test_hostile_completions_score_zero(task, hostile_text):
    problem = task.problem(24, (5, 3, 9), "3*5+9")
    assert scores(task, problem, hostile_text) == {"correct": 0.0, "uses_numbers": 0.0}
    assert not task.is_correct(problem, hostile_text)


def brute_force(numbers) -> set[int]:
    """Every integer that + - * reach, by trying both ways to bracket every order of three numbers."""
    operations = (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y)
    reached = set()
    for (a, b, c), f, g in product(permutations(numbers), operations, operations):
        reached |= {g(f(a, b), c), f(a, g(b, c))}
    return reached


@pytest.mark.parametrize("numbers", [(1, 1, 1), (1, 2, 3), (2, 5, 5), (3, 8, 9), (7, 8, 9)])
def test_solutions_are_complete_and_right(numbers):
    solutions = shortest_solutions(numbers)
    assert set(solutions) == brute_force(numbers)
    for target, text in solutions.items():
        assert eval("".join(f"Fraction({c})" if c.isdigit() else c for c in text), {"Fraction": Fraction}) == target
        assert sorted(int(c) for c in text if c.isdigit()) == list(numbers)


@pytest.mark.parametrize("settings", [{}, {"num_numbers": 2}, {"num_numbers": 4}, {"max_number": 12}], ids=str)
def test_every_problem_has_an_answer_that_fits(settings):
    task = Countdown(**settings)
    problems = task.sample(np.random.default_rng(0), 500) + task.held_out(20)
    for problem in problems:
        assert task.is_correct(problem, problem.answer)
        assert len(problem.answer) + 1 <= task.max_completion_length
        assert 1 <= problem.data["target"] <= 99


def test_sampling_is_seeded(task):
    assert task.sample(np.random.default_rng(5), 100) == task.sample(np.random.default_rng(5), 100)
    assert task.sample(np.random.default_rng(5), 100) != task.sample(np.random.default_rng(6), 100)


def test_no_order_of_a_held_out_game_is_trained_on(task):
    def game(problem):
        return problem.data["target"], tuple(sorted(problem.data["numbers"]))

    train = {game(problem) for problem in task.sample(np.random.default_rng(0), 30_000)}
    held_out = {game(problem) for problem in task.held_out(900)}
    assert not train & held_out
    assert len(train) > 1600  # of 1678 training games
    assert len({problem.data["numbers"] for problem in task.sample(np.random.default_rng(0), 30_000)}) == 9**3


@pytest.mark.parametrize("settings", [(1, 9), (5, 9), (3, 8), (3, 13)])
def test_settings_out_of_range(settings):
    with pytest.raises(ValueError, match=r"2 to 4 numbers and a largest number from 9 to 12"):
        Countdown(*settings)
