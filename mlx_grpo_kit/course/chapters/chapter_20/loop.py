"""GRPO in nine functions, for chapter 20: each is a few lines that you can replace by sick ones.

The step is the kit's own (`mlx_grpo_kit/grpo/step.py`, which chapter 18 builds). This file makes its parts of the nine
functions. The learner measures what most programs do not: how far the scorer's log-probability of each token is from
the one that the sampler stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.generation.padding import pad
from mlx_grpo_kit.grpo.batch import Batch, Completions, Scores
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.metrics import batch_metrics
from mlx_grpo_kit.grpo.optimizer import Gradient
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.rewards import TaskRewards
from mlx_grpo_kit.grpo.sampler import PolicySampler
from mlx_grpo_kit.grpo.state import TrainStep
from mlx_grpo_kit.grpo.step import Parts, grpo_step
from mlx_grpo_kit.qwen3 import qwen3_forward
from mlx_grpo_kit.tasks import Addition, Problem

GROUP, PROMPTS, MICRO_BATCHES = 8, 16, 4
LEARNING_RATE, MAX_NORM, TEMPERATURE = 5e-4, 1.0, 1.2
EPSILON, BETA = 0.2, 0.02
NO_LOGP = -1e4  # where there is no token; no part may compute with it


def num_new_tokens(task):
    """The largest number of tokens in a completion."""
    return task.max_completion_length


def reward(problem, text):
    """The reward of a completion."""
    return float(text == problem.answer)


def advantages(rewards, group):
    """Rewards [B], one prompt after the other -> advantages [B]."""
    groups = rewards.reshape(-1, group)
    centred = groups - groups.mean(axis=1, keepdims=True)
    return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)


def completion_mask(ids, end):
    """Completions [B, T], padded with the end token -> True for the tokens that the policy chose."""
    is_end = (ids == end).astype(mx.int32)
    ended_before = mx.cumsum(is_end, axis=1) - is_end
    return ended_before == 0


def score(config, params, prompts, completions, temperature):
    """Log-probability [B, T] of every token of `completions` [B, T], after `prompts`, B lists of token ids."""
    prompt_ids, prompt_mask = pad(prompts, "left")
    ids = mx.concatenate([mx.array(prompt_ids), completions], axis=1)
    mask = mx.concatenate([mx.array(prompt_mask), mx.ones(completions.shape, mx.int32)], axis=1)
    logits = qwen3_forward(config, params, ids, attention_mask=mask)
    start = prompt_ids.shape[1]
    logits = logits[:, start - 1 : -1] / temperature
    logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0]


def policy_loss(logps, old_logps, ref_logps, advantages, mask):
    """The clipped GRPO loss with its KL penalty, a mean over the tokens of `mask`. All [B, T]; advantages [B]."""
    log_ratio = mx.where(mask, logps - old_logps, 0.0)
    ratio = mx.exp(log_ratio)
    clipped = mx.clip(ratio, 1 - EPSILON, 1 + EPSILON)
    gain = mx.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    behind = mx.where(mask, ref_logps - logps, 0.0)
    kl = mx.exp(behind) - behind - 1
    return -mx.where(mask, gain - BETA * kl, 0.0).sum() / mask.sum()


def loss_and_gradient(params, score_with, loss_of):
    """The loss and its gradient; `score_with(params)` gives log-probabilities, `loss_of(logps)` the loss."""

    def loss_fn(params):
        logps = score_with(params)
        return loss_of(logps)

    return mx.value_and_grad(loss_fn)(params)


def accumulate(grads, num_tokens):
    """Gradients of the micro-batches' mean losses, and their numbers of tokens -> the gradient of the whole batch."""
    total = sum(num_tokens)
    return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}


def keep_reference(params):
    """The policy that the KL penalty pulls towards: the policy at the start of training."""
    return dict(params)


