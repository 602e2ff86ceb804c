"""The command line: `python -m mlx_grpo_kit train | generate | lab | doctor`."""

from mlx_grpo_kit.cli.commands import main

__all__ = ["main"]
