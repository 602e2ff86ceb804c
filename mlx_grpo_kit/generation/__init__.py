"""Sampling from a Qwen3: filters for one token, and whole completions for batches of prompts."""

from mlx_grpo_kit.generation.decoder import Decoder, MLXDecoder
from mlx_grpo_kit.generation.generate import Rollout, TokenStep, generate, generate_tokens, stop_at
from mlx_grpo_kit.generation.sampling import (
    SamplingConfig,
    apply_min_p,
    apply_top_k,
    apply_top_p,
    categorical_sampling,
    sample_token,
    token_logps,
)

__all__ = [
    "Decoder",
    "MLXDecoder",
    "Rollout",
    "SamplingConfig",
    "TokenStep",
    "apply_min_p",
    "apply_top_k",
    "apply_top_p",
    "categorical_sampling",
    "generate",
    "generate_tokens",
    "sample_token",
    "stop_at",
    "token_logps",
]
