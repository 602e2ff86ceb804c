"""Sampling from a Qwen3: filters for one token, and whole completions for batches of prompts."""

from mlx_grpo_kit.generation.generate import Rollout, generate
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
    "Rollout",
    "SamplingConfig",
    "apply_min_p",
    "apply_top_k",
    "apply_top_p",
    "categorical_sampling",
    "generate",
    "sample_token",
    "token_logps",
]
