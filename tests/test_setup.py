"""pyproject.toml, the lock and environment.yml agree, and the set-up commands do what they say."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from mlx_grpo_kit import __version__
from mlx_grpo_kit.cli.parser import LAB_FOLDER
from mlx_grpo_kit.course.chapters.chapter_22 import parts
from mlx_grpo_kit.runtime.extras import EXTRA_OF
from tests import lab_imports
from tests.every import every

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
KIT = canonicalize_name(PROJECT["name"])


def requirements(lines):
    """(name, marker) -> Requirement, without the kit itself."""
    parsed = [Requirement(line) for line in lines]
    return {(canonicalize_name(r.name), str(r.marker or "")): r for r in parsed if canonicalize_name(r.name) != KIT}


COURSE = requirements(PROJECT["dependencies"] + EXTRAS["torch"] + EXTRAS["course"] + EXTRAS["backends"])
EVERYTHING = COURSE | requirements(EXTRAS["book"] + EXTRAS["dev"])
LOCK = {
    canonicalize_name(r.name): r
    for r in map(Requirement, re.findall(r"^[^#\s].*", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
}
CONDA_FILE = yaml.safe_load((ROOT / "environment.yml").read_text())
FROM_CONDA = [line for line in CONDA_FILE["dependencies"] if isinstance(line, str)]
[FROM_PIP] = [part["pip"] for part in CONDA_FILE["dependencies"] if isinstance(part, dict)]
CONDA = requirements([line for line in FROM_CONDA + FROM_PIP if not line.startswith(("-", "python=", "pip"))])


def test_the_changelog_begins_with_this_version_and_names_its_tag():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == f"{__version__}, tag `v{__version__}`"
    versions = [Version(heading.partition(",")[0]) for heading in headings]
    assert versions == sorted(set(versions), reverse=True)
    assert PROJECT["dynamic"] == ["version"]  # there is one place for the number


def test_the_citation_names_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])


@every("workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_runs_what_is_there(workflow):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    steps = [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]
    commands = [step["run"].split() for step in steps if "run" in step]
    assert commands
    for program, *arguments in commands:
        if program == "make":
            assert {*arguments} <= {*targets}
        elif "/" in program and not program.startswith(".venv"):
            assert os.access(ROOT / program, os.X_OK), f"{program} is not there"


def test_the_folder_of_make_lab_is_ignored_and_the_tracked_notebooks_are_not_opened():
    [command] = re.findall(r"^\t.*mlx_grpo_kit lab(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command == " $(ARGS)"
    assert f"/{LAB_FOLDER}/" in (ROOT / ".gitignore").read_text().splitlines()


class TestLock:
    def test_it_pins_one_exact_version_of_each_package(self):
        for name, requirement in LOCK.items():
            [pin] = requirement.specifier
            assert pin.operator == "==", name
            assert requirement.url is None, name
            assert Version(pin.version).local is None, f"{name}: a local tag such as +cpu fits one machine only"

    @every("requirement", EVERYTHING.values(), ids=str)
    def test_it_holds_what_pyproject_asks_for(self, requirement):
        [pin] = LOCK[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement} is not met by the lock's {pin}"

    def test_mlx_and_its_linux_half_are_one_version(self):
        assert LOCK["mlx"].specifier == LOCK["mlx-cpu"].specifier

    def test_it_brings_no_cuda(self):
        assert not [name for name in LOCK if name.startswith(("nvidia", "cuda", "triton", "mlx-cuda"))]


class TestConda:
    def test_it_names_every_package_of_the_course(self):
        missing = {name for name, _ in COURSE} | {"pytest", "nbval"}
        assert not missing - {name for name, _ in CONDA}

    @every("key", CONDA, ids=str)
    def test_it_asks_for_the_same_versions_as_pyproject(self, key):
        assert CONDA[key].specifier == EVERYTHING[key].specifier
        assert CONDA[key].extras == EVERYTHING[key].extras

    def test_it_names_one_python_for_binder(self):
        """repo2docker takes no range: it would build for its own default, which is older, and then replace it."""
        [python] = [line for line in FROM_CONDA if line.startswith("python")]
        [version] = re.fullmatch(r"python=(3\.\d+)", python).groups()
        assert SpecifierSet(PROJECT["requires-python"]).contains(version)

    def test_the_guide_installs_in_colab_what_the_course_asks_for_and_colab_lacks(self):
        guide = (ROOT / "mlx_grpo_kit/course/guides/cloud.md").read_text()
        lines = re.findall(r"^!pip install -q (\".*\")$", guide, re.MULTILINE)
        wanted = [Requirement(each) for line in lines for each in re.findall(r'"(.*?)"', line)]
        for each in wanted:
            [ours] = {r.specifier for (name, _), r in COURSE.items() if name == canonicalize_name(each.name)}
            assert each.specifier == ours
        there = {"ipykernel", "jupyterlab", "matplotlib", "numpy", "packaging", "rich", "scikit-learn", "scipy"}
        there |= {"threadpoolctl", "torch"}  # with scikit-learn; and Colab's own torch stays
        course = requirements(PROJECT["dependencies"] + EXTRAS["torch"] + EXTRAS["course"])
        assert {name for name, _ in course} - there == {canonicalize_name(each.name) for each in wanted}

    def test_mlx_and_torch_come_from_pypi(self):
        from_pypi = {name for name, _ in requirements(line for line in FROM_PIP if not line.startswith("-"))}
        assert {"mlx", "torch"} <= from_pypi
        assert "-e ." in FROM_PIP


def brought_by_the_course():
    """The distributions that `pip install mlx_grpo_kit[course]` brings, at any depth."""
    todo, found = [(KIT, ""), (KIT, "course")], set()
    while todo:
        name, extra = each = todo.pop()
        if each in found:
            continue
        found.add(each)
        if name == KIT:
            lines = EXTRAS[extra] if extra else PROJECT["dependencies"]
        else:
            lines = next((each.requires or [] for each in metadata.distributions(name=name)), [])
        for wanted in map(Requirement, lines):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(wanted.name), more) for more in ("", *wanted.extras)]
    return {name for name, _ in found} - {KIT}


class TestImports:
    """`make lab` installs the extra `course` alone, and this environment has the packages of the tests too."""

    def run(self, folder, brought):
        """Run all imports with an environment of links to the files of these distributions."""
        for distribution in filter(lambda each: canonicalize_name(each.name) in brought, metadata.distributions()):
            for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (folder / name).is_symlink():
                    (folder / name).symlink_to(distribution.locate_file(name))
        path = os.pathsep.join(map(str, (ROOT, folder)))
        command = [sys.executable, "-S", str(ROOT / "tests" / "lab_imports.py")]  # -S: without this environment
        return subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=280
        )

    def test_the_course_brings_all_that_notebooks_and_the_kit_import(self, tmp_path):
        done = self.run(tmp_path, brought_by_the_course())
        assert done.returncode == 0, done.stderr
        assert not list(tmp_path.glob("pytest*"))

    def test_a_package_that_the_course_does_not_bring_is_named_with_its_notebooks(self, tmp_path):
        done = self.run(tmp_path, brought_by_the_course() - {"transformers", "trio"})
        assert done.returncode == 1
        for notebook, package in (
            ("10_", "transformers"),
            ("12_", "transformers"),
            ("17_", "transformers"),
            ("22_", "trio"),
        ):
            lines = [line for line in done.stderr.splitlines() if line.startswith(f"notebooks/{notebook}")]
            assert lines
            assert all(f"No module named '{package}'" in line for line in lines)

    def test_what_may_be_missing_is_skipped_by_chapter_22_or_named_by_an_error(self):
        skipped = {name.partition(".")[0] for names in parts.PACKAGES.values() for name in names}
        assert skipped - {"torch", "mlx"} < lab_imports.OPTIONAL
        for name in lab_imports.OPTIONAL - {"math_verify"}:
            assert EXTRA_OF[name] == ("gym" if name == "reasoning_gym" else "backends")

    def test_make_looks_before_it_installs_the_packages_of_the_tests(self, tmp_path):
        commands = make("--dry-run", "--always-make", ".venv/dev.done", cwd=ROOT).stdout
        assert commands.index(".[course]") < commands.index("tests/lab_imports.py") < commands.index(".[dev]")


class TestMarkers:
    def names(self, platform, lines):
        environment = {"sys_platform": platform, "extra": ""}
        chosen = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate(environment)]
        return {r.name + (f"[{','.join(r.extras)}]" if r.extras else "") for r in chosen}

    def test_macos_gets_metal_and_linux_the_cpu_wheel(self):
        assert "mlx" in self.names("darwin", PROJECT["dependencies"])
        assert "mlx[cpu]" not in self.names("darwin", PROJECT["dependencies"])
        assert "mlx[cpu]" in self.names("linux", PROJECT["dependencies"])

    def test_cuda_is_for_linux_alone(self):
        assert self.names("linux", EXTRAS["cuda"]) == {"mlx[cuda13]"}
        assert self.names("darwin", EXTRAS["cuda"]) == set()


def make(*arguments, cwd):
    """Run make as if from a shell, also where make itself runs these tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
