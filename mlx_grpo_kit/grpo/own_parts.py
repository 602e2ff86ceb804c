"""Your own parts of a step in place of the kit's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from mlx_grpo_kit.grpo.advantages import GroupAdvantages
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.learners import Learner, learner_class
from mlx_grpo_kit.grpo.objectives import LossType
from mlx_grpo_kit.grpo.optimizer import PolicyOptimizer
from mlx_grpo_kit.grpo.part_checks import checked_advantages, checked_learner, checked_loss, checked_sampler
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.rewards import TaskRewards
from mlx_grpo_kit.grpo.sampler import PolicySampler, Sampler
from mlx_grpo_kit.grpo.step import Advantages, Parts


@dataclass(frozen=True)
class OwnParts:
    """The arguments of `GRPOTrainer` that replace a part; None keeps the kit's."""

    sampler: Sampler | None = None
    advantages: Advantages | None = None
    loss: LossType | None = None
    learner: type[Learner] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts that are not the kit's."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) is not None)

    def check(self, folder: str | os.PathLike, saved: Sequence[str]) -> None:
        """Raise ValueError unless these are the parts that the run in a checkpoint had."""
        for name in sorted({*self.names} ^ {*saved}):
            words = f"with a custom {name}. Pass it: resume(..., {name}=...)."
            if name not in saved:
                words = f"without a custom {name}. Leave {name} out."
            raise ValueError(f"{folder} was trained {words}")

    def assemble(
        self,
        policy: Policy,
        sampler: PolicySampler,
        reward_funcs: Sequence[Callable],
        optimizer: PolicyOptimizer,
        args: GRPOConfig,
        warned_of: set[str],
    ) -> Parts:
        """The parts of a step: these, and the kit's parts for the rest."""
        length, world = sampler.max_completion_length, sampler.world
        loss = args.loss(length)
        if self.loss is not None:
            loss = checked_loss(self.loss, loss)
        learner = learner_class(args, policy.dtype)
        if self.learner is not None:
            learner = checked_learner(self.learner)
        return Parts(
            sampler=checked_sampler(self.sampler, policy.config, args, length) if self.sampler else sampler,
            rewards=TaskRewards(reward_funcs, args, length, world, warned_of),
            advantages=checked_advantages(self.advantages) if self.advantages else GroupAdvantages(args),
            learner=learner(policy.config, args, loss, world),
            optimizer=optimizer,
        )
