import math

import numpy as np
import pytest

from mlx_grpo_kit.grpo import compute_advantages
from mlx_grpo_kit.runtime import mx
from tests.every import every

NAN = math.nan


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("num_generations", [2, 3, 8])
@pytest.mark.parametrize("unscored", [0.0, 0.3])
def test_equal_to_trl(trl, scale_rewards, num_generations, unscored):
    rng = np.random.default_rng(num_generations)
    for prompts in (1, 2, 5):
        for scale in (1e-3, 1.0, 100.0):
            rewards = rng.normal(size=prompts * num_generations, scale=scale).astype(np.float32)
            rewards[rng.random(rewards.size) < unscored] = NAN
            expected = trl.advantages(rewards.tolist(), num_generations, scale_rewards)
            actual = np.array(compute_advantages(rewards, num_generations, scale_rewards))
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5 * max(np.abs(expected).max(), 1e-6))


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_zero_one_rewards_equal_trl(trl, scale_rewards):
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    expected = trl.advantages(rewards, 4, scale_rewards)
    np.testing.assert_allclose(np.array(compute_advantages(rewards, 4, scale_rewards)), expected, rtol=1e-6, atol=1e-7)


@every("scale_rewards", ["group", "batch", "none"])
@every("reward", [0.1, 0.7, -1 / 3, 1e-6, 12345.678, 1e20])
@every("num_generations", [3, 7, 8])
def test_equal_rewards_give_exactly_zero(scale_rewards, reward, num_generations):
    equal, different = [reward] * num_generations, list(range(num_generations))
    advantages = compute_advantages(equal + different, num_generations, scale_rewards).tolist()
    assert advantages[:num_generations] == [0.0] * num_generations
    assert any(advantages[num_generations:])


def test_equal_rewards_give_exactly_zero_where_float32_sums_would_not():
    reward = np.float32(0.7)
    assert np.full(7, reward).sum() / np.float32(7) != reward
    assert compute_advantages([0.7] * 7, 7).tolist() == [0.0] * 7


def test_rewards_that_differ_only_in_how_they_were_added_up_are_equal():
    assert 0.1 + 0.2 != 0.3
    assert compute_advantages([0.1 + 0.2, 0.3, 0.3, 0.3], 4).tolist() == [0, 0, 0, 0]


def test_unscored_completions_are_left_out_of_mean_and_deviation():
    first, second, third = compute_advantages([1, 2, 6], 3).tolist()
    for unscored in (NAN, None):
        advantages = compute_advantages([1, unscored, 2, 6, unscored, unscored], 6).tolist()
        assert advantages == pytest.approx([first, 0, second, third, 0, 0])


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("rewards", [[NAN, NAN, NAN], [5.0, NAN, NAN], [NAN, NAN, NAN, NAN, 2.0, NAN]])
@pytest.mark.filterwarnings("error")
def test_one_scored_completion_or_none_gives_zero(scale_rewards, rewards):
    assert compute_advantages(rewards, 3, scale_rewards).tolist() == [0.0] * len(rewards)


def test_each_group_sums_to_zero_and_shifting_a_group_changes_nothing():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(5, 8))
    for scale_rewards in ("group", "batch", "none"):
        advantages = np.array(compute_advantages(rewards.reshape(-1), 8, scale_rewards)).reshape(5, 8)
        np.testing.assert_allclose(advantages.sum(axis=1), 0, atol=1e-5)
    for scale_rewards in ("group", "none"):
        plain = np.array(compute_advantages(rewards.reshape(-1), 8, scale_rewards))
        shifted = np.array(compute_advantages((rewards + np.arange(5)[:, None]).reshape(-1), 8, scale_rewards))
        np.testing.assert_allclose(shifted, plain, atol=1e-5)


def test_lists_numpy_and_mlx_arrays_of_any_number_type():
    values = [1, 0, 2, 4]
    expected = compute_advantages(values, 2).tolist()
    assert isinstance(compute_advantages(values, 2), mx.array)
    assert compute_advantages(values, 2).dtype == mx.float32
    for rewards in (
        tuple(values), np.array(values), np.array(values, np.float16), mx.array(values),
        mx.array(values, dtype=mx.float32), mx.array(values, dtype=mx.bfloat16),
    ):  # fmt: skip
        assert compute_advantages(rewards, 2).tolist() == expected
    assert compute_advantages([True, False], 2).tolist() == compute_advantages([1, 0], 2).tolist()


def test_true_and_false_mean_what_they_mean_in_trl():
    rewards = [1, 3, 4, 4.5]
    assert compute_advantages(rewards, 2, True).tolist() == compute_advantages(rewards, 2, "group").tolist()
    assert compute_advantages(rewards, 2, False).tolist() == compute_advantages(rewards, 2, "none").tolist()


@pytest.mark.parametrize(
    ("rewards", "num_generations", "scale_rewards", "message"),
    [
        ([1, 2, 3], 2, "group", r"3 rewards do not divide into groups of num_generations=2"),
        ([1, 2], 4, "group", r"2 rewards do not divide into groups of num_generations=4"),
        ([1, 2], 1, "group", r"num_generations is 1; expected a whole number of at least 2"),
        ([1, 2], 0, "batch", r"num_generations is 0; expected a whole number of at least 2"),
        ([1, 2], 2.0, "group", r"num_generations is 2.0; expected a whole number of at least 2"),
        ([1, 2], "2", "group", r"num_generations is '2'; expected a whole number of at least 2"),
        (["1", "0"], 2, "group", r"rewards\[0\] is .*'1'\)?; expected a number, or None where no reward"),
        ([None, "0"], 2, "group", r"rewards\[1\] is '0'; expected a number, or None"),
        ([1, {}], 2, "group", r"rewards\[1\] is \{\}; expected a number, or None"),
        ([], 2, "group", r"rewards has shape \(0,\); expected \(B,\) with B > 0"),
        ([[1, 2], [3, 4]], 2, "group", r"rewards has shape \(2, 2\); expected \(B,\)"),
        (5.0, 2, "group", r"rewards has shape \(\); expected \(B,\)"),
        ([1, math.inf], 2, "group", r"rewards\[1\] is inf; expected a finite number"),
        ([1, 1e39], 2, "group", r"rewards\[1\] is inf; expected a finite number"),
        ([1, 2, -math.inf, 1], 2, "none", r"rewards\[2\] is -inf"),
        ([1, 2], 2, "std", r"scale_rewards is 'std'; expected one of 'group', 'batch', 'none'"),
    ],
)
def test_errors_name_the_argument_and_the_way_out(rewards, num_generations, scale_rewards, message):
    with pytest.raises(ValueError, match=message):
        compute_advantages(rewards, num_generations, scale_rewards)
