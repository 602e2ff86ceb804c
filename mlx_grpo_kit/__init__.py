"""mlx_grpo_kit: from one scalar `Value` to GRPO on a full Qwen3, with every gradient checked on the way."""

__version__ = "0.2.0"
