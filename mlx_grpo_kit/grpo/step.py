"""One step of GRPO: problems -> completions -> rewards -> advantages -> gradient -> a better policy.

Algorithm 1 of DeepSeekMath (https://arxiv.org/abs/2402.03300). Chapter 18 builds this page by hand.

Each part is an object that is called. `replace(parts, advantages=mine)` exchanges one of them, and
`GRPOTrainer(..., advantages=mine)` does it for a whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.grpo.batch import Batch, Completions, Scores
from mlx_grpo_kit.grpo.metrics import mean_metrics
from mlx_grpo_kit.grpo.policy import Policy

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.learners import Learner
    from mlx_grpo_kit.grpo.optimizer import PolicyOptimizer
    from mlx_grpo_kit.grpo.sampler import Sampler

Rewards = Callable[[Completions], Scores]
Advantages = Callable[[Completions, Scores], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Parts:
    """The parts of a step."""

    sampler: Sampler  # policy, step, attempt -> completions, group after group
    rewards: Rewards  # completions -> scores [N, functions]
    advantages: Advantages  # completions, scores -> rewards [N], advantages [N] or [N, T]
    learner: Learner  # policy, micro-batches -> gradient, metrics
    optimizer: PolicyOptimizer  # policy, gradient, learning rate -> next policy


def grpo_step(
    parts: Parts, policy: Policy, step: int, learning_rate: float, updates: int = 1, redraws: int = 0
) -> tuple[Policy, Batch, dict[str, float]]:
    """Return the next policy, the batch it learned from, and the metrics of learning."""
    batch = draw_batch(parts, policy, step, redraws)
    policy, metrics = learn_from(parts, policy, batch, learning_rate, updates)
    return policy, batch, metrics


def draw_batch(parts: Parts, policy: Policy, step: int, redraws: int = 0) -> Batch:
    """Sample completions, reward them, and compare each with its group.

    A group without any advantage teaches nothing: it is redrawn, up to `redraws` times (DAPO).
    """
    completions = parts.sampler(policy, step)
    scores = parts.rewards(completions)
    batch = Batch(completions, scores, *parts.advantages(completions, scores))
    for attempt in range(1, 1 + redraws):
        idle = batch.groups_without_advantage()
        if not idle:
            break
        fresh = parts.sampler(policy, step, attempt, num_groups=len(idle))
        batch = batch.with_groups(idle, fresh, parts.rewards(fresh), parts.advantages)
    return batch


def learn_from(
    parts: Parts, policy: Policy, batch: Batch, learning_rate: float, updates: int = 1
) -> tuple[Policy, dict[str, float]]:
    """Go through a batch `updates` times, with an update for each of its mini-batches (usually one).

    Return the policy and the means of the updates' metrics.

    Raises TrainingDivergedError, before anything changes, where loss or gradient is not finite.
    """
    history = []
    for micro_batches in updates * parts.learner.prepare(policy, batch):
        gradient, metrics = parts.learner.gradient(policy, micro_batches)
        parts.optimizer.check(gradient, metrics, learning_rate)
        policy = parts.optimizer(policy, gradient, learning_rate)
        history.append(metrics)
    return policy, mean_metrics(history)
