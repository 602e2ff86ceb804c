"""A package whose names are loaded on first use, so that importing it is fast and needs only what is used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mlx_grpo_kit.runtime.extras import packages_for


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package (PEP 562).

    The names are those that its `__init__.py` imports under `if TYPE_CHECKING:`, where editors find them too:

        if TYPE_CHECKING:
            from mlx_grpo_kit.grpo.trainer import GRPOTrainer

        __getattr__, __dir__, __all__ = lazy_names(__name__)

    If a module needs a package that is not installed, asking for its name raises an ImportError that names the extra.
    A name must not be the name of a module of the package, because importing that module would hide it.
    """
    namespace = vars(sys.modules[package])
    tree = ast.parse(Path(namespace["__file__"]).read_text(encoding="utf-8"))
    block = next(each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    homes = {alias.name: line.module for line in block.body for alias in line.names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with packages_for(name):
            namespace[name] = getattr(import_module(homes[name]), name)
        return namespace[name]

    return load, lambda: sorted({*namespace, *homes}), sorted(homes)
