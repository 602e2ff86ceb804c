"""The command line: `python -m mlx_grpo_kit train | evaluate | generate | get | import | fuse | lab | doctor`."""

from mlx_grpo_kit.cli.commands import main

__all__ = ["main"]
