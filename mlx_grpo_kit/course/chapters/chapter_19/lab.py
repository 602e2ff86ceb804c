"""One frozen batch of completions, and the effect of every variant on its tokens and on the whole model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import VARIANTS, Completion, GRPOConfig, GRPOTrainer, compute_advantages, grpo_loss_and_metrics
from mlx_grpo_kit.grpo.advantages import soft_overlong_punishment
from mlx_grpo_kit.grpo.gradients import batch_loss
from mlx_grpo_kit.grpo.logps import PaddedBatch, pad_batch
from mlx_grpo_kit.instruments.microscope.measure import FrozenBatch, freeze, take_updates
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Task

GROUP = 8
IN_THE_LAB = (
    "dapo", "grpo", "dr_grpo", "batch scaling", "overlong penalty", "top entropy", "two-sided clip", "gspo", "luspo",
    "cispo", "sapo", "vespo", "reinforce", "rloo",
)  # fmt: skip
"Variants that treat a given batch differently."


@dataclass(frozen=True)
class Lab:
    """A frozen batch.

    Attributes:
        config: the configuration of the model.
        policies: the policy that sampled, and the policy after each further update from this batch.
        completions: the completions with their rewards, one prompt after the other.
        tokens: the tokens of every completion, as texts.
        batch: the completions as arrays.
        frozen: the log-probabilities and entropies of every token under each policy.
        longest: the largest number of tokens allowed in a completion.
    """

    config: Qwen3Config
    policies: Sequence[Mapping[str, mx.array]]
    completions: Sequence[Completion]
    tokens: list[list[str]]
    batch: PaddedBatch
    frozen: FrozenBatch
    longest: int

    def arguments(self, name: str) -> tuple[Any, mx.array]:
        """The loss of a variant, and its advantages for this batch [B]."""
        args = GRPOConfig(num_generations=GROUP, **VARIANTS[name].settings)
        rewards = self.frozen.rewards
        if args.soft_punish_cache:
            lengths = [len(each) for each in self.tokens]
            rewards = rewards + soft_overlong_punishment(lengths, self.longest, args.soft_punish_cache)
        advantages = compute_advantages(
            rewards, GROUP, args.scale_rewards, advantage_estimator=args.advantage_estimator
        )
        return args.loss(self.longest), advantages

    def pushes(self, name: str, update: int = 0) -> np.ndarray:
        """[B, T]: how hard a variant pushes each token, under the policy after `update` updates; positive is up.

        It is minus the derivative of the loss with respect to the token's log-probability.
        """
        config, advantages = self.arguments(name)
        frozen = self.frozen

        def loss_fn(logps: mx.array) -> mx.array:
            arrays = frozen.logps[0], advantages, frozen.completion_mask
            entropies = frozen.entropies[update]
            return grpo_loss_and_metrics(config, logps, *arrays, ref_logps=frozen.ref_logps, entropies=entropies)[0]

        return -np.array(mx.grad(loss_fn)(frozen.logps[update]))

    def gradient(self, name: str, update: int = 0) -> np.ndarray:
        """The gradient of the variant's loss for all parameters of the policy after `update` updates, as one vector."""
        config, advantages = self.arguments(name)

        def loss_fn(params: dict[str, mx.array]) -> mx.array:
            old, ref = self.frozen.logps[0], self.frozen.ref_logps
            return batch_loss(self.config, params, self.batch, advantages, config, old_logps=old, ref_logps=ref)

        grads = mx.grad(loss_fn)(dict(self.policies[update]))
        return np.concatenate([np.array(grads[name]).ravel() for name in sorted(grads)])

    def ratios(self, update: int) -> np.ndarray:
        """The ratio of every sampled token, all completions in one flat array."""
        frozen = self.frozen
        ratios = np.exp(np.array(frozen.logps[update] - frozen.logps[0]))
        return ratios[np.array(frozen.completion_mask)]


def frozen_lab(
    folder: str | os.PathLike = TINY, prompts: int = 8, updates: int = 8, seed: int = 3, task: Task | None = None
) -> Lab:
    """Sample one batch of sums with a model, and make `updates` updates from it, all with the same completions.

    The updates have the learning rate of the default run, so the ratios are those that it would see. The default task
    is `Addition()`.
    """
    config, params = load_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    args = GRPOConfig(num_generations=GROUP, per_device_train_batch_size=prompts * GROUP, seed=seed, learning_rate=5e-4)
    trainer = GRPOTrainer(config, params, tokenizer, task or Addition(), args)
    before = trainer.params
    [step] = trainer.train(1)
    completions = step.completions
    policies = take_updates(config, before, completions, args, updates)
    batch = pad_batch(config, [each.prompt_ids for each in completions], [each.completion_ids for each in completions])
    return Lab(
        config=config,
        policies=policies,
        completions=completions,
        tokens=[[_shown(tokenizer, token) for token in each.completion_ids] for each in completions],
        batch=batch,
        frozen=freeze(config, policies, completions, args),
        longest=trainer.max_completion_length,
    )


def cosines(gradients: Sequence[np.ndarray]) -> np.ndarray:
    """[N, N]: the cosine between each pair of gradients; 1 is the same direction, 0 a right angle or no gradient."""
    unit = [gradient / max(float(np.linalg.norm(gradient)), 1e-30) for gradient in gradients]
    return np.array([[a @ b for a in unit] for b in unit])


def _shown(tokenizer: Any, token: int) -> str:
    return "end" if token in tokenizer.eos_token_ids else tokenizer.decode([token])


__all__ = ["GROUP", "IN_THE_LAB", "Lab", "cosines", "frozen_lab"]
