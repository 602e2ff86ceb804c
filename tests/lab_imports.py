"""Run every import of the notebooks and of the kit, and fail if one fails: does `make lab` install all that they need?

`make` runs this in .venv before it installs the packages of the tests there, and tests/test_setup.py in an environment
in which those are missing.
"""

import ast
import json
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "mlx_grpo_kit" / "course" / "book"
"""The makers of `make docs`, which run with the extra `book`."""
OPTIONAL = {"jax", "optax", "optree", "orbax", "torchax", "torchopt", "math_verify", "reasoning_gym"}
"""Packages that a reader may lack: chapter 22 skips a framework that is not installed, and errors name the extra."""


def imports():
    """Yield the file and the syntax of every import in the notebooks and in the kit, those inside functions too."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).split("\n")]
        source = "\n".join(line for line in lines if not line.startswith(("%", "!")))
        yield from ((path, node) for node in _nodes(source))
    for path in sorted((ROOT / "mlx_grpo_kit").rglob("*.py")):
        if path.parent != BOOK:
            yield from ((path, node) for node in _nodes(path.read_text(encoding="utf-8")))


def _nodes(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            yield node


def names(node):
    """The packages of an import: `import a.b, c` names a and c."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    return {module.partition(".")[0] for module in modules}


def packages():
    """The packages that all these imports name, other than Python's own and the kit, each with one of its files."""
    found = {name: path for path, node in imports() for name in names(node)}
    return {name: path for name, path in found.items() if name not in {*sys.stdlib_module_names, "mlx_grpo_kit"}}


def main():
    """Print each import that fails, and return 1 if there is one."""
    warnings.simplefilter("ignore")
    files = {ast.unparse(node): path for path, node in imports() if not names(node) <= OPTIONAL}
    failures = {}
    for statement, path in files.items():
        try:
            exec(statement, {})
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                failures[statement] = f"{path.relative_to(ROOT)}: `{statement}` fails after `make lab`: {error}"
    for words in failures.values():
        print(words, file=sys.stderr)
    print(f"{len(files)} imports of the notebooks and of the kit; {len(failures)} fail after `make lab`.")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
