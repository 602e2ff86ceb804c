"""Chapter 24: from a blank file."""

import mlx_grpo_kit.runtime.blas  # before mlx.optimizers, which imports MLX
