"""A folder is ours when its list says so, file by file. All else in it, and any other folder, is left alone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.files import MANIFEST, check_replaceable, check_saved, read_manifest, remove_folder, replaced_folder


@pytest.fixture
def ours(tmp_path):
    with replaced_folder(tmp_path / "ours") as new:
        (new / "config.json").write_text("{}")
        with replaced_folder(new / "model") as inner:
            (inner / "weights").write_text("1 2 3")
    return tmp_path / "ours"


def thesis(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "thesis.tex").write_text("mine")


def output_of_transformers_trainer(folder: Path) -> None:
    for name in ("config.json", "model.safetensors", "trainer_state.json", "optimizer.pt", "rng_state.pth"):
        (folder / name).write_text("{}")


def git_checkout(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "config.json").write_text("{}")


def downloaded_model(folder: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")


def link(folder: Path) -> None:
    (folder / "data").symlink_to(folder.parent)


@pytest.mark.parametrize("kind", [thesis, output_of_transformers_trainer, git_checkout, downloaded_model, link])
@pytest.mark.parametrize("beside_ours", [False, True])
def test_foreign_folders_stay_as_they_are(kind, beside_ours, ours, tmp_path):
    folder = ours if beside_ours else tmp_path / "theirs"
    folder.mkdir(exist_ok=True)
    kind(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = sorted(os.listdir(folder))
    with pytest.raises(FileExistsError, match=rf"{folder.name} contains .*which the kit did not write") as refused:
        check_replaceable(folder)
    for name in set(names) - {"config.json", "model", MANIFEST}:
        assert name in str(refused.value) or "more, which" in str(refused.value)
    with pytest.raises(FileExistsError), replaced_folder(folder):
        pytest.fail("nothing may be written")
    with pytest.raises(FileExistsError):
        remove_folder(folder)
    assert sorted(os.listdir(folder)) == names
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_four_foreign_names_are_shown_and_the_others_counted(ours):
    for name in "abcdef":
        (ours / name).touch()
    with pytest.raises(FileExistsError, match="contains a, b, c, d and 2 more, which the kit did not write"):
        check_replaceable(ours)


def test_what_is_ours_may_go(ours):
    (ours / "config.json").write_text("changed since")
    (ours / ".DS_Store").write_text("a Mac's")
    check_replaceable(ours)
    remove_folder(ours)
    assert not ours.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"files": ["config.json"]}', '{"files": {"config.json": 1}}'])
def test_a_list_that_cannot_be_read_makes_nothing_ours(ours, damage):
    (ours / MANIFEST).write_text(damage)
    with pytest.raises(
        FileExistsError, match=r"contains config.json, mlx_grpo_kit.json, model/, which the kit did not"
    ):
        check_replaceable(ours)
    with pytest.raises(ValueError, match=r"mlx_grpo_kit.json (is not valid JSON|contains list|lists no files)"):
        check_saved(ours, ["config.json"])


def test_a_link_in_the_place_of_a_file_of_ours_is_not(ours, tmp_path):
    shutil.move(ours / "model", tmp_path / "elsewhere")
    (ours / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="contains model, which"):
        check_replaceable(ours)


def test_reading_finds_what_is_not_as_it_was_saved(ours):
    check_saved(ours, ["config.json", "never_there.json"])
    (ours / "notes.json").write_text("{}")
    with pytest.raises(ValueError, match=r"notes.json came after the rest was saved"):
        check_saved(ours, ["notes.json"])
    (ours / "config.json").write_text("{ }")
    with pytest.raises(ValueError, match=r"config.json is not what was saved"):
        check_saved(ours, ["config.json"])
    (ours / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"ours has lost config.json"):
        check_saved(ours, ["config.json"])
    os.mkfifo(ours / "config.json")
    with pytest.raises(ValueError, match=r"config.json is a pipe or a device"):
        check_saved(ours, ["config.json"])
    (ours / MANIFEST).unlink()
    check_saved(ours, ["config.json"])  # a folder of somebody else's: nothing to compare with


def test_windows_line_endings_are_named_and_another_change_is_not_taken_for_them(tmp_path):
    text, file = b'{\n "a": 1\n}\n\r\r', tmp_path / "ours" / "config.json"
    with replaced_folder(tmp_path / "ours") as new:
        (new / "config.json").write_bytes(text)
        with replaced_folder(new / "model") as inner:
            (inner / "weights").write_bytes(text)
    for path in (file, tmp_path / "ours" / "model" / MANIFEST):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        with pytest.raises(ValueError, match=rf"{path} has Windows line endings \(CRLF\).*autocrlf.*dos2unix"):
            check_saved(tmp_path / "ours", [path.relative_to(tmp_path / "ours").as_posix()])
    crlf = text.replace(b"\n", b"\r\n")
    for changed in (crlf.replace(b"1", b"2"), crlf + b"\r\n", crlf[:-1], text.replace(b"\n", b"\r")):
        file.write_bytes(changed)
        with pytest.raises(ValueError, match="is not what was saved"):
            check_saved(tmp_path / "ours", ["config.json"])


@pytest.mark.parametrize("conversion", ["core.autocrlf=true", "core.eol=crlf", "core.autocrlf=input"])
def test_git_converts_no_line_ending_of_a_shipped_model(conversion, tmp_path):
    """Git for Windows converts by default: neither what is checked out nor what is committed may change."""
    git = ["git", "-C", tmp_path, "-c", conversion, "-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(Path(__file__).parents[2] / ".gitattributes", tmp_path)
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny" / "windows.txt").write_bytes(b"a\r\nb\n")
    for command in (["add", "."], ["commit", "--quiet", "-m", "all"], ["rm", "-r", "--quiet", "tiny"]):
        subprocess.run([*git, *command], check=True)
    subprocess.run([*git, "checkout", "--quiet", "HEAD", "--", "tiny"], check=True)
    check_saved(tmp_path / "tiny", read_manifest(TINY))
    assert (tmp_path / "tiny" / "windows.txt").read_bytes() == b"a\r\nb\n"


@pytest.fixture
def nested(tmp_path):
    with replaced_folder(tmp_path / "nested") as new:
        (new / "static" / "fonts").mkdir(parents=True)
        (new / "static" / "fonts" / "a.woff").write_text("a")
        with replaced_folder(new / "static" / "listed") as inner:
            (inner / "b.css").write_text("b")
    return tmp_path / "nested"


def test_a_folder_without_a_list_is_in_the_list_of_the_one_around_it(nested):
    check_saved(nested, ["static/fonts/a.woff", f"static/listed/{MANIFEST}"])
    (nested / "static" / "fonts" / ".DS_Store").write_text("a Mac's")
    check_replaceable(nested)
    remove_folder(nested)
    assert not nested.exists()


@pytest.mark.parametrize("place", ["static/mine", "static/fonts/mine", "static/listed/mine", "static/mine/"])
def test_a_file_of_somebody_s_deep_in_a_folder_of_ours(place, nested):
    (nested / place).mkdir() if place.endswith("/") else (nested / place).write_text("mine")
    with pytest.raises(FileExistsError, match=f"contains {place}, which the kit did not write"):
        remove_folder(nested)
    assert (nested / place).exists()
    assert (nested / "static" / "fonts" / "a.woff").exists()
