"""The extras of an installation, and one clear error where a package of an extra is missing.

`pip install .` brings what training and generation need: MLX, NumPy, the tokenizer and a few small packages. The extra
`torch` adds torch, `course` all that the notebooks use, and `backends` the other frameworks.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout, if the kit runs from one."""

EXTRA_OF = {
    "torch": "torch",
    "IPython": "course",
    "anywidget": "course",
    "ipykernel": "course",
    "ipywidgets": "course",
    "jupyter_client": "course",
    "jupyterlab": "course",
    "matplotlib": "course",
    "nbconvert": "course",
    "nbformat": "course",
    "safetensors": "course",
    "scipy": "course",
    "sklearn": "course",
    "threadpoolctl": "course",
    "traitlets": "course",
    "transformers": "course",
    "trio": "course",
    "anyio": "backends",
    "jax": "backends",
    "optax": "backends",
    "optree": "backends",
    "orbax": "backends",
    "torchax": "backends",
    "torchopt": "backends",
    "reasoning_gym": "gym",
}
"""The extra in pyproject.toml that brings a package, by the package's name in an import."""


def pip(arguments: str) -> str:
    """A pip command for exactly this Python."""
    return f"{shlex.quote(sys.executable)} -m pip {arguments}"


def install(extra: str) -> str:
    """The command that installs an extra for this Python: in a checkout with the versions that the tests ran with.

    On Linux PyPI's torch brings gigabytes of CUDA, so without an NVIDIA card the command names the CPU build's index.
    """
    lock, index = ROOT / "requirements.lock", "https://download.pytorch.org/whl/cpu"
    nvidia = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")
    cpu = sys.platform == "linux" and not nvidia
    if lock.is_file():
        words = ["--extra-index-url", index] if cpu else []
        return pip(f"install {shlex.join([*words, '-c', str(lock), '-e', f'{ROOT}[{extra}]'])}")
    # Without the lock's version, pip would take PyPI's torch if that is newer than the index's.
    torch = pip(f"install --index-url {index} torch") + " && " if cpu else ""
    return torch + pip(f"install 'mlx-grpo-kit[{extra}]'")


@contextmanager
def packages_for(name: str) -> Iterator[None]:
    """Around the imports of something called `name`: a missing package raises an ImportError that names its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        words = f"{name} needs {package}, which is not installed. Install it: {install(EXTRA_OF[package])}"
        raise ImportError(words, name=package) from error
