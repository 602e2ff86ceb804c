"""Batched generation: prompts in, completions with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.generation.batching import TokenIds, check_prompts, fold_groups, left_padded
from mlx_grpo_kit.generation.sampling import SamplingConfig, sample_token, token_logps
from mlx_grpo_kit.lanes import lane_streams, shares
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
        finished: whether the completion ended with an end token, rather than at max_new_tokens.
    """

    completions: list[list[int]]
    logps: list[list[float]]
    finished: list[bool]


def generate(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prompts: Sequence[TokenIds],
    *,
    sampling: SamplingConfig | None = None,
    eos_token_ids: Collection[int] = (),
    seed: int = 0,
) -> Rollout:
    """Continue every prompt until one of `eos_token_ids` or `sampling.max_new_tokens` tokens.

    Prompts may differ in length. Equal prompts that stand next to each other in groups of one size, as GRPO's do, are
    read once. The same seed and arguments give the same rollout on the same machine.

    Raises ValueError for no prompts, an empty one, token ids outside the vocabulary, or more tokens than the model
    has positions, and TypeError for what is no list of token ids, such as text.
    """
    sampling = sampling or SamplingConfig()
    check_prompts(config, prompts, sampling.max_new_tokens)
    params = dict(params)
    unique_prompts, group_size = fold_groups(prompts)
    ends = sorted(eos_token_ids) or [-1]
    # A key for every row and step: what a row draws depends neither on its neighbours nor on the number of lanes.
    row_keys = mx.random.split(mx.random.key(seed), len(prompts))
    mx.eval(row_keys)
    lanes = []
    streams = lane_streams()
    for share, stream in zip(shares(len(unique_prompts), len(streams)), streams, strict=False):
        keys = row_keys[share.start * group_size : share.stop * group_size]
        lanes.append(_Lane(config, params, unique_prompts[share], group_size, sampling, ends, keys, stream))
    for _ in range(1, sampling.max_new_tokens):
        # All lanes are set going before any of them is waited for.
        mx.async_eval([(lane.tokens[-1], lane.logps[-1], lane.done) for lane in lanes])
        going = [lane for lane in lanes if not mx.all(lane.done).item()]
        if not going:
            break
        for lane in going:
            lane.step()
    return _cut_at_ends([row for lane in lanes for row in lane.rows()], set(eos_token_ids))


class _Lane:
    """Some of the rows, on a stream of their own: prompts are read when it is made, and each `step` adds a token."""

    def __init__(
        self,
        config: Qwen3Config,
        params: dict[str, mx.array],
        prompts: Sequence[TokenIds],
        group_size: int,
        sampling: SamplingConfig,
        ends: list[int],
        keys: mx.array,
        stream: mx.Stream,
    ):
        self.params, self.sampling, self.keys, self.stream = params, sampling, keys, stream
        self.decode = _decode_step(config, sampling)
        with mx.stream(stream):
            self.ends = mx.array(ends, mx.int32)
            prompt_ids, mask = left_padded(prompts)
            cache = KVCache(config.num_hidden_layers)
            last_hidden = qwen3_hidden_states(config, params, prompt_ids, cache=cache, attention_mask=mask)[:, -1]
            logits = mx.repeat(output_logits(config, params, last_hidden), group_size, axis=0)
            self.cache = cache.repeat(group_size)
            self.attention_mask = None if mask is None else mx.repeat(mask, group_size, axis=0)
            tokens, logps = _draw(sampling, logits, keys, mx.array(0))
            self.tokens, self.logps = [tokens], [logps]
            self.done = _is_end(tokens, self.ends)

    def step(self) -> None:
        cache = self.cache
        with mx.stream(self.stream):
            if cache.length == cache.capacity:
                cache.reserve(cache.length + min(BLOCK, self.sampling.max_new_tokens - len(self.tokens)))
            tokens, logps, cache.keys, cache.values = self.decode(
                self.params, cache.keys, cache.values, mx.array(cache.length), self.attention_mask, self.tokens[-1],
                self.keys, mx.array(len(self.tokens)),
            )  # fmt: skip
            cache.advance(1)
            self.tokens.append(tokens)
            self.logps.append(logps)
            self.done = self.done | _is_end(tokens, self.ends)

    def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Tokens and log-probabilities of each row, [T] each."""
        with mx.stream(self.stream):
            tokens, logps = mx.stack(self.tokens, axis=1), mx.stack(self.logps, axis=1)
        return zip(np.array(tokens), np.array(logps), strict=True)


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


def _draw(sampling: SamplingConfig, logits: mx.array, row_keys: mx.array, step: mx.array) -> tuple[mx.array, mx.array]:
    """A token and its log-probability for each row of [B, V], drawn with the row's key for this step."""

    def one_row(row: mx.array, key: mx.array) -> mx.array:
        s = sampling
        return sample_token(row, s.temperature, s.top_p, s.top_k, s.min_p, key)

    # A key is two random numbers, and any other key draws other numbers: the row's key moved on by the step will do.
    tokens = mx.vmap(one_row)(logits, row_keys + step.astype(mx.uint32)).astype(mx.int32)
    return tokens, token_logps(logits, tokens, sampling.temperature)


def _is_end(tokens: mx.array, ends: mx.array) -> mx.array:
    return mx.any(tokens[:, None] == ends, axis=1)


def _cut_at_ends(rows: list[tuple[np.ndarray, np.ndarray]], ends: set[int]) -> Rollout:
    """Each row up to and including its first end token."""
    completions, cut_logps, finished = [], [], []
    for tokens, logps in rows:
        is_end = np.isin(tokens, list(ends))
        length = int(is_end.argmax()) + 1 if is_end.any() else len(tokens)
        completions.append(tokens[:length].tolist())
        cut_logps.append(logps[:length].tolist())
        finished.append(bool(is_end.any()))
    return Rollout(completions, cut_logps, finished)
