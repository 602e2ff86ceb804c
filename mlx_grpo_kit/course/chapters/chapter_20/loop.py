"""GRPO in small parts, for chapter 20: each part is a function that you can replace by a sick one.

It is the loop of chapter 18 again, without the speed and comfort of `mlx_grpo_kit/grpo/trainer.py`, and with two lines
for tests: it keeps the sampler's log-probability of each token, and the scorer has to compute the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.generation.batching import pad
from mlx_grpo_kit.qwen3 import qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition

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
class Parts:
    """The parts of the loop; `dataclasses.replace(Parts(), score=mine)` replaces one."""

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
    parts: Parts = Parts(),
    seed: int = 0,
    *,
    task: Any = None,
    num_prompts: int = PROMPTS,
    learning_rate: float | None = None,
) -> Iterator[Any]:
    """Train with `parts`; yield a record with `.step`, `.metrics` and `.completions` after each step.

    The default task is `Addition()`, and the default learning rate LEARNING_RATE. A step draws GROUP completions for
    each of `num_prompts` problems. The caller's `params` are not changed. A step whose gradient is not finite is the
    last.
    """
    import mlx.optimizers as optim  # here, because the kit has to choose MLX's BLAS before MLX is loaded

    task, rng, end = task or Addition(), np.random.default_rng(seed), min(tokenizer.eos_token_ids)
    params = dict(params)
    reference = parts.keep_reference(params)
    optimizer = optim.AdamW(learning_rate or LEARNING_RATE, weight_decay=0.0, bias_correction=True)
    for step in range(1, max_steps + 1):
        problems = [problem for problem in task.sample(rng, num_prompts) for _ in range(GROUP)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        sampling = SamplingConfig(parts.num_new_tokens(task), TEMPERATURE)
        rollout = generate(config, params, prompts, sampling=sampling, eos_token_ids=[end], seed=seed * 100_000 + step)
        texts = [tokenizer.decode(ids) for ids in rollout.completions]
        rewards = np.array([parts.reward(*each) for each in zip(problems, texts, strict=True)])
        judged = np.asarray(parts.advantages(rewards, GROUP))

        ids, old = _padded(rollout.completions, end), _padded(rollout.logps, NO_LOGP)
        grads, seen = [], []
        for rows in np.split(np.arange(len(problems)), MICRO_BATCHES):
            batch = SimpleNamespace(
                prompts=[prompts[row] for row in rows],
                ids=mx.array(ids[rows].astype(np.int32)),
                old=mx.array(old[rows].astype(np.float32)),
                advantages=mx.array(judged[rows].astype(np.float32)),
            )
            loss, grad, about = _micro_batch(config, params, reference, parts, batch, end)
            mx.eval(loss, grad)
            grads.append(grad)
            seen.append({"loss": loss.item(), **about})
        grad = parts.accumulate(grads, [about["tokens"] for about in seen])
        norm = math.sqrt(sum(mx.sum(value * value).item() for value in grad.values()))
        metrics = _metrics(task, problems, texts, rewards, rollout, seen) | {"grad_norm": norm}
        yield SimpleNamespace(step=step, metrics=metrics, completions=_completions(problems, texts, rewards, judged))
        if not math.isfinite(norm):
            return
        shrink = min(1.0, MAX_NORM / (norm + 1e-6))
        updated = optimizer.apply_gradients({name: value * shrink for name, value in grad.items()}, params)
        mx.eval(updated, optimizer.state)
        for name, value in updated.items():
            params[name] = value


def _padded(rows: Sequence[Sequence[float]], filler: float) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows])


def _micro_batch(config, params, reference, parts, batch, end):
    mask = parts.completion_mask(batch.ids, end)
    ref_logps = parts.score(config, reference, batch.prompts, batch.ids, TEMPERATURE)
    kept = {}

    def score_with(params):
        return parts.score(config, params, batch.prompts, batch.ids, TEMPERATURE)

    def loss_of(logps):
        kept["logps"] = mx.stop_gradient(logps)
        return parts.policy_loss(logps, batch.old, ref_logps, batch.advantages, mask)

    loss, grad = parts.loss_and_gradient(params, score_with, loss_of)
    # Measurements: the distance of the scorer from the sampler, and of the policy from the reference.
    known = batch.old > NO_LOGP / 2
    apart = mx.where(known, kept["logps"] - batch.old, 0.0)
    behind = mx.where(known, ref_logps - kept["logps"], 0.0)
    ratio, up = mx.exp(apart), batch.advantages[:, None] > 0
    clipped = known & mx.where(up, ratio > 1 + EPSILON, ratio < 1 - EPSILON) & (batch.advantages[:, None] != 0)
    count = known.sum().item()
    about = {
        "tokens": mask.sum().item(),
        "kl": (mx.exp(behind) - behind - 1).sum().item() / count,
        "clip_ratio/region_mean": clipped.sum().item() / count,
        "sampling/sampling_logp_difference/mean": mx.abs(apart).sum().item() / count,
    }
    return loss, grad, about


def _metrics(task, problems, texts, rewards, rollout, seen):
    groups, lengths = rewards.reshape(-1, GROUP), [*map(len, rollout.completions)]
    right = [*map(task.is_correct, problems, texts)]
    means = {name: float(np.mean([each[name] for each in seen])) for name in seen[0] if name != "tokens"}
    return means | {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std(ddof=1)),
        "accuracy": float(np.mean(right)),
        "frac_reward_zero_std": float((np.ptp(groups, axis=1) == 0).mean()),
        "entropy": float(np.mean([value for row in rollout.entropies for value in row])),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1 - float(np.mean(rollout.finished)),
    }


def _completions(problems, texts, rewards, judged):
    return [
        SimpleNamespace(problem=p, prompt=p.prompt, completion=text, reward=float(r), advantage=float(a))
        for p, text, r, a in zip(problems, texts, rewards, judged, strict=True)
    ]
