"""The doctor finds what is broken, and each finding carries the command that repairs it."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.cli import doctor
from mlx_grpo_kit.runtime import extras
from mlx_grpo_kit.runtime.blas import wheel_has_reference_blas
from mlx_grpo_kit.runtime.extras import install

linux_cpu_wheel = pytest.mark.skipif(not wheel_has_reference_blas(), reason="this MLX is not the Linux CPU wheel")

ROOT = Path(__file__).parents[2]
SEEN = {
    "device": "cpu", "device_name": "a CPU", "metal": False, "cuda": False, "blas": "", "blas_reason": "because",
    "needs_blas": True, "cores": 2, "kernels": "/home/somebody/.cache/mlx_grpo_kit", "kernels_reason": "because",
    "gflops": 5.2, "product_error": 1e-6, "compile_error": "", "compiled_kernels": 1,
}  # fmt: skip


def doctor_wheel():
    return "mlx[cpu]" if sys.platform == "linux" else "mlx"


def by_name(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture(scope="module")
def report():
    return doctor.run_doctor()


def test_this_environment_is_healthy(report):
    assert report.healthy, str(report)
    looked_at = {"Python", "Packages", "Models", "Kernel", "MLX device", "BLAS", "mx.compile", "Browser"}
    assert looked_at <= set(by_name(report.findings))


@pytest.mark.skipif(not os.environ.get("CI"), reason="a compiler is not required here; in CI the tests run compiled")
def test_in_ci_there_is_a_compiler(report):
    assert by_name(report.findings)["mx.compile"].state == "ok", str(report)


def test_every_problem_comes_with_a_command_and_nothing_else_does(report):
    for finding in report.findings:
        assert bool(finding.fix) == (finding.state != "ok"), finding


def test_versions_speed_and_library_are_shown(report):
    found = by_name(report.findings)
    for name in ("mlx", "torch", "numpy", "jupyterlab", "ipykernel", "ipywidgets"):
        assert f"{name} {importlib.metadata.version(name)}" in found["Packages"].detail
    assert "GFLOP/s" in found["BLAS"].detail
    assert sys.executable in found["Python"].detail


@pytest.mark.parametrize(("state", "status"), [("ok", 0), ("note", 0), ("broken", 1)])
def test_exit_status_and_printed_text(state, status, monkeypatch, capsys):
    finding = doctor.Finding("Thing [x]", state, "its detail", "" if state == "ok" else "repair --it 'now[all]'")
    monkeypatch.setattr(doctor, "run_doctor", lambda: doctor.Report((finding,)))
    assert doctor.run() == status
    printed = capsys.readouterr().out
    assert "Thing [x]" in printed
    assert ("repair --it 'now[all]'" in printed) == (state != "ok")
    assert ("Everything required works" in printed) == (status == 0)


def test_it_prints_without_rich_too(monkeypatch, capsys):
    report = doctor.Report((doctor.Finding("Thing", "broken", "its detail", "repair it"),))
    monkeypatch.setattr(doctor, "run_doctor", lambda: report)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert doctor.run() == 1
    assert capsys.readouterr().out == str(report) + "\n"


class TestPackages:
    def test_an_old_package(self, monkeypatch):
        version = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda n: "6.31.0" if n == "ipykernel" else version(n))
        found = by_name(doctor._check_packages())["ipykernel"]
        assert found.state == "broken"
        assert "6.31.0" in found.detail
        assert found.fix == f"{sys.executable} -m pip install 'ipykernel>=7.4'"

    def test_a_missing_package(self, monkeypatch):
        version = importlib.metadata.version

        def without_mlx(name):
            if name == "mlx":
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(importlib.metadata, "version", without_mlx)
        found = by_name(doctor._check_packages())["mlx"]
        assert (found.state, found.detail) == ("broken", "is not installed")
        assert "pip install 'mlx" in found.fix

    def test_a_checkout_that_is_not_installed(self, monkeypatch):
        monkeypatch.setattr(doctor, "PACKAGE", "no_such_distribution")
        [found] = doctor._check_packages()
        assert found.state == "broken"
        assert found.fix == install("course")

    def test_the_packages_of_the_tests_are_advised_as_this_installation_can_have_them(self, monkeypatch, tmp_path):
        monkeypatch.setattr(doctor, "OPTIONAL", ())
        assert by_name(doctor._check_packages())["Optional"].detail.endswith(f"-e '{ROOT}[dev]'")
        monkeypatch.setattr(extras, "ROOT", tmp_path)  # a wheel's folder
        assert by_name(doctor._check_packages())["Optional"].detail.endswith(" 'mlx-grpo-kit[dev]'")


def windows_line_endings(root):
    for path in root.rglob("*.json"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def a_cut_off_file(root):
    os.truncate(root / "tiny_chat" / "model-00002-of-00002.safetensors", 1000)


def a_lost_file(root):
    (root / "tiny" / "tokenizer.json").unlink()


def a_lost_folder(root):
    shutil.rmtree(root / "tiny")


class TestModels:
    """Damage in the folders of the models, each with a command that repairs it."""

    @pytest.fixture
    def checkout(self, tmp_path, monkeypatch):
        """A checkout with two models in a folder whose name has a space."""
        root = tmp_path / "my checkout"
        for name in ("tiny", "tiny_chat"):
            shutil.copytree(TINY.parent / name, root / name)
        for command in (["init"], ["add", "."], ["-c", "user.name=me", "-c", "user.email=@", "commit", "-m", "all"]):
            subprocess.run(["git", "-C", root, *command], check=True, capture_output=True)
        monkeypatch.setattr(doctor, "ROOT", root)
        monkeypatch.setattr(doctor, "assets", SimpleNamespace(TINY=root / "tiny", TINY_CHAT=root / "tiny_chat"))
        return root

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (windows_line_endings, "2 of 2 are damaged.*Windows line endings"),
            (a_cut_off_file, "1 of 2 are damaged.*model-00002-of-00002.safetensors is not what was saved"),
            (a_lost_file, "1 of 2 are damaged.*has lost tokenizer.json"),
            (a_lost_folder, "1 of 2 are damaged.*tiny has no mlx_grpo_kit.json"),
        ],
    )
    def test_a_damaged_model_is_named_and_the_command_repairs_it(self, damage, words, checkout):
        assert doctor._check_models().state == "ok"
        damage(checkout)
        found = doctor._check_models()
        assert found.state == "broken"
        assert re.search(words, found.detail)
        subprocess.run(["sh", "-c", found.fix], check=True, capture_output=True)
        assert doctor._check_models().state == "ok"

    def test_in_a_wheel_the_kit_is_installed_again(self, checkout):
        shutil.rmtree(checkout / ".git")
        (checkout / "tiny" / "config.json").unlink()
        assert doctor._check_models().fix.endswith("-m pip install --force-reinstall --no-deps mlx-grpo-kit")


class TestKernel:
    def test_a_kernel_of_another_python(self, tmp_path, monkeypatch):
        folder = tmp_path / "kernels" / "python3"
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text('{"argv": ["/opt/other/bin/python", "-m", "ipykernel_launcher"]}')
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
        found = doctor._check_kernel()
        assert found.state == "broken"
        assert "/opt/other/bin/python" in found.detail
        assert "ipykernel install --sys-prefix" in found.fix

    def test_widgets_without_their_browser_half(self, monkeypatch):
        versions = {"jupyterlab_widgets": "1.1.0"}
        monkeypatch.setattr(doctor, "_version", versions.get)
        found = doctor._check_kernel()
        assert (found.name, found.state) == ("Widgets", "broken")


class TestMLX:
    def fake_mlx(self, folder, monkeypatch, body):
        (folder / "mlx").mkdir()
        (folder / "mlx" / "__init__.py").touch()
        (folder / "mlx" / "core.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    def test_an_mlx_that_does_not_load(self, tmp_path, monkeypatch):
        self.fake_mlx(tmp_path, monkeypatch, "raise ImportError('libmlx.so: cannot open shared object file')")
        [found] = doctor._check_mlx()
        assert found.state == "broken"
        assert "libmlx.so" in found.detail
        assert "pip install --force-reinstall 'mlx" in found.fix

    def test_an_mlx_that_crashes(self, tmp_path, monkeypatch):
        self.fake_mlx(tmp_path, monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
        [found] = doctor._check_mlx()
        assert (found.state, found.detail) == ("broken", "its process ended with -4")

    @linux_cpu_wheel
    def test_the_reference_blas(self, monkeypatch):
        monkeypatch.setenv("MLX_GRPO_KIT_BLAS", "off")
        found = by_name(doctor._check_mlx())["BLAS"]
        assert found.state == "note"
        assert found.fix == "unset MLX_GRPO_KIT_BLAS"

    @linux_cpu_wheel
    def test_a_blas_that_computes_nothing(self, tmp_path, monkeypatch):
        """It is the fastest of all."""
        (tmp_path / "nothing.c").write_text("void sgemm_(void) {} void cblas_sgemm(void) {}")
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", "nothing.so", "nothing.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        monkeypatch.setenv("MLX_GRPO_KIT_BLAS", str(tmp_path / "nothing.so"))
        found = by_name(doctor._check_mlx())["BLAS"]
        assert found.state == "broken"
        assert "nothing.so computes wrong products" in found.detail
        assert found.fix == "export MLX_GRPO_KIT_BLAS=off"

    def test_products_that_are_wrong_or_too_fast_to_be_true(self):
        assert doctor._judge_blas(SEEN | {"blas": "/lib/libfast.so"}).state == "ok"
        for wrong in ({"product_error": 0.01}, {"product_error": float("inf")}, {"gflops": 232_311}):
            assert doctor._judge_blas(SEEN | {"blas": "/lib/libfast.so"} | wrong).state == "broken"
            assert doctor._judge_blas(SEEN | wrong).fix.endswith(f"install --force-reinstall '{doctor_wheel()}'")
        assert doctor._judge_blas(SEEN | {"device": "gpu", "gflops": 232_311}).state == "ok"

    @linux_cpu_wheel
    def test_compiled_functions_are_tried_where_they_are_kept(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        for name in ("TMPDIR", "TMP", "TEMP"):
            monkeypatch.delenv(name, raising=False)
        found = by_name(doctor._check_mlx())["mx.compile"]
        assert (found.state, str(tmp_path / "mlx_grpo_kit") in found.detail) == ("ok", True)
        [kernels] = (tmp_path / "mlx_grpo_kit").iterdir()
        left = [found.name for found in kernels.iterdir() if "relay" not in found.name]  # which serves every process
        assert left == [], "the doctor leaves nothing behind"
        (tmp_path / "mlx_grpo_kit").chmod(0o777)
        found = by_name(doctor._check_mlx())["mx.compile"]
        assert found.state == "note"
        assert "run uncompiled" in found.detail
        assert "is open to other users" in found.detail
        assert found.fix.startswith("export XDG_CACHE_HOME=")

    @linux_cpu_wheel
    def test_no_compiler(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        found = by_name(doctor._check_mlx())["mx.compile"]
        assert found.state == "note"
        assert found.fix.endswith("apt-get install -y g++")

    @linux_cpu_wheel
    def test_a_compiler_that_fails(self, tmp_path, monkeypatch):
        (tmp_path / "g++").write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no C++ headers here; exit 1\n')
        (tmp_path / "g++").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        found = by_name(doctor._check_mlx())["mx.compile"]
        assert found.state == "broken"
        assert "no C++ headers here" in found.detail

    def test_an_nvidia_card_that_is_not_used(self, monkeypatch):
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(doctor.Path, "exists", lambda path: str(path) == "/proc/driver/nvidia/version")
        assert doctor._judge_device(SEEN).fix.endswith("pip install 'mlx[cuda13]'")
        monkeypatch.setattr(doctor, "_version", {"mlx-cuda-13": "0.32.4"}.get)
        assert doctor._judge_device(SEEN).fix.endswith("pip install --force-reinstall --no-deps mlx-cuda-13")
        assert doctor._judge_device(SEEN | {"device": "gpu", "cuda": True}).state == "ok"

    def test_slow_products_are_a_note_only_where_a_faster_blas_would_help(self, monkeypatch):
        monkeypatch.delenv("MLX_GRPO_KIT_BLAS", raising=False)
        assert doctor._judge_blas(SEEN).fix == install("torch")
        assert doctor._judge_blas(SEEN | {"device": "gpu"}).state == "ok"
        assert doctor._judge_blas(SEEN | {"needs_blas": False}).state == "ok"
        assert doctor._judge_blas(SEEN | {"blas": "/lib/libfast.so"}).state == "ok"


@pytest.mark.parametrize(
    ("manager", "user", "expected"),
    [
        ("apt-get", 0, "apt-get install -y g++"),
        ("apt-get", 1000, "sudo apt-get install -y g++"),
        ("dnf", 0, "dnf install -y gcc-c++"),
        ("brew", 501, "brew install gcc"),
        (None, 0, "apt-get install -y g++"),
    ],
)
def test_the_command_is_the_one_of_this_system(manager, user, expected, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}" if name == manager else None)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: user)
    assert doctor.system_install(debian="g++", fedora="gcc-c++", arch="gcc", brew="gcc") == expected


def test_no_browser_is_only_a_note(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.Path, "exists", lambda path: False)
    assert doctor._check_browser().state == "note"
