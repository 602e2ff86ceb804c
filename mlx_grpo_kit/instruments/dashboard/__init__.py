"""The dashboard of a run: watch it, pause it, change it, rewind it. It does not load MLX."""

from mlx_grpo_kit.instruments.dashboard.dashboard import Dashboard

__all__ = ["Dashboard"]
