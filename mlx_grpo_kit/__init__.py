"""mlx_grpo_kit: from one scalar `Value` to GRPO on a full Qwen3, with every gradient checked on the way."""

import mlx_grpo_kit.runtime.moved  # so that an import of a name that has moved says where it is

__version__ = "0.2.0"
