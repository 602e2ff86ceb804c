"""The fast BLAS is loaded before MLX, whichever module of the kit is imported first."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_grpo_kit

PACKAGE = Path(mlx_grpo_kit.__file__).parent


def imports_mlx(file):
    """True if a module imports a part of MLX at its top level, and not only the kit's `mx`."""
    for node in ast.parse(file.read_text()).body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name == "mlx" or name.startswith("mlx.") for name in names):
            return True
    return False


MODULES = sorted(
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    for file in PACKAGE.rglob("*.py")
    if file.parent.name != "runtime" and imports_mlx(file)
)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_is_imported_first_loads_the_fast_blas(module):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {module}"],
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_modules_are_found():
    named = {f"mlx_grpo_kit.{name}" for name in ("grpo.minimal", "grpo.optimizer", "assets.make.imitation")}
    assert named <= {*MODULES}
