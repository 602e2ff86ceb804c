"""The cost of a gradient: lines of code, milliseconds, megabytes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from time import perf_counter
from types import ModuleType
from typing import Any

from mlx_grpo_kit.runtime import mx


def code_lines(*modules: ModuleType) -> int:
    """The number of lines of the modules without comments, docstrings and empty lines, as `ast.unparse` writes them."""
    total = 0
    for module in modules:
        tree = ast.parse(inspect.getsource(module))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        total += sum(bool(line.strip()) for line in ast.unparse(tree).splitlines())
    return total


def measure(ways: Mapping[str, Callable[[], Any]], rounds: int = 4) -> dict[str, tuple[float, float]]:
    """(milliseconds, megabytes at the peak beyond what was there) of each way to compute something: the least of all.

    The ways take turns, because a machine that is busy for a while would otherwise slow down only one of them.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            mx.reset_peak_memory()
            before, start = mx.get_active_memory(), perf_counter()
            result = way()
            mx.eval(result)
            taken[name].append((1e3 * (perf_counter() - start), (mx.get_peak_memory() - before) / 1e6))
            del result
    return {name: (min(ms for ms, _ in each), min(mb for _, mb in each)) for name, each in taken.items()}
