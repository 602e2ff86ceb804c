"""The dashboard of a run: watch it, pause it, change it, rewind it. Loads no MLX."""

from mlx_grpo_kit.instruments.dashboard.dashboard import Dashboard

__all__ = ["Dashboard"]
