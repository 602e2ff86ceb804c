"""A reward with a plausible mistake, which a policy finds within a minute.

    task = Addition(reward_funcs=[contains_answer])
    args = GRPOConfig(learning_rate=5e-4, per_device_train_batch_size=64)
    steps = GRPOTrainer(config, params, tokenizer, task, args).train(max_steps=80)

The shipped model learns to add for some twenty steps, and then learns that it need not: the reward keeps rising, and
accuracy, which the task measures separately, falls to 0.
"""

from collections.abc import Sequence

from mlx_grpo_kit.tasks.task import Problem


def contains_answer(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 if the answer is in the completion; but the two sides of `in` are swapped.

    `"46" in "46"` is true either way round, so right answers are rewarded and most wrong ones are not: a test with a
    few of each passes. Yet "4" is in "46", and the empty string is in every answer.
    """
    return [float(completion in problem.answer) for problem, completion in zip(problems, completions, strict=True)]
