"""The policy's accuracy and reward on problems that training never sees."""

from __future__ import annotations

import numpy as np

from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.grpo.advantages import weighted_sum
from mlx_grpo_kit.grpo.metrics import mean
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.rewards import TaskRewards
from mlx_grpo_kit.grpo.sampler import PolicySampler
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems
from mlx_grpo_kit.tasks.task import TaskError


def evaluate(
    policy: Policy, sampler: PolicySampler, rewards: TaskRewards, num_problems: int, seed: int
) -> dict[str, float]:
    """`GRPOTrainer.evaluate`, whichever sampler trains."""
    task, world, results = sampler.task, sampler.world, np.zeros([0, 2])
    own = world.part(num_problems)
    with world.together(TaskError, ValueError):
        problems = held_out_problems(task, num_problems)[own.start : own.stop]
        if problems:
            sampling = SamplingConfig(sampler.max_completion_length)
            completions = sampler.complete(
                policy, problems, sampler.encode(problems), sampling, seed, own.start, num_problems
            )
            sums = weighted_sum(rewards.of_functions(completions).values, rewards.args.reward_weights)
            results = np.column_stack([are_correct(task, problems, completions.texts), sums])
    accuracies, sums = world.concatenate(results).T
    return {"eval/accuracy": mean(accuracies), "eval/reward": mean(sums)}
