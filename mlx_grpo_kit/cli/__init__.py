"""The command line, `python -m mlx_grpo_kit COMMAND`.

Commands: train, evaluate, survey, generate, get, import, fuse, lab, doctor; and for instructors assignment, grade,
mistakes and slides.
"""

from mlx_grpo_kit.cli.commands import main

__all__ = ["main"]
