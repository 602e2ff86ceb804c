"""The fast BLAS is loaded before MLX, whichever module of the kit is imported first."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_grpo_kit

PACKAGE = Path(mlx_grpo_kit.__file__).parent


def imports_mlx_first(file):
    """True if a module imports a part of MLX at its top level before it imports the kit's `mx`."""
    for node in ast.parse(file.read_text()).body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if "mlx_grpo_kit.runtime" in names:
            return False
        if any(name == "mlx" or name.startswith("mlx.") for name in names):
            return True
    return False


# Those whose package has to load it, and one that loads it itself: the order of the lines decides for the others.
MODULES = [
    "mlx_grpo_kit.grpo.minimal",
    *sorted(
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        for file in PACKAGE.rglob("*.py")
        if file.parent.name != "runtime" and imports_mlx_first(file)
    ),
]


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


def test_the_modules_are_found(tmp_path):
    assert "mlx_grpo_kit.course.chapters.chapter_24.short_run" in MODULES
    own, theirs = "from mlx_grpo_kit.runtime import mx", "import mlx.optimizers"
    file = tmp_path / "module.py"
    for lines, first in (((own, theirs), False), ((theirs, own), True), ((own,), False), ((theirs,), True)):
        file.write_text("\n".join(lines))
        assert imports_mlx_first(file) == first
