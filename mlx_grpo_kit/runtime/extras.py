"""The extras of an installation, and one clear error where a package of an extra is missing.

`pip install .` brings what training and generation need: MLX, NumPy, the tokenizer and a few small packages. The extra
`torch` adds torch, `course` all that the notebooks use, and `backends` the other frameworks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRA_OF = {
    "torch": "torch",
    "IPython": "course",
    "anywidget": "course",
    "ipykernel": "course",
    "ipywidgets": "course",
    "jupyter_client": "course",
    "jupyterlab": "course",
    "matplotlib": "course",
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
}
"""The extra in pyproject.toml that brings a package, by the package's name in an import."""


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'mlx-grpo-kit[{extra}]', or in a checkout pip install -c requirements.lock -e '.[{extra}]'"


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
