"""Files that ship with the kit."""

from pathlib import Path

TINY = Path(__file__).parent / "tiny"
"""The tiny pre-trained Qwen3, a Hugging Face folder; `python -m mlx_grpo_kit pretrain --output DIR` makes it again."""
