"""A package whose names are loaded when they are first asked for, so that nobody waits for what is not used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

INSTALL = (
    "pip install 'mlx_grpo_kit[backends]', or .venv/bin/python -m pip install -c requirements.lock -e '.[backends]'"
)
"""How to install the frameworks that training can use beside MLX and torch."""


def lazy_names(
    package: str, homes: Mapping[str, str], install: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: its `__name__`.
        homes: for each of its names the module that has it, "trainer" or "mlx_grpo_kit.runs.diagnosis".
        install: how to install what its modules import, for the error where that is missing.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        try:
            found = getattr(import_module(home if "." in home else f"{package}.{home}"), name)
        except ModuleNotFoundError as error:
            if not install or error.name is None or error.name.startswith("mlx_grpo_kit"):
                raise
            raise ImportError(f"{name} needs {error.name}, which is not installed. Install it: {install}") from error
        vars(sys.modules[package])[name] = found
        return found

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
