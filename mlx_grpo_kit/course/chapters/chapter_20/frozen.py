"""A sampled batch with the sampler's log-probability of every token: the witness of chapter 20's tests."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx

PROMPTS = ("27+38=", "5+4=", "61+7=", "99+3=", "8+8=", "40+60=")


@lru_cache(1)
def frozen_batch() -> SimpleNamespace:
    """Six sampled answers of the tiny model to prompts of different lengths; the first prompt is the longest.

    `config`, `params`; `prompts`, six lists of token ids; `ids` [6, T], the completions, padded with the end token;
    `logps` [6, T], the sampler's log-probability of each token, 0 after the end; `is_token` [6, T], True for
    real tokens; `temperature`, the temperature of sampling; `end`, the end token.
    """
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    end, temperature = min(tokenizer.eos_token_ids), 1.4
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    rollout = generate(config, params, prompts, sampling=SamplingConfig(4, temperature), eos_token_ids=[end], seed=1)
    width = max(map(len, rollout.completions))
    ids = np.full((len(prompts), width), end, np.int32)
    logps, is_token = np.zeros(ids.shape, np.float32), np.zeros(ids.shape, bool)
    for row, (tokens, values) in enumerate(zip(rollout.completions, rollout.logps, strict=True)):
        ids[row, : len(tokens)], logps[row, : len(tokens)], is_token[row, : len(tokens)] = tokens, values, True
    return SimpleNamespace(
        config=config,
        params=params,
        prompts=prompts,
        ids=mx.array(ids),
        logps=mx.array(logps),
        is_token=mx.array(is_token),
        temperature=temperature,
        end=end,
    )
