"""What is said of short real runs: of the sick what they suffer from, of healthy ones nothing."""

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, diagnose
from mlx_grpo_kit.grpo.recipe import TINY_ARGS
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runs.diagnosis import findings
from mlx_grpo_kit.tasks import Addition
from mlx_grpo_kit.tasks.addition import correct


def is_number(problems, completions):
    return [0.2 * completion.isdigit() for completion in completions]


def always_one(problems, completions):
    return [1.0] * len(completions)


def run(steps, rewards=None, **args):
    config, params = load_pretrained(TINY)
    args = GRPOConfig(**TINY_ARGS | {"lr_scheduler_type": "constant", "per_device_train_batch_size": 64} | args)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition(reward_funcs=rewards), args)
    return list(trainer.train(steps))


def test_nothing_is_said_of_the_kits_recipe():
    steps = run(24)
    assert [words for count in range(1, 25) for words in diagnose(steps[:count])] == []


def test_one_token_is_too_short():
    (words,) = diagnose(run(12, max_completion_length=1))
    assert "cut off at 1 token," in words


def test_a_reward_that_does_not_look():
    (words,) = diagnose(run(21, [always_one]))
    assert "since step 1 (mean 1)" in words


def test_exact_and_format_at_a_rate_that_is_far_too_high():
    """The policy forgets how to add and keeps the 0.2 for any number; how it looks when it has depends on luck."""
    named = {finding.name for finding in findings(run(25, [correct, is_number], learning_rate=1e-2))}
    assert named & {"reward_fell", "one_full_one_empty", "tied", "collapse"}
