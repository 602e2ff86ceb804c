"""The library without the extras: what works without their packages, and errors that name the extra to install."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlx_grpo_kit.runtime import extras
from mlx_grpo_kit.runtime.extras import EXTRA_OF, install, packages_for
from tests import lab_imports
from tests.every import every

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# A package whose distribution has another name, or that comes with one of them.
DISTRIBUTION = {
    "IPython": "ipykernel", "jupyter_client": "jupyterlab", "nbconvert": "jupyterlab", "nbformat": "jupyterlab",
    "optree": "torchopt", "orbax": "orbax-checkpoint", "sklearn": "scikit-learn", "traitlets": "ipywidgets",
}  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRA_OF)!r}))\n"


def names(lines):
    return {canonicalize_name(Requirement(line).name) for line in lines}


def run(code, cwd, *arguments):
    """Run Python code in a process in which no package of an extra can be imported."""
    command = [sys.executable, "-c", WITHOUT + code, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=200)


@every("package", EXTRA_OF)
def test_a_package_is_in_its_extra_and_not_required(package):
    distribution = canonicalize_name(DISTRIBUTION.get(package, package))
    assert distribution in names(EXTRAS[EXTRA_OF[package]])
    assert distribution not in names(PROJECT["dependencies"])


@every("package", sorted(names(EXTRAS["torch"] + EXTRAS["course"] + EXTRAS["backends"])))
def test_a_package_of_an_extra_is_known(package):
    known = {DISTRIBUTION.get(name, name) for name in EXTRA_OF} | {canonicalize_name(PROJECT["name"])}
    assert package in known


@every("package", sorted(set(lab_imports.packages()) - {"math_verify"}))
def test_a_package_that_a_notebook_or_the_kit_imports_is_required_or_of_an_extra(package):
    assert package in EXTRA_OF or package in names(PROJECT["dependencies"]), lab_imports.packages()[package]


@pytest.mark.parametrize("nvidia", [True, False])
@pytest.mark.parametrize("checkout", [True, False])
def test_the_command_fits_the_installation(checkout, nvidia, tmp_path, monkeypatch):
    """From a wheel there is no `-e .`, and on Linux PyPI's torch brings gigabytes that only an NVIDIA card can use."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(extras.shutil, "which", lambda name: name if nvidia else None)
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    if checkout:
        (tmp_path / "requirements.lock").touch()
    command = install("course")
    assert command.startswith(f"{sys.executable} -m pip install ")
    assert ("index-url https://download.pytorch.org/whl/cpu" in command) == (not nvidia)
    here = f" -c {tmp_path}/requirements.lock -e '{tmp_path}[course]'"
    assert command.endswith(here if checkout else " 'mlx-grpo-kit[course]'")
    assert ("-e" in command.split()) == checkout


def test_training_saving_and_generating_need_no_extra(tmp_path):
    found = run(
        "from mlx_grpo_kit.cli import main\n"
        "sys.exit(main(['train', '--output', 'run', '--max-steps', '2', '--eval-problems', '8'])"
        " or main(['generate', '--model', 'run/policy', '12+34=']))",
        tmp_path,
    )
    assert found.returncode == 0, found.stderr
    assert "Done: 2 of 2 steps." in found.stdout
    assert f"not drawn, because Matplotlib is not installed: {install('course')}" in found.stdout
    assert "12+34=" in found.stdout
    assert (tmp_path / "run/policy/model.safetensors").exists()
    assert not (tmp_path / "run/reward.png").exists()


NAMED = [
    ("from mlx_grpo_kit.viz import Panel; Panel(lambda: None)", "A panel", "ipywidgets", "course"),
    ("from mlx_grpo_kit.viz.picture import new_figure; new_figure(1, 1)", "A picture", "matplotlib", "course"),
    ("import mlx_grpo_kit.viz.browser", "A browser widget", "anywidget", "course"),
    ("import mlx_grpo_kit.tensor as T; T.gelu(T.Tensor([1.0]))", "gelu", "scipy", "course"),
    ("from mlx_grpo_kit.course.digits import load_digits; load_digits()", "load_digits", "sklearn", "course"),
    ("from mlx_grpo_kit.grpo.learners import TorchLearner", "TorchLearner", "torch", "torch"),
    ("from mlx_grpo_kit.grpo.learners import JAXLearner", "JAXLearner", "jax", "backends"),
    ("from mlx_grpo_kit.backends import PyTorchTrainingBackend", "PyTorchTrainingBackend", "torch", "torch"),
]
LAST_LINES = """
import json, traceback
for code in json.loads(sys.argv[1]):
    try:
        exec(code, {})
        print("no error")
    except ImportError as error:
        print(traceback.format_exception_only(error)[-1].strip())
"""


def test_the_error_names_the_extra(tmp_path):
    found = run(LAST_LINES, tmp_path, json.dumps([code for code, *_ in NAMED]))
    assert found.stdout.splitlines() == [
        f"ImportError: {name} needs {package}, which is not installed. Install it: {install(extra)}"
        for _, name, package, extra in NAMED
    ], found.stderr


def test_the_command_line_names_the_extra_in_one_line(tmp_path):
    lab = run("from mlx_grpo_kit.cli import main; sys.exit(main(['lab', 'course']))", tmp_path)
    assert lab.returncode == 1
    [line] = lab.stderr.splitlines()
    assert line == f"error: lab needs jupyterlab, which is not installed. Install it: {install('course')}"
    assert not (tmp_path / "course").exists()

    torch = ["train", "--output", "run", "--max-steps", "1", "--backend", "torch"]
    trained = run(f"from mlx_grpo_kit.cli import main; sys.exit(main({torch!r}))", tmp_path)
    assert trained.returncode == 1
    assert trained.stderr.splitlines()[-1].startswith("error: TorchLearner needs torch, which is not installed.")
    assert not (tmp_path / "run").exists()


def test_another_missing_module_is_not_hidden():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), packages_for("This"):
        import no_such_module  # noqa: F401
