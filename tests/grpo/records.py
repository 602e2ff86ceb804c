"""A batch from the records of a step, for tests of learners."""

import numpy as np

from mlx_grpo_kit.grpo.batch import Batch, Completions, Scores, padded


def batch_of(records, num_generations):
    """The batch of these records, group after group."""
    completions = Completions.from_lists(
        num_generations,
        [each.problem for each in records],
        [each.prompt_ids for each in records],
        [each.completion_ids for each in records],
        [each.completion for each in records],
        entropies=[each.entropies for each in records],
        token_mask=[each.token_mask or [True] * len(each.completion_ids) for each in records],
        finished=[each.finished for each in records],
    )
    names = tuple(records[0].rewards)
    values = np.array([[each.rewards[name] for name in names] for each in records], np.float64)
    advantages = [each.advantage for each in records]
    if any(isinstance(advantage, list) for advantage in advantages):
        advantages = padded(advantages)
    rewards = np.array([each.reward for each in records], np.float64)
    return Batch(completions, Scores(names, values.reshape(len(records), -1), {}), rewards, np.array(advantages))
