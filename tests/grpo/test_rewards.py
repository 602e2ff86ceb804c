"""compute_rewards: what reward functions return, and everything they should not."""

import functools
import itertools
import math
import sys

import numpy as np
import pytest

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.grpo import RewardError, compute_rewards

PROBLEMS, COMPLETIONS = ["p0", "p1", "p2"], ["46", "seven", ""]


def named(name, returned):
    def reward(problems, completions):
        return returned() if callable(returned) else returned

    reward.__name__ = name
    return reward


def test_functions_get_problems_and_completions_and_their_rewards_are_added():
    seen = []

    def length(problems, completions):
        seen.append((problems, completions))
        return [len(completion) for completion in completions]

    total, by_name = compute_rewards([length, named("half", [0.5, 0.5, -0.5])], PROBLEMS, COMPLETIONS)
    assert seen == [(PROBLEMS, COMPLETIONS)]
    assert {name: values.tolist() for name, values in by_name.items()} == {
        "length": [2, 5, 0],
        "half": [0.5, 0.5, -0.5],
    }
    assert total.tolist() == [2.5, 5.5, -0.5]
    assert total.dtype == np.float64


def test_what_a_function_does_to_its_lists_stays_with_it():
    def reordering(problems, completions):
        completions.sort()
        problems.clear()
        return [0.0] * len(completions)

    problems, completions, seen = list(PROBLEMS), list(COMPLETIONS), []

    def later(problems, completions):
        seen.extend((problems, completions))
        return [0.0] * len(completions)

    compute_rewards([reordering, later], problems, completions)
    assert (problems, completions) == (PROBLEMS, COMPLETIONS)
    assert seen == [PROBLEMS, COMPLETIONS]


def test_a_sum_that_float32_cannot_hold():
    functions = [named("first", [0.0, 3e38, 0.0]), named("second", [0.0, 3e38, 0.0])]
    with pytest.raises(RewardError, match=r"rewards of completion 1 add up to 6e\+38 \(first, second\)"):
        compute_rewards(functions, PROBLEMS, COMPLETIONS)


def test_none_says_that_a_function_does_not_apply():
    functions = [named("first", [1.0, None, None]), named("second", [2.0, 3.0, None])]
    total, by_name = compute_rewards(functions, PROBLEMS, COMPLETIONS)
    np.testing.assert_array_equal(by_name["first"], [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(total, [3.0, 3.0, np.nan])


def stable_id(value) -> str:
    """A name without an address in it: every process of a parallel run has to find the same tests."""
    return value.__qualname__ if callable(value) else str(value)


@pytest.mark.parametrize(
    "returned",
    [
        (1, 0, 1), [True, False, True], np.array([1.0, 0.0, 1.0]), np.array([1, 0, 1], np.int8),
        mx.array([1.0, 0.0, 1.0]), [np.float32(1), np.bool_(False), mx.array(1)],
        lambda: (x for x in (1.0, 0.0, 1.0)), lambda: map(float, (1, 0, 1)),
    ],
    ids=stable_id,
)  # fmt: skip
def test_any_numbers_in_any_order_that_can_be_walked_through(returned):
    total, _ = compute_rewards([named("f", returned)], PROBLEMS, COMPLETIONS)
    assert total.tolist() == [1.0, 0.0, 1.0]


class Unreadable:
    def __float__(self):
        raise RuntimeError("no number")

    __repr__ = __float__


def failing_generator():
    yield 1.0
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, 2.0], "'f' returned 2 rewards for 3 completions; expected one for each"),
        ([1.0] * 4, "'f' returned 4 rewards for 3 completions"),
        ([], "'f' returned 0 rewards for 3 completions"),
        ([1.0, math.nan, 1.0], "'f' returned nan for completion 1, 'seven'; expected a finite number, or None"),
        ([1.0, 1.0, math.inf], "'f' returned inf for completion 2, ''"),
        ([-math.inf, 1.0, 1.0], "'f' returned -inf for completion 0, '46'"),
        ([1.0, "0.5", 1.0], "'f' returned '0.5' for completion 1"),
        ([1.0, "good", 1.0], "'f' returned 'good' for completion 1"),
        ([1.0, [1.0], 1.0], r"'f' returned \[1.0\] for completion 1"),
        ({"46": 1.0, "seven": 0.0, "": 0.0}, "'f' returned {'46': 1.0, .*}; expected a list of numbers"),
        ({0: 1.0, 1: 0.0, 2: 0.0}, "'f' returned {0: 1.0, .*}; expected a list of numbers"),
        ({1.0, 0.5, 0.0}, "'f' returned {.*}; expected a list of numbers"),
        ([1.0, 1e39, 1.0], r"'f' returned 1e\+39 for completion 1, 'seven'.*The largest that counts is 3.4e\+38"),
        ([-1e39, 1.0, 1.0], r"'f' returned -1e\+39 for completion 0"),
        ([1.0, 10**400, 1.0], r"'f' returned 1000+\.\.\. for completion 1"),
        (lambda: [1.0, 10**5000, 1.0], "'f' returned a int for completion 1"),
        (lambda: [1.0, Unreadable(), 1.0], "'f' returned a Unreadable for completion 1"),
        (lambda: itertools.repeat(1.0), "'f' returned 4 rewards for 3 completions"),
        (lambda: sys.exit(0), "'f' raised SystemExit: 0"),
        ([1.0, 1j, 1.0], "'f' returned 1j for completion 1"),
        ([1.0, object, 1.0], "'f' returned <class 'object'> for completion 1"),
        ("101", "'f' returned '1' for completion 0"),
        (None, "'f' returned None; expected a list of numbers, one a completion"),
        (1.0, "'f' returned 1.0; expected a list of numbers"),
        (np.float64(1.0), "'f' returned .*1.0.*; expected a list of numbers"),
        (lambda: {}["answer"], "'f' raised KeyError: 'answer'"),
        (failing_generator, "'f' raised ZeroDivisionError: division by zero"),
    ],
    ids=stable_id,
)
def test_what_is_no_reward_is_refused_by_name(returned, message):
    with pytest.raises(RewardError, match=f"Reward function {message}"):
        compute_rewards([named("fine", [1.0] * 3), named("f", returned)], PROBLEMS, COMPLETIONS)


def test_the_cause_of_a_failure_is_kept():
    with pytest.raises(RewardError) as caught:
        compute_rewards([named("f", lambda: {}["answer"])], PROBLEMS, COMPLETIONS)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_interrupt_is_no_failing_reward():
    def interrupted(problems, completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_rewards([interrupted], PROBLEMS, COMPLETIONS)


def test_names():
    with pytest.raises(RewardError, match="Two reward functions are called 'f'; expected different names"):
        compute_rewards([named("f", [1.0] * 3), named("f", [2.0] * 3)], PROBLEMS, COMPLETIONS)
    with pytest.raises(RewardError, match="no reward functions; expected at least one"):
        compute_rewards([], PROBLEMS, COMPLETIONS)

    class Judge:
        def __call__(self, problems, completions):
            return [1.0] * 3

    _, by_name = compute_rewards([Judge(), functools.partial(named("f", [1.0] * 3))], PROBLEMS, COMPLETIONS)
    assert list(by_name) == ["Judge", "partial"]


def test_a_long_completion_is_not_quoted_whole():
    with pytest.raises(RewardError) as caught:
        compute_rewards([named("f", ["x"])], ["p"], ["7" * 10_000])
    assert len(str(caught.value)) < 300
