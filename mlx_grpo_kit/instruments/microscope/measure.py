"""The effect of the loss on each token of a batch of completions, computed by the training code.

    before = trainer.params
    step = next(trainer.train(max_steps=trainer.step + 1))
    policies = take_updates(trainer.config, before, step.completions, trainer.args, num_updates=4)
    frozen = freeze(trainer.config, policies, step.completions, trainer.args)
    reading = examine(frozen, trainer.args.loss(4), update=4)
    reading.pushes      # [B, T]: how hard the next update pushes each token, up where positive

The model runs once per policy, in `freeze`. After that you can try any loss, clip range and rewards on the frozen
log-probabilities within milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.batch import Completion, padded
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.gradients import batch_loss
from mlx_grpo_kit.grpo.logps import PaddedBatch, batch_logps, pad_batch
from mlx_grpo_kit.grpo.loss import grpo_loss_and_metrics, token_losses
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.grpo.optimizer import OPTIMIZERS, Gradient
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx

LOW, HIGH = "clip_ratio/low_mean", ("clip_ratio/high_mean", "cispo_clip_ratio")  # the metrics that count clipped tokens


@dataclass(frozen=True)
class FrozenBatch:
    """Completions, with the log-probabilities of their tokens under several policies.

    Attributes:
        num_generations: the number of completions per prompt, in adjacent rows.
        rewards: [B] float64, NaN for a completion that no reward applies to.
        completion_mask: [B, T] bool.
        logps: [B, T] for each policy, 0 where masked. The first policy is the one that sampled.
        entropies: [B, T] for each policy, 0 where masked.
        ref_logps: [B, T], under the reference policy of a KL penalty.
    """

    num_generations: int
    rewards: np.ndarray
    completion_mask: mx.array
    logps: list[mx.array]
    entropies: list[mx.array]
    ref_logps: mx.array


@dataclass(frozen=True)
class Reading:
    """The effect of one loss on a frozen batch under one of its policies. NumPy arrays.

    Attributes:
        loss, metrics: floats from `grpo_loss_and_metrics`.
        means, stds: [B / num_generations], of each group's rewards. The standard deviation divides by n - 1, and is NaN
            if fewer than two completions have a reward.
        advantages: [B].
        log_ratios: [B, T], log-probability now minus that of the policy that sampled.
        clips: [B, T], -1 where the ratio fell too low, +1 where it rose too high, 0 elsewhere. In the clipped losses
            such a token has no policy gradient; in "cispo" its weight is capped.
        weights: [B, T], each token's share of the loss.
        pushes: [B, T], minus the loss's derivative by the token's log-probability: above 0 the next update makes the
            token likelier. A token's contribution to the gradient of the parameters is its push times the gradient of
            its log-probability. An entropy bonus is not included.
    """

    loss: float
    metrics: dict[str, float]
    means: np.ndarray
    stds: np.ndarray
    advantages: np.ndarray
    log_ratios: np.ndarray
    clips: np.ndarray
    weights: np.ndarray
    pushes: np.ndarray


def freeze(
    config: Qwen3Config,
    policies: Sequence[Mapping[str, mx.array]],
    completions: Sequence[Completion],
    args: GRPOConfig,
    ref_params: Mapping[str, mx.array] | None = None,
) -> FrozenBatch:
    """Run each policy over the completions of a step, and keep its log-probability and entropy of every token.

    Args:
        policies: the parameters of each policy, first of the one that sampled the completions, then of later ones.
        completions: the completions of a TrainStep, in which those of a prompt are adjacent.
        args: the run's settings, of which `num_generations` and `temperature` are used.
        ref_params: the policy that a KL penalty pulls toward; None means the first policy.

    Raises ValueError if there is no policy, if the completions do not divide into groups, and like `pad_batch`.
    """
    if not policies:
        raise ValueError("There are no policies; expected at least the one that sampled, such as [trainer.params].")
    if not completions or len(completions) % args.num_generations:
        raise ValueError(
            f"{len(completions)} completions do not divide into groups of num_generations={args.num_generations}; "
            "expected the completions of a whole step, and the settings that they were sampled with."
        )
    batch = _pad(config, completions)
    mask = batch.completion_mask
    scored = [
        batch_logps(config, params, batch, args.temperature) for params in [*policies, *filter(None, [ref_params])]
    ]
    scored = [[mx.where(mask, values, 0.0) for values in each] for each in scored]
    mx.eval(scored)
    logps, entropies = map(list, zip(*scored[: len(policies)], strict=True))
    rewards = np.array([each.reward for each in completions], np.float64)
    return FrozenBatch(args.num_generations, rewards, mask, logps, entropies, scored[-1][0] if ref_params else logps[0])


def examine(
    frozen: FrozenBatch,
    loss_config: GRPOLossConfig | None = None,
    *,
    update: int = -1,
    rewards: Sequence[float | None] | None = None,
    scale_rewards: str = "group",
    advantage_estimator: str = "grpo",
) -> Reading:
    """Compute the effect of the loss on each token of the batch.

    Args:
        loss_config: the loss.
        update: the policy to examine: 0 is the policy that sampled, -1 the last.
        rewards: [B] numbers instead of the batch's own.
        scale_rewards, advantage_estimator: as in `compute_advantages`, which gets one reward per completion here.

    Raises ValueError like `compute_advantages` and `grpo_loss_and_metrics`.
    """
    loss_config = loss_config or GRPOLossConfig()
    rewards = frozen.rewards if rewards is None else np.array(rewards, np.float64)  # None becomes NaN
    if rewards.shape != frozen.rewards.shape:
        raise ValueError(f"There are {rewards.size} rewards; expected {frozen.rewards.size}, one per completion.")
    advantages = compute_advantages(
        rewards, frozen.num_generations, scale_rewards, advantage_estimator=advantage_estimator
    )
    logps, old_logps, mask = frozen.logps[update], frozen.logps[0], frozen.completion_mask
    others = {"ref_logps": frozen.ref_logps, "entropies": frozen.entropies[update]}

    def arguments(logps: mx.array) -> tuple[mx.array, ...]:
        return logps, old_logps, advantages, mask

    def loss_fn(logps: mx.array) -> tuple[mx.array, dict[str, mx.array]]:
        return grpo_loss_and_metrics(loss_config, *arguments(logps), **others)

    (loss, metrics), gradient = mx.value_and_grad(loss_fn)(logps)
    tokens = token_losses(loss_config, *arguments(logps), **others)
    groups = rewards.reshape(-1, frozen.num_generations)
    return Reading(
        loss=loss.item(),
        metrics={name: value.item() for name, value in metrics.items()},
        means=np.array([_mean(group) for group in groups]),
        stds=np.array([_std(group) for group in groups]),
        advantages=np.array(advantages),
        log_ratios=np.array(logps - old_logps),
        clips=_clips(tokens.events, mask),
        weights=np.array(mx.broadcast_to(tokens.weights * mask, mask.shape)),
        pushes=np.array(-gradient),
    )


def take_updates(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    completions: Sequence[Completion],
    args: GRPOConfig,
    num_updates: int,
) -> list[dict[str, mx.array]]:
    """Learn from the same completions several times, and return the policy before and after each of `num_updates`.

    The first is `params`. The others equal those of `GRPOTrainer` with `num_iterations`, a new optimizer and the
    learning rate of `args`. From the second update on, ratios are no longer 1.

    Args:
        params: the policy that sampled the completions, in float32.
        completions: the completions of a TrainStep, with their advantages.
        args: the run's settings, whose `beta` pulls toward `params`.
    """
    batch = _pad(config, completions)
    loss_config = args.loss(args.max_completion_length or batch.completion_ids.shape[1])
    advantages = mx.array([each.advantage for each in completions])
    old_logps, _ = batch_logps(config, params, batch, args.temperature)

    def loss_fn(params: dict[str, mx.array]) -> mx.array:
        return batch_loss(
            config,
            params,
            batch,
            advantages,
            loss_config,
            old_logps=old_logps,
            ref_logps=old_logps if args.beta else None,
            temperature=args.temperature,
        )

    optimizer = OPTIMIZERS[args.optim](params, args.learning_rate)
    policies = [dict(params)]
    for _ in range(num_updates):
        policy = dict(policies[-1])
        grads = mx.grad(loss_fn)(policy)
        scale = min(args.max_grad_norm / (Gradient(grads).norm + 1e-6), 1.0)
        optimizer.update(policy, grads, args.learning_rate, args.weight_decay, scale)
        policies.append(policy)
    return policies


def _pad(config: Qwen3Config, completions: Sequence[Completion]) -> PaddedBatch:
    prompts, answers = [each.prompt_ids for each in completions], [each.completion_ids for each in completions]
    batch = pad_batch(config, prompts, answers)
    written = [getattr(each, "token_mask", None) or [True] * len(each.completion_ids) for each in completions]
    return replace(batch, completion_mask=mx.array(padded(written)))  # the policy did not write tool results


def _clips(events: Mapping[str, mx.array], mask: mx.array) -> np.ndarray:
    clips = np.zeros(mask.shape, np.int8)
    for name, event in events.items():
        if name == LOW or name in HIGH:
            clips += np.array(mx.broadcast_to(event & mask, mask.shape)) * np.int8(-1 if name == LOW else 1)
    return clips


def _mean(rewards: np.ndarray) -> float:
    scored = rewards[~np.isnan(rewards)]
    return float(scored.mean()) if len(scored) else math.nan


def _std(rewards: np.ndarray) -> float:
    scored = rewards[~np.isnan(rewards)]
    return float(scored.std(ddof=1)) if len(scored) > 1 else math.nan
