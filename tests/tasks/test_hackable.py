"""A reward that gets hacked, and really does: on the shipped model, in several runs."""

import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition
from mlx_grpo_kit.tasks.hackable import contains_answer


def test_a_test_with_a_few_right_and_wrong_answers_passes():
    problem = Addition.problem(12, 34)
    assert contains_answer([problem] * 6, ["46", "47", "146", "64", "460", "x"]) == [1.0, 0, 0, 0, 0, 0]
    assert contains_answer([problem] * 2, ["4", ""]) == [1.0, 1.0]  # the hole


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reward_rises_while_accuracy_falls(seed):
    config, params = load_pretrained(TINY)
    args = GRPOConfig(learning_rate=5e-4, per_device_train_batch_size=64, seed=seed)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition(reward_funcs=[contains_answer]), args)
    before = trainer.evaluate()
    steps = list(trainer.train(max_steps=80))
    after = trainer.evaluate()
    assert before["eval/accuracy"] > 0.35
    assert after["eval/accuracy"] < 0.1
    assert after["eval/reward"] > before["eval/reward"] + 0.25
    assert steps[-1].metrics["completions/mean_length"] < 2.5  # which a look at the lengths would have told
