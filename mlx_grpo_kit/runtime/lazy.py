"""A package whose names are loaded on first use, so that importing it is fast and needs only what is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from mlx_grpo_kit.runtime.extras import packages_for


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package (PEP 562).

    If a module needs a package that is not installed, asking for its name raises an ImportError that names the extra.

    Args:
        package: its `__name__`.
        homes: for each of its names the module that defines it, "trainer" or "mlx_grpo_kit.runs.diagnosis".
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        with packages_for(name):
            found = getattr(import_module(home if "." in home else f"{package}.{home}"), name)
        vars(sys.modules[package])[name] = found
        return found

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