@dataclass(frozen=True)
class Functions:
    """The nine functions of the loop; `dataclasses.replace(Functions(), score=mine)` replaces one."""

    num_new_tokens: Callable[..., Any] = num_new_tokens
    reward: Callable[..., Any] = reward
    advantages: Callable[..., Any] = advantages
    completion_mask: Callable[..., Any] = completion_mask
    score: Callable[..., Any] = score
    policy_loss: Callable[..., Any] = policy_loss
    loss_and_gradient: Callable[..., Any] = loss_and_gradient
    accumulate: Callable[..., Any] = accumulate
    keep_reference: Callable[..., Any] = keep_reference


def train(
    config,
    params,
    tokenizer,
    max_steps: int,
    functions: Functions = Functions(),
    seed: int = 0,
    *,
    task: Any = None,
    num_prompts: int = PROMPTS,
    optimizer: optim.Optimizer | None = None,
) -> Iterator[TrainStep]:
    """Train with these functions; yield the kit's record of each step.

    The default task is `Addition()`, and the default optimizer `adamw()`. A step draws GROUP completions for each of
    `num_prompts` problems. The caller's `params` are not changed. A step whose gradient is not finite is the last.
    """
    task, params = task or Addition(), dict(params)
    args = GRPOConfig(
        num_generations=GROUP,
        per_device_train_batch_size=num_prompts * GROUP // MICRO_BATCHES,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_completion_length=functions.num_new_tokens(task),
        temperature=TEMPERATURE,
        seed=seed,
    )

    def reward(problems, completions):
        return [*map(functions.reward, problems, completions)]

    def advantages(completions: Completions, scores: Scores):
        rewards = scores.values[:, 0]
        return rewards, functions.advantages(rewards, completions.num_generations)

    policy = Policy(config, params, reference=functions.keep_reference(params))
    parts = Parts(
        sampler=MuseumSampler(tokenizer, task, args),
        rewards=TaskRewards([reward], args, args.max_completion_length),
        advantages=advantages,
        learner=MuseumLearner(functions, min(tokenizer.eos_token_ids)),
        optimizer=MuseumOptimizer(optimizer or adamw()),
    )
    for step in range(max_steps):
        policy, batch, learned = grpo_step(parts, policy, step, LEARNING_RATE)
        right = map(task.is_correct, batch.completions.problems, batch.completions.texts)
        entropies = [value for row in batch.completions.entropies for value in row]
        metrics = {"accuracy": float(np.mean([*right])), "entropy": float(np.mean(entropies))}
        yield TrainStep(step + 1, batch_metrics(batch) | metrics | learned, batch.records())
        if not math.isfinite(learned["grad_norm"]):
            return


class MuseumSampler(PolicySampler):
    """The kit's sampler, with problems from one stream of random numbers: the stored runs were drawn that way."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rng = np.random.default_rng(self.args.seed)

    def draw(
        self, step: int, attempt: int = 0, num_groups: int | None = None
    ) -> tuple[list[Problem], list[list[int]], int]:
        """The next problems of the task, one per completion, their prompts' tokens, and the seed to sample with."""
        drawn = self.task.sample(self.rng, self.args.num_groups)
        problems = [problem for problem in drawn for _ in range(self.args.num_generations)]
        return problems, self.encode(problems), self.args.seed * 100_000 + step + 1


