"""The GRPO loss of one batch of completions and rewards, and its gradient for every parameter of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.generation.padding import TokenIds, pad
from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.checks import LARGEST_LOGP, check_group_size, check_rewards, prompt_of_each
from mlx_grpo_kit.grpo.logps import PaddedBatch, batch_logps, pad_batch
from mlx_grpo_kit.grpo.loss import grpo_loss_and_metrics
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx


def compute_loss_and_gradients(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prompt_tokens: Sequence[TokenIds],
    completion_tokens: Sequence[TokenIds],
    old_logprobs: Sequence[Sequence[float]] | None,
    rewards: Sequence[float | None],
    group_size: int,
    loss_config: GRPOLossConfig | None = None,
    *,
    ref_logprobs: Sequence[Sequence[float]] | None = None,
    scale_rewards: str = "group",
    temperature: float = 1.0,
) -> tuple[float, dict[str, mx.array]]:
    """Return the GRPO loss of B completions, a scalar, and its gradient by parameter name.

    One differentiated function contains the whole path params -> logits -> log-probs -> loss.

    Args:
        prompt_tokens: B prompts, or B / group_size, one per group of completions.
        completion_tokens: B completions up to and including the end token. Those of one prompt are adjacent: each run
            of group_size completions is one group, whose rewards are compared.
        old_logprobs: per completion, the log-probabilities of its tokens when they were sampled (`rollout.logps`), or
            None if `params` sampled them: then every ratio is exactly 1.
        rewards: B numbers; None for a completion that no reward applies to.
        ref_logprobs: the same under the reference policy; required if beta > 0.
        temperature: the temperature that the completions were sampled with.

    Raises ValueError if numbers or shapes do not match or a group has different prompts, and GradientError like
    `value_and_grad`.
    """
    loss_config = loss_config or GRPOLossConfig()
    check_group_size("group_size", group_size)
    prompt_tokens = prompt_of_each(prompt_tokens, completion_tokens, group_size)
    check_rewards(rewards, completion_tokens)
    advantages = compute_advantages(rewards, group_size, scale_rewards)
    batch = pad_batch(config, prompt_tokens, completion_tokens)
    old = None if old_logprobs is None else pad_logprobs("old_logprobs", old_logprobs, completion_tokens)
    ref = None if ref_logprobs is None else pad_logprobs("ref_logprobs", ref_logprobs, completion_tokens)

    def loss_fn(params: dict[str, mx.array]) -> mx.array:
        return batch_loss(
            config, params, batch, advantages, loss_config, old_logps=old, ref_logps=ref, temperature=temperature
        )

    loss, grads = value_and_grad(loss_fn, params)
    return loss.item(), grads


def batch_loss(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    batch: PaddedBatch,
    advantages: mx.array,
    loss_config: GRPOLossConfig,
    *,
    old_logps: mx.array | None = None,
    ref_logps: mx.array | None = None,
    temperature: float = 1.0,
) -> mx.array:
    """params -> logits -> log-probs -> loss, the one path that GRPO differentiates: a scalar.

    Advantages are [B]; the other arrays are [B, T], as in `grpo_loss_and_metrics`.
    """
    with_entropy = loss_config.entropy_coef != 0
    logps, entropies = batch_logps(config, params, batch, temperature, entropy_gradient=with_entropy)
    loss, _ = grpo_loss_and_metrics(
        loss_config, logps, old_logps, advantages, batch.completion_mask, ref_logps=ref_logps, entropies=entropies
    )
    return loss


def pad_logprobs(name: str, logprobs: Sequence[Sequence[float]], completions: Sequence[TokenIds]) -> mx.array:
    """One list of log-probabilities per completion -> float32 [B, T].

    Raises ValueError if lengths differ, and for a number that is not finite or is above 0.
    """
    if len(logprobs) != len(completions):
        raise ValueError(f"{name} has {len(logprobs)} rows for {len(completions)} completions; expected one for each.")
    for row, (values, completion) in enumerate(zip(logprobs, completions, strict=True)):
        if len(values) != len(completion):
            raise ValueError(
                f"{name}[{row}] has {len(values)} numbers for a completion of {len(completion)} tokens; expected one "
                "for each."
            )
        for place, value in enumerate(values):
            if not -math.inf < value <= LARGEST_LOGP:
                raise ValueError(
                    f"{name}[{row}][{place}] is {value}; expected a log-probability: finite, and at most 0. Take the "
                    "logarithm of a probability, and the negative of a negative log-likelihood."
                )
    _, mask = pad(completions, "right")
    padded = np.zeros(mask.shape, np.float32)
    padded[mask == 1] = np.concatenate([np.asarray(values, np.float32) for values in logprobs])
    return mx.array(padded)
