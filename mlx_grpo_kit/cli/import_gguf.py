"""The `import` command: a GGUF becomes a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlx_grpo_kit.qwen3 import import_gguf
from mlx_grpo_kit.runs.folder import check_writable
from mlx_grpo_kit.runtime import mx


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    check_writable(options.output)
    print(f"Converting {options.file}", flush=True)
    folder = import_gguf(options.file, options.output, getattr(mx, options.dtype))
    print(f"{folder} is now a Hugging Face folder of {size_of(folder)}; its licence is in README.md there.")
    return 0


def size_of(folder: Path) -> str:
    """The size of a folder's files, in words."""
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 1e6:,.0f} MB"
