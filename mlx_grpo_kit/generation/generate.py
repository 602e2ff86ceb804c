"""Batched generation: prompts in, completions with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.fork import refuse_after_fork
from mlx_grpo_kit.generation.batching import TokenIds, check_prompts, check_tokens, fold_groups, left_padded
from mlx_grpo_kit.generation.sampling import SamplingConfig, check_whole, sample_token, token_logps
from mlx_grpo_kit.qwen3.cache import KVCache
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.forward import output_logits, qwen3_forward, qwen3_hidden_states

BLOCK = 32  # positions the cache grows by: the past is copied once in 32 tokens, not with every token


@dataclass(frozen=True)
class Rollout:
    """What was generated, one entry a prompt.

    Attributes:
        completions: token ids, the end token kept.
        logps: the log-probability of each of them under softmax(logits / temperature), before filters: what the
            policy that is trained says, and so the `old_logps` of its loss.
        entropies: the entropy of the distribution that each of them was drawn from, in nats, of the same softmax.
        finished: whether the completion ended with an end token, rather than at max_new_tokens.
    """

    completions: list[list[int]]
    logps: list[list[float]]
    entropies: list[list[float]]
    finished: list[bool]


def generate(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prompts: Sequence[TokenIds],
    *,
    sampling: SamplingConfig | None = None,
    eos_token_ids: Collection[int] = (),
    seed: int = 0,
    first_row: int = 0,
    num_rows: int | None = None,
    completion_batch_size: int | None = None,
) -> Rollout:
    """Continue every prompt until one of `eos_token_ids` or `sampling.max_new_tokens` tokens.

    Prompts may differ in length. Equal prompts that stand next to each other in groups of one size, as GRPO's do, are
    read once. The same seed and arguments give the same rollout on the same machine.

    A large batch may be generated in pieces: `prompts` are then the rows of a batch of `num_rows` from `first_row` on,
    and each draws what it would have drawn in the whole batch. `completion_batch_size` (mlx-lm's name) has that done
    here, with at most so many rows at once and a key-value cache for no more; logits may differ by rounding.

    Raises:
        ValueError: no prompts, an empty one, token ids outside the vocabulary, an end token outside it, more tokens
            than the model has positions, or a seed that has no 64 bits.
        TypeError: what is no list of token ids, such as text.
    """
    refuse_after_fork()
    sampling = sampling or SamplingConfig()
    check_prompts(config, prompts, sampling.max_new_tokens)
    if eos_token_ids:
        check_tokens(config, sorted(eos_token_ids), "eos_token_ids")
    check_whole("seed", seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; expected 0 to 2^64 - 1.")
    if completion_batch_size is not None and len(prompts) > completion_batch_size:
        check_whole("completion_batch_size", completion_batch_size)
        if completion_batch_size < 1:
            raise ValueError(f"completion_batch_size is {completion_batch_size}; expected at least 1.")
        pieces = []
        for start in range(0, len(prompts), completion_batch_size):
            pieces.append(
                generate(
                    config,
                    params,
                    prompts[start : start + completion_batch_size],
                    sampling=sampling,
                    eos_token_ids=eos_token_ids,
                    seed=seed,
                    first_row=first_row + start,
                    num_rows=num_rows or len(prompts),
                )
            )
        return Rollout(*([row for piece in pieces for row in getattr(piece, f.name)] for f in fields(Rollout)))
    params = dict(params)
    unique_prompts, group_size = fold_groups(prompts)
    prompt_ids, attention_mask = left_padded(unique_prompts)
    ends = mx.array(sorted(eos_token_ids) or [-1], mx.int32)
    # A key for every row: what it draws does not depend on the rows beside it.
    row_keys = mx.random.split(mx.random.key(seed), num_rows or len(prompts))[first_row : first_row + len(prompts)]

    cache = KVCache(config.num_hidden_layers)
    last_hidden = qwen3_hidden_states(config, params, prompt_ids, cache=cache, attention_mask=attention_mask)[:, -1]
    logits = mx.repeat(output_logits(config, params, last_hidden), group_size, axis=0)
    cache = cache.repeat(group_size)
    if attention_mask is not None:
        attention_mask = mx.repeat(attention_mask, group_size, axis=0)

    decode = _decode_step(config, sampling)
    tokens, *said = _draw(sampling, logits, row_keys, mx.array(0))
    all_tokens, all_said = [tokens], [said]
    done = _is_end(tokens, ends)
    for step in range(1, sampling.max_new_tokens):
        if mx.all(done).item():
            break
        if cache.length == cache.capacity:
            cache.reserve(cache.length + min(BLOCK, sampling.max_new_tokens - step))
        tokens, *said, cache.keys, cache.values = decode(
            params, cache.keys, cache.values, mx.array(cache.length), attention_mask, tokens, row_keys, mx.array(step)
        )
        cache.advance(1)
        all_tokens.append(tokens)
        all_said.append(said)
        done = done | _is_end(tokens, ends)
    logps, entropies = (np.array(mx.stack(each, axis=1)) for each in zip(*all_said, strict=True))
    return _cut_at_ends(np.array(mx.stack(all_tokens, axis=1)), logps, entropies, set(eos_token_ids))


@lru_cache(maxsize=16)
def _decode_step(config: Qwen3Config, sampling: SamplingConfig) -> Callable:
    """One token further, compiled: the position is an array, so one graph serves every step of a block."""

    @mx.compile
    def decode(params, keys, values, length, attention_mask, tokens, row_keys, step):
        cache = KVCache(config.num_hidden_layers)
        cache.keys, cache.values, cache.length = list(keys), list(values), length
        logits = qwen3_forward(config, params, tokens[:, None], cache=cache, attention_mask=attention_mask)
        return *_draw(sampling, logits[:, 0], row_keys, step), cache.keys, cache.values

    return decode


def _draw(
    sampling: SamplingConfig, logits: mx.array, row_keys: mx.array, step: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """For each row of [B, V] a token drawn with the row's key for this step, its log-probability, and the entropy."""

    def one_row(row: mx.array, key: mx.array) -> mx.array:
        s = sampling
        return sample_token(row, s.temperature, s.top_p, s.top_k, s.min_p, key)

    # A key is two random numbers, and any other key draws other numbers: the row's key moved on by the step will do.
    tokens = mx.vmap(one_row)(logits, row_keys + step.astype(mx.uint32)).astype(mx.int32)
    return tokens, *token_logps(logits, tokens, sampling.temperature, with_entropy=True)


def _is_end(tokens: mx.array, ends: mx.array) -> mx.array:
    return mx.any(tokens[:, None] == ends, axis=1)


def _cut_at_ends(tokens: np.ndarray, logps: np.ndarray, entropies: np.ndarray, ends: set[int]) -> Rollout:
    """Rows of [B, T], each up to and including its first end token."""
    is_end = np.isin(tokens, list(ends))
    finished = is_end.any(axis=1)
    lengths = np.where(finished, is_end.argmax(axis=1) + 1, tokens.shape[1]).tolist()

    def cut(rows: np.ndarray) -> list[list]:
        return [row[:length] for row, length in zip(rows.tolist(), lengths, strict=True)]

    return Rollout(cut(tokens), cut(logps), cut(entropies), finished.tolist())