class TestMake:
    @pytest.fixture
    def checkout(self, tmp_path):
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, tmp_path)
        return tmp_path

    def test_help_is_the_default_and_lists_every_command(self):
        shown = make(cwd=ROOT).stdout
        for command in ("lab", "train", "real", "test", "unit", "bench", "lint", "notebooks", "docs", "help"):
            assert re.search(rf"^ *make {command} ", shown, re.MULTILINE), shown

    def test_no_python_that_fits_is_one_clear_error(self, checkout):
        old = checkout / "python-old"
        old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
        old.chmod(0o755)
        result = make("lab", f"PYTHON={old}", cwd=checkout)
        assert result.returncode != 0
        assert "No Python from 3.11 to 3.14" in result.stderr
        assert f"{old} is Python 3.9.2" in result.stderr
        assert "make lab PYTHON=" in result.stderr
        assert not (checkout / ".venv").exists()

    def test_a_second_run_installs_nothing(self, checkout):
        (checkout / ".venv/bin").mkdir(parents=True)
        (checkout / ".venv/bin/python").symlink_to("/bin/false")
        for stamp in ("lab.done", "dev.done"):
            (checkout / ".venv" / stamp).touch()
        commands = make("--dry-run", "unit", cwd=checkout).stdout
        assert "pytest" in commands
        assert "pip" not in commands

        later = time.time() + 60
        os.utime(checkout / "requirements.lock", (later, later))
        commands = make("--dry-run", "unit", cwd=checkout).stdout
        assert commands.index("install -c requirements.lock") < commands.index("-m pytest")

    def test_every_test_of_the_core_is_there(self):
        """One that is left out too: a `--deselect` of a test that was renamed would have no effect."""
        for line in re.findall("^(?!-k).+", (ROOT / "tests/core.txt").read_text(), re.MULTILINE):
            file, *names = line.removeprefix("--deselect=").partition("[")[0].split("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert all(re.search(rf"\b(def|class) {name}\b", text) for name in names), line

    def test_a_failing_test_run_fails_make(self, checkout):
        (checkout / ".venv/bin").mkdir(parents=True)
        (checkout / ".venv/bin/python").symlink_to("/bin/false")
        for stamp in ("lab.done", "dev.done"):
            (checkout / ".venv" / stamp).touch()
        for command in ("test", "unit", "bench", "lint", "train", "lab"):
            assert make(command, cwd=checkout).returncode != 0, command
