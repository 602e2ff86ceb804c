"""Differentiable log-probabilities of completions under a policy, token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlx_grpo_kit.generation.output_logps import token_logps_and_entropy
from mlx_grpo_kit.generation.padding import TokenIds, check_completions, check_prompts, fold_groups, left_padded, pad
from mlx_grpo_kit.qwen3.cache import KVCache
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.forward import output_weight, qwen3_hidden_states
from mlx_grpo_kit.runtime import mx


@dataclass(frozen=True)
class PaddedBatch:
    """B completions and their prompts as arrays. All prompts end in the last column, so that completions start aligned.

    Attributes:
        prompt_ids: int [B / group_size, P], padded on the left.
        prompt_mask: bool [B / group_size, P], False for padding; None if no prompt is padded.
        group_size: the number of adjacent completions that share a prompt.
        completion_ids: int [B, T], padded on the right.
        completion_mask: bool [B, T], False for padding.
    """

    prompt_ids: mx.array
    prompt_mask: mx.array | None
    group_size: int
    completion_ids: mx.array
    completion_mask: mx.array


def pad_batch(config: Qwen3Config, prompts: Sequence[TokenIds], completions: Sequence[TokenIds]) -> PaddedBatch:
    """Token ids as arrays. Raises ValueError for unequal lengths, empty rows, unknown token ids and too many tokens."""
    if len(prompts) != len(completions):
        raise ValueError(
            f"There are {len(prompts)} prompts and {len(completions)} completions; expected a prompt for each."
        )
    check_prompts(config, prompts, max(map(len, completions), default=0))
    check_completions(config, completions)
    unique_prompts, group_size = fold_groups(prompts)
    prompt_ids, prompt_mask = left_padded(unique_prompts)
    completion_ids, completion_mask = pad(completions, "right")
    return PaddedBatch(prompt_ids, prompt_mask, group_size, mx.array(completion_ids), mx.array(completion_mask) == 1)


def batch_logps(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    batch: PaddedBatch,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    output_gradient: bool = True,
) -> tuple[mx.array, mx.array]:
    """Log-probability of every completion token, and the entropy of its distribution: float32 [B, T] twice.

    The completion's first token is predicted by the prompt's last position, and every other token by the one before
    it; scoring token t with the logits of position t is the classic mistake. A prompt is computed once for its whole
    group, and logits only for the positions that predict a completion token. Padded positions hold arbitrary values.
    The entropy has a gradient only with `entropy_gradient`. Without `output_gradient` the output layer's weight may get
    no gradient, which saves time when only adapters are trained.

    Raises ValueError for a temperature that is not a finite number above 0.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature is {temperature}; expected a number above 0: the temperature that the completions were "
            "sampled with."
        )
    cache = KVCache(config.num_hidden_layers)
    prompt_mask = batch.prompt_mask
    prompt_hidden = qwen3_hidden_states(config, params, batch.prompt_ids, cache=cache, attention_mask=prompt_mask)
    hidden = mx.repeat(prompt_hidden[:, -1:], batch.group_size, axis=0)
    if batch.completion_ids.shape[1] > 1:
        if prompt_mask is not None:
            prompt_mask = mx.repeat(prompt_mask, batch.group_size, axis=0)
        cache = cache.repeat(batch.group_size)
        ids = batch.completion_ids[:, :-1]
        completion_hidden = qwen3_hidden_states(config, params, ids, cache=cache, attention_mask=prompt_mask)
        hidden = mx.concatenate([hidden, completion_hidden], axis=1)
    weight = output_weight(config, params)
    return token_logps_and_entropy(hidden, weight, batch.completion_ids, temperature, entropy_gradient, output_gradient)


def per_token_logps(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prompts: Sequence[TokenIds],
    completions: Sequence[TokenIds],
    temperature: float = 1.0,
) -> tuple[mx.array, mx.array]:
    """Log-probabilities of each completion token: (logps float32 [B, T], completion_mask bool [B, T]).

    T is the longest completion; shorter ones are padded on the right, where logps is 0. `temperature` must be the
    temperature that the completions were sampled with. Differentiable in `params`. Raises ValueError like `pad_batch`
    and `batch_logps`.
    """
    batch = pad_batch(config, prompts, completions)
    logps, _ = batch_logps(config, params, batch, temperature)
    return mx.where(batch.completion_mask, logps, 0.0), batch.completion_mask
