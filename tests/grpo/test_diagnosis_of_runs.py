"""Short real runs of the tiny model: the first line about a sick one names the cause, a healthy one gets no line."""

import math

import pytest

from mlx_grpo_kit.assets import TINY, TINY_TOOLS
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, diagnose
from mlx_grpo_kit.grpo.recipe import TINY_ARGS
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runs.diagnosis import Monitor, findings
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.tasks import Addition, Calculator, Countdown
from mlx_grpo_kit.tasks.addition import correct


def is_number(problems, completions):
    return [0.2 * completion.isdigit() for completion in completions]


def always_one(problems, completions):
    return [1.0] * len(completions)


def shortness(problems, completions):
    return [1 / (1 + len(completion)) for completion in completions]


def contains_answer(problems, completions):
    """The two sides of `in` are swapped: right answers are paid, and so are "4" for 46 and an empty text."""
    return [float(completion in problem.answer) for problem, completion in zip(problems, completions, strict=True)]


def fails_for_most(problems, completions):
    """Right or wrong for two digits, not a number for the rest."""
    scores = zip(correct(problems, completions), completions, strict=True)
    return [score if len(completion) == 2 else math.nan for score, completion in scores]


def run(steps, rewards=None, task=None, model=TINY, change_at=None, changes=None, seed=0, **args):
    """The steps of a run; `changes` are the settings that change after step `change_at`."""
    config, params = load_pretrained(model)
    settings = {"lr_scheduler_type": "constant", "per_device_train_batch_size": 64, "seed": seed}
    task = task or Addition(reward_funcs=rewards)
    trainer = GRPOTrainer(config, params, load_tokenizer(model), task, GRPOConfig(**TINY_ARGS | settings | args))
    made = list(trainer.train(change_at or steps))
    if changes:
        trainer.change(**changes)
        made += trainer.train(steps)
    return made


SICK = {  # name -> (the run, the symptom, words of the first line)
    "a learning rate far too high": (
        dict(steps=21, learning_rate=2e-2),
        "reward_fell",
        ["The mean reward was", "in step 1 and is", "lower learning_rate (now 0.02"],
    ),
    "a learning rate far too high, with a reward for any number": (
        dict(steps=21, rewards=[correct, is_number], learning_rate=1e-2),
        "reward_fell",
        ["lower learning_rate (now 0.01"],
    ),
    "a learning rate raised in the middle": (
        dict(steps=34, change_at=20, changes={"learning_rate": 5e-2}),
        "changed",
        ["Before step 21 you changed learning_rate from 0.0005 to 0.05", "Rewind to step 20"],
    ),
    "no room for an answer": (
        dict(steps=12, max_completion_length=2),
        "truncated",
        ["cut off at 2 tokens since step 1", "Raise max_completion_length"],
    ),
    "a reward for short texts": (
        dict(steps=36, rewards=[shortness]),
        "paid_for_something_else",
        ["The reward pays for something other than right answers"],
    ),
    "a reward with the two sides of `in` swapped": (
        dict(steps=80, rewards=[contains_answer]),
        "paid_for_something_else",
        ["The reward pays for something other than right answers", "correct the reward"],
    ),
    "a reward that does not look": (
        dict(steps=21, rewards=[always_one]),
        "tied",
        ["since step 1 (mean 1)", "the same reward as the wrong ones", "the reward does not look at the answer"],
    ),
    "a reward that fails": (
        dict(steps=12, rewards=[fails_for_most], on_reward_error="skip"),
        "reward_fails",
        ["Reward 'fails_for_most' has failed for", "since step 1"],
    ),
    "a temperature near 0": (
        dict(steps=12, temperature=0.01),
        "no_exploration",
        ["In 100% of the groups all completions are the same text", "Raise temperature"],
    ),
    "the likeliest token only": (
        dict(steps=12, top_k=1),
        "no_exploration",
        ["Sampling takes the likeliest token, although the policy itself is not certain", "Loosen top_k"],
    ),
    "a temperature far too high": (
        dict(steps=12, temperature=5.0),
        "too_random",
        ["Entropy has been high since step 1", "Lower temperature"],
    ),
    "a penalty that holds the policy": (
        dict(steps=42, beta=10.0),
        "held_still",
        ["The KL penalty holds the policy at its reference", "Lower beta"],
    ),
    "a learning rate far too low": (
        dict(steps=60, learning_rate=1e-6),
        "nothing_moves",
        ["Nothing has moved in 60 steps", "Raise learning_rate (now 1e-06"],
    ),
    "a clip range that is too narrow": (
        dict(steps=12, num_iterations=4, epsilon=1e-4),
        "clipped_away",
        ["of the tokens are clipped", "the range is too narrow (epsilon"],
    ),
    "an entropy bonus that outweighs the reward": (
        dict(steps=30, entropy_coef=1.0),
        "bonus_pays",
        ["the entropy bonus pays more", "Lower entropy_coef (now 1;"],
    ),
    "problems that are too hard": (
        dict(steps=21, task=Addition(max_operand=999)),
        "tied",
        ["the problems are too hard for this policy"],
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_the_first_line_about_a_sick_run_names_the_cause(name):
    settings, symptom, words = SICK[name]
    steps = run(**settings)
    first = findings(steps)[0]
    assert (first.name, [part for part in words if part not in first.words]) == (symptom, [])
    # A dashboard's record keeps some groups of a step, and a display keeps the completions of a few steps.
    record, monitor = RunRecord(), Monitor()
    for step in steps:
        record.add(step)
        monitor.add(step.step, step.metrics, step.completions, step.changes)
    assert findings(record.steps)[0].name == monitor.findings()[0].name == symptom


HEALTHY = {
    "the kit's recipe": dict(steps=40),
    "few completions": dict(steps=64, per_device_train_batch_size=32, seed=1),
    "a fifth of the learning rate": dict(steps=64, learning_rate=1e-4),
    "a penalty": dict(steps=42, beta=0.04),
    "two updates per batch": dict(steps=24, num_iterations=2),
    "a reward for any number beside the right one": dict(steps=24, rewards=[correct, is_number]),
    "countdown": dict(steps=24, task=Countdown()),
    "a calculator": dict(steps=11, task=Calculator(), model=TINY_TOOLS, per_device_train_batch_size=16),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_a_healthy_run_at_any_of_its_steps(name):
    steps = run(**HEALTHY[name])
    assert [words for count in range(1, len(steps) + 1) for words in diagnose(steps[:count])] == []
