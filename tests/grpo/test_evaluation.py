"""Held-out evaluation: pass@k and the interval against their definitions, and samples of the trainer's own policy."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.evaluation import Evaluation, pass_at
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition, Countdown


def evaluation(correct):
    correct = np.array(correct, bool)
    nothing = np.zeros([*correct.shape, 0])
    return Evaluation(correct, correct * 1.0, nothing, (), np.ones(correct.shape, int), np.ones(correct.shape, bool))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_mean_over_all_choices_of_k(k):
    correct = np.random.default_rng(k).random([6, 5]) < 0.4
    chosen = [any(row[i] for i in which) for row in correct for which in itertools.combinations(range(5), k)]
    assert pass_at(k, correct) == pytest.approx(np.mean(chosen), abs=1e-12)


@pytest.mark.parametrize(
    ("k", "shape", "message"),
    [(8, (3, 4), "k is 8, and each problem has 4 completions"), (5, (3, 4), "k is 5"), (0, (3, 4), "k is 0"),
     (1.5, (3, 4), "k is 1.5"), (1, (3, 0), r"correct has shape \(3, 0\)"), (1, (4,), r"correct has shape \(4,\)")],
)  # fmt: skip
def test_more_completions_than_there_are_have_no_pass_rate(k, shape, message):
    with pytest.raises(ValueError, match=message):
        pass_at(k, np.ones(shape, bool))


@pytest.mark.parametrize(("right", "n"), [(0, 20), (1, 1), (7, 20), (256, 256), (100, 256)])
def test_the_interval_of_single_completions_is_wilsons(right, n):
    correct = np.arange(n)[:, None] < right
    theirs = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert evaluation(correct).accuracy_interval == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_the_interval_covers_the_accuracy_in_about_95_of_100_cases():
    rng = np.random.default_rng(0)
    for alike in (0.3, 3.0, 100.0):  # completions of a problem are nearly all alike, somewhat, hardly
        hits = 0
        for _ in range(400):
            chances = rng.beta(0.4 * alike, 0.6 * alike, 100)
            low, high = evaluation(rng.random([100, 8]) < chances[:, None]).accuracy_interval
            hits += low <= 0.4 <= high
        assert 365 <= hits <= 395, (alike, hits)


def test_more_completions_of_a_problem_narrow_the_interval_only_where_they_differ():
    differing = evaluation(np.tile([True, False], [50, 4])).accuracy_interval
    alike = evaluation(np.repeat([[True], [False]], 25, axis=0).repeat(8, axis=1)).accuracy_interval
    assert np.ptp(alike) == pytest.approx(np.ptp(evaluation(np.arange(50)[:, None] < 25).accuracy_interval), rel=0.05)
    assert np.ptp(differing) <= np.ptp(alike)


@pytest.fixture(scope="module")
def trainer():
    config, params = load_pretrained(TINY)
    return GRPOTrainer(config, params, load_tokenizer(TINY), Countdown(), GRPOConfig())


def test_metrics_of_several_samples_and_several_rewards(trainer):
    found = trainer.evaluate(24, num_samples=5)
    expected = ["eval/accuracy", "eval/reward", "eval/rewards/correct", "eval/rewards/uses_numbers"]
    assert [*found] == [*expected, "eval/pass@2", "eval/pass@4", "eval/pass@5"]
    assert found["eval/accuracy"] <= found["eval/pass@2"] <= found["eval/pass@4"] <= found["eval/pass@5"]
    assert found["eval/reward"] == pytest.approx(found["eval/rewards/correct"] + found["eval/rewards/uses_numbers"])
    assert [*trainer.evaluate(24)] == expected
    assert [*trainer.evaluate(24, num_samples=2)][4:] == ["eval/pass@2"]


def test_greedy_completions_do_not_depend_on_the_seed_and_colder_ones_are_surer():
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition(), GRPOConfig())
    assert trainer.evaluate(64, 0, temperature=0) == trainer.evaluate(64, 1, temperature=0)
    warm, cold = (trainer.evaluate(128, temperature=each, num_samples=4)["eval/accuracy"] for each in (1.5, 0.3))
    assert cold > warm + 0.05


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"num_samples": 0}, "num_samples is 0; expected"), ({"num_samples": 1.5}, "num_samples is 1.5"),
        *(({"num_problems": number}, "num_problems is .*; expected a whole number of") for number in (0, -1, 2.0, "8")),
        ({"num_samples": 10**8}, "400,000,000 completions; expected"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 0, "num_samples": 2}, "only one completion per problem"),
    ],
)  # fmt: skip
def test_numbers_out_of_range(trainer, numbers, words):
    with pytest.raises(ValueError, match=words):
        trainer.evaluate(**{"num_problems": 4} | numbers)
