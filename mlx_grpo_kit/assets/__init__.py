"""Files that ship with the kit."""

from pathlib import Path

TINY = Path(__file__).parent / "tiny"
"""The tiny pre-trained Qwen3, a Hugging Face folder; `python -m mlx_grpo_kit.assets.make.tiny DIR` makes it again."""

TINY_CHAT = Path(__file__).parent / "tiny_chat"
"""The same with all that a published folder has: bfloat16 shards, a byte-level BPE, a chat template that lets it think.

`python -m mlx_grpo_kit.assets.make.tiny_chat DIR` makes it again.
"""

TINY_TOOLS = Path(__file__).parent / "tiny_tools"
"""A tiny model that has seen Qwen3's tool calls and makes them badly; it is for the tasks `calculator` and `guess`.

`python -m mlx_grpo_kit.assets.make.tiny_tools DIR` makes it again.
"""

TINY_STEPS = Path(__file__).parent / "tiny_steps"
"""A tiny model that adds long sums step by step, in 15 to 60 tokens, and is often wrong; it is for the task `long-sum`.

`python -m mlx_grpo_kit.assets.make.tiny_steps DIR` makes it again.
"""
