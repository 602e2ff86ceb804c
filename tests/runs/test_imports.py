"""The files of a run and the settings of GRPO load without MLX, for `--help` and for other programs."""

import re
import subprocess
import sys
from pathlib import Path

import mlx_grpo_kit.runs
from mlx_grpo_kit.runtime.extras import ROOT

LOADED = """
import sys
before = {*sys.modules}
import mlx_grpo_kit  # loads a part of runtime itself
package = {*sys.modules}
IMPORTS
new = {*sys.modules} - before
others = {name.partition(".")[0] for name in new} - sys.stdlib_module_names - {"mlx_grpo_kit"}
print(sorted(name for name in others if not name.startswith("_")))
print(sorted({name.split(".")[1] for name in new - package if name.startswith("mlx_grpo_kit.")}))
"""


def loaded_by(*modules):
    """List what imports of the kit's modules load: packages outside the standard library, and parts of the kit."""
    code = LOADED.replace("IMPORTS", "\n".join(f"import mlx_grpo_kit.{module}" for module in modules))
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    return [{*line.strip("[]").replace("'", "").split(", ")} - {""} for line in lines]


def test_runs_imports_only_files_and_no_package_at_all():
    names = [path.stem for path in Path(mlx_grpo_kit.runs.__file__).parent.glob("*.py")]
    assert "diagnosis" in names
    others, kit = loaded_by(*(f"runs.{name}" for name in names if name != "__init__"))
    assert others == set()
    assert kit <= {"runs", "files"}


def test_settings_load_no_package_at_all():
    others, kit = loaded_by("grpo", "grpo.config", "cli.parser")
    assert others == set()
    assert kit <= {"grpo", "runtime", "cli", "runs", "files"}


def test_training_loads_few_modules(tmp_path):
    """A stranger has to read what a program loads: at most 90 modules for the README's ten lines, 60 for the page."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"## In ten lines\n\n```python\n(.*?)```", readme, re.DOTALL)
    for code, most in ((program.replace("max_steps=50", "max_steps=1"), 90), ("import mlx_grpo_kit.grpo.minimal", 60)):
        code += "\nimport sys; print(len([name for name in sys.modules if name.startswith('mlx_grpo_kit')]))"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert 40 < int(done.stdout.splitlines()[-1]) <= most, done.stdout