@dataclass(frozen=True)
class MuseumLearner:
    """The learner part of a step, made of the functions for mask, scores, loss and gradient.

    `end` is the id of the end token, with which completions are padded.
    """

    functions: Functions
    end: int

    def prepare(self, policy: Policy, batch: Batch) -> list[list[SimpleNamespace]]:
        """The micro-batches of the step's only update, with their masks and the reference's log-probabilities."""
        these, found = batch.completions, []
        ids, old = _padded(these.completion_ids, self.end), _padded(these.logps, NO_LOGP)
        for rows in np.split(np.arange(len(these)), MICRO_BATCHES):
            micro = SimpleNamespace(
                prompts=[these.prompt_ids[row] for row in rows],
                ids=mx.array(ids[rows].astype(np.int32)),
                old_logps=mx.array(old[rows].astype(np.float32)),
                advantages=mx.array(batch.advantages[rows]),
            )
            micro.mask = self.functions.completion_mask(micro.ids, self.end)
            micro.ref_logps = self.score(policy, policy.reference, micro)
            found.append(micro)
        return [found]

    def score(self, policy: Policy, params, micro: SimpleNamespace) -> mx.array:
        """The log-probabilities of a micro-batch's tokens under `params`, [B, T]."""
        return self.functions.score(policy.config, params, micro.prompts, micro.ids, TEMPERATURE)

    def gradient(self, policy: Policy, micro_batches: list[SimpleNamespace]) -> tuple[Gradient, dict[str, float]]:
        """The gradient of the whole batch, and the means of its micro-batches' metrics."""
        grads, num_tokens, history = [], [], []
        for micro in micro_batches:
            kept = {}

            def loss_of(logps, micro=micro, kept=kept):
                kept["logps"] = mx.stop_gradient(logps)
                return self.functions.policy_loss(logps, micro.old_logps, micro.ref_logps, micro.advantages, micro.mask)

            def score_with(params, micro=micro):
                return self.score(policy, params, micro)

            loss, grad = self.functions.loss_and_gradient(policy.trained, score_with, loss_of)
            mx.eval(loss, grad)
            grads.append(grad)
            num_tokens.append(micro.mask.sum().item())
            history.append({"loss": loss.item(), **_distances(micro, kept["logps"])})
        gradient = Gradient(self.functions.accumulate(grads, num_tokens))
        metrics = {name: float(np.mean([each[name] for each in history])) for name in history[0]}
        return gradient, metrics | {"grad_norm": gradient.norm}


def _distances(micro: SimpleNamespace, logps: mx.array) -> dict[str, float]:
    """The distance of the scorer from the sampler, and of the policy from the reference, as means over the tokens."""
    known = micro.old_logps > NO_LOGP / 2
    apart = mx.where(known, logps - micro.old_logps, 0.0)
    behind = mx.where(known, micro.ref_logps - logps, 0.0)
    ratio, judged = mx.exp(apart), micro.advantages[:, None]
    clipped = known & mx.where(judged > 0, ratio > 1 + EPSILON, ratio < 1 - EPSILON) & (judged != 0)
    count = known.sum().item()
    return {
        "kl": (mx.exp(behind) - behind - 1).sum().item() / count,
        "clip_ratio/region_mean": clipped.sum().item() / count,
        "sampling/sampling_logp_difference/mean": mx.abs(apart).sum().item() / count,
    }


def adamw(learning_rate: float = LEARNING_RATE, bias_correction: bool = True) -> optim.Optimizer:
    """MLX's AdamW without weight decay."""
    return optim.AdamW(learning_rate, weight_decay=0.0, bias_correction=bias_correction)


@dataclass(frozen=True)
class MuseumOptimizer:
    """The optimizer part of a step, by an optimizer of MLX with a learning rate of its own."""

    rule: optim.Optimizer

    def check(self, gradient: Gradient, metrics: dict[str, float], learning_rate: float) -> None:
        """Accept everything: the curves of an exhibit may show a gradient that is not finite."""

    def __call__(self, policy: Policy, gradient: Gradient, learning_rate: float) -> Policy:
        """Replace the arrays in the policy's dictionary by updated ones, if the gradient is finite."""
        if math.isfinite(gradient.norm):
            shrink = min(1.0, MAX_NORM / (gradient.norm + 1e-6))
            shrunk = {name: value * shrink for name, value in gradient.items()}
            policy.trained.update(self.rule.apply_gradients(shrunk, policy.trained))
            mx.eval(policy.trained, self.rule.state)
        return policy


def _padded(rows: Sequence[Sequence[float]], filler: float) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows])
