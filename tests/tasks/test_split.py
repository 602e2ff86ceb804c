"""The split between training and held-out problems."""

import subprocess
import sys

import pytest

from mlx_grpo_kit.tasks import Addition, Countdown, split_by_hash

KEYS = [f"{i}" for i in range(1000)]


def test_split_is_disjoint_complete_and_a_tenth():
    train, held_out = split_by_hash(KEYS)
    assert len(held_out) == 100
    assert sorted(train + held_out) == sorted(KEYS)


def test_split_ignores_the_order_of_the_keys_and_the_process():
    assert split_by_hash(KEYS) == split_by_hash(reversed(KEYS))
    code = "from mlx_grpo_kit.tasks import Addition; print([p.prompt for p in Addition().held_out(300)])"
    other = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert other == [str([problem.prompt for problem in Addition().held_out(300)])] * 2


def test_held_out_keys_are_spread_over_the_range():
    """A fair sample: with 100 of 0..999 at random, the mean is 499.5 with a standard deviation of 27."""
    _, held_out = split_by_hash(KEYS)
    assert abs(sum(map(int, held_out)) / 100 - 499.5) < 4 * 27


@pytest.mark.parametrize("task", [Addition(), Countdown()], ids=lambda task: task.name)
class TestHeldOut:
    def test_fixed_and_distinct(self, task):
        problems = task.held_out(512)
        assert problems == task.held_out(512)
        assert problems[:100] == task.held_out(100)
        assert len({problem.prompt for problem in problems}) == 512

    def test_asking_for_too_many(self, task):
        available = len(task._held_out)
        assert len(task.held_out(available)) == available
        with pytest.raises(ValueError, match=f"'{task.name}' has only {available} held-out"):
            task.held_out(available + 1)
