"""Chapter 24: from a blank file."""

import mlx_grpo_kit.runtime.blas  # noqa: F401  (before mlx.optimizers, which imports MLX)
