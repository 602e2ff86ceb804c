"""The addition task: its problems, its rewards, its split."""

import numpy as np
import pytest

from mlx_grpo_kit.tasks import Addition
from tests.tasks.hostile import every_hostile_text


@pytest.fixture(scope="module")
def task():
    return Addition()


def test_prompt_and_answer(task):
    problem = task.problem(12, 34)
    assert (problem.prompt, problem.answer) == ("12+34=", "46")
    assert problem.data == {"a": 12, "b": 34}


def test_reward_is_one_for_the_exact_sum_only(task):
    problem = task.problem(12, 34)
    completions = ["46", " 46", "46 ", "47", "4", "460", "-46", "046", "46=", "46.", ""]
    (correct,) = task.reward_funcs
    assert correct.__name__ == "correct"
    assert correct([problem] * len(completions), completions) == [1.0] * 3 + [0.0] * 8
    assert [task.is_correct(problem, text) for text in completions] == [True] * 3 + [False] * 8


@every_hostile_text
def test_hostile_completions_score_zero(task, hostile_text):
    problem = task.problem(12, 34)
    assert [function([problem], [hostile_text]) for function in task.reward_funcs] == [[0.0]]
    assert not task.is_correct(problem, hostile_text)


def test_a_reward_function_wants_a_problem_for_every_completion(task):
    with pytest.raises(ValueError, match="zip"):
        task.reward_funcs[0](task.held_out(2), ["1"])


def test_sampling_is_seeded_uniform_and_right(task):
    problems = task.sample(np.random.default_rng(5), 20_000)
    assert problems == task.sample(np.random.default_rng(5), 20_000)
    assert problems != task.sample(np.random.default_rng(6), 20_000)
    for problem in problems:
        a, b = map(int, problem.prompt.rstrip("=").split("+"))
        assert 0 <= a <= 99
        assert 0 <= b <= 99
        assert problem.answer == str(a + b)
        assert task.is_correct(problem, problem.answer)
    # Each operand is uniform on 0..99: mean 49.5, standard deviation of the mean 28.9 / sqrt(20000) = 0.2.
    for side in ("a", "b"):
        assert abs(np.mean([problem.data[side] for problem in problems]) - 49.5) < 1.5


def test_neither_order_of_a_held_out_pair_is_trained_on(task):
    held_out = {frozenset((p.data["a"], p.data["b"])) for p in task.held_out(1000)}
    train = {frozenset((p.data["a"], p.data["b"])) for p in task.sample(np.random.default_rng(0), 60_000)}
    assert not held_out & train
    assert len(train) > 4400  # of the 4545 training pairs, 60,000 draws leave hardly any out


def test_memorised_training_prompts_do_not_pass(task):
    """A look-up table of everything training can show, both ways round, answers not one held-out problem."""
    table = {}
    for problem in task.sample(np.random.default_rng(0), 100_000):
        a, b = problem.data["a"], problem.data["b"]
        table[f"{a}+{b}="] = table[f"{b}+{a}="] = problem.answer
    held_out = task.held_out(256)
    assert sum(task.is_correct(problem, table.get(problem.prompt, "")) for problem in held_out) == 0


@pytest.mark.parametrize(("max_operand", "length"), [(9, 3), (99, 4), (999, 5)])
def test_completion_length_fits_the_largest_sum_and_eos(max_operand, length):
    task = Addition(max_operand)
    assert task.max_completion_length == length
    assert len(task.problem(max_operand, max_operand).answer) + 1 == length


@pytest.mark.parametrize("max_operand", [0, 8, 1000, -1])
def test_operand_out_of_range(max_operand):
    with pytest.raises(ValueError, match=f"max_operand={max_operand}.*9 to 999"):
        Addition(max_operand)


def test_own_rewards():
    def shorter(problems, completions):
        return [-float(len(completion)) for completion in completions]

    assert Addition(reward_funcs=[shorter]).reward_funcs == [shorter]
