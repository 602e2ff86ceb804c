"""`lab` copies the course, never over a changed notebook, and opens JupyterLab: from a wheel, far from a checkout."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from mlx_grpo_kit import __version__
from mlx_grpo_kit.cli import doctor, lab, main
from mlx_grpo_kit.cli.parser import LAB_FOLDER
from mlx_grpo_kit.files import MANIFEST, read_manifest

ROOT = Path(__file__).parents[2]
TROUBLESHOOTING = ROOT / "mlx_grpo_kit" / "course" / "guides" / "troubleshooting.md"
NOTEBOOKS = {path.name: path.read_bytes() for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small course of two notebooks in the place of the kit's own: a folder whose files a test may change."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name in (lab.FIRST, "01_derivatives.ipynb"):
        (folder / name).write_text(f"{name}, first edition")
    monkeypatch.setattr(lab, "COURSE", folder)
    return folder


@pytest.fixture
def started(monkeypatch):
    """The command line and environment of JupyterLab, which is not started; the doctor finds nothing."""
    seen = {}
    for name in [name for name in os.environ if name.startswith("JUPYTERHUB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(doctor, "run", lambda: 0)
    monkeypatch.setattr(os, "execve", lambda program, command, environment: seen.update(command=command, **environment))
    return seen


def contents(folder):
    return {path.name: path.read_text() for path in folder.glob("*.ipynb")}


def test_a_checkout_has_one_copy_of_the_notebooks():
    assert (ROOT / "notebooks").samefile(lab.COURSE)
    assert len(NOTEBOOKS) > 20


def test_the_course_is_copied_and_a_second_time_changes_nothing(course, tmp_path):
    folder = tmp_path / "a" / "course"
    assert lab.copy_course(folder) == lab.Copied(written=sorted(contents(course)))
    assert contents(folder) == contents(course)
    assert set(read_manifest(folder)) == set(contents(course))
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.ipynb")}
    assert lab.copy_course(folder) == lab.Copied()
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.ipynb")} == before


def test_a_changed_notebook_stays_and_an_unchanged_one_is_brought_up_to_date(course, tmp_path):
    folder = tmp_path / "course"
    lab.copy_course(folder)
    (folder / lab.FIRST).write_text("my answers")
    (folder / "mine.ipynb").write_text("mine")
    assert lab.copy_course(folder) == lab.Copied()  # changed, but of this edition
    for path in course.iterdir():
        path.write_text("second edition")
    for written in ["01_derivatives.ipynb"], []:
        assert lab.copy_course(folder) == lab.Copied(written, outdated={lab.FIRST: __version__})
        assert contents(folder) == {
            lab.FIRST: "my answers",
            "01_derivatives.ipynb": "second edition",
            "mine.ipynb": "mine",
        }
    (folder / lab.FIRST).unlink()  # the way to a fresh copy
    assert lab.copy_course(folder) == lab.Copied([lab.FIRST])
    assert contents(folder)[lab.FIRST] == "second edition"


def test_a_notebook_that_was_there_before_stays(course, tmp_path):
    folder = tmp_path / "course"
    folder.mkdir()
    (folder / lab.FIRST).write_text("somebody's own")
    for _ in range(2):
        assert lab.copy_course(folder).outdated == {lab.FIRST: "an earlier version"}
    assert contents(folder)[lab.FIRST] == "somebody's own"


def test_fresh_moves_changed_notebooks_aside_and_loses_none(course, tmp_path):
    folder = tmp_path / "course"
    for edition in ("first", "second", "third"):
        for path in course.iterdir():
            path.write_text(f"{edition} edition")
        moved = [] if edition == "first" else [lab.FIRST]
        assert lab.copy_course(folder, fresh=True) == lab.Copied(sorted(contents(course)), moved)
        assert contents(folder) == contents(course)
        (folder / lab.FIRST).write_text(f"mine of the {edition} edition")
    kept = contents(folder / lab.EARLIER)
    assert sorted(kept.values()) == ["mine of the first edition", "mine of the second edition"]
    assert sorted(kept) == ["00_start_here.ipynb", "00_start_here2.ipynb"]
    assert lab.copy_course(folder, fresh=True) == lab.Copied()  # of this edition: the reader's work stays in its place


def as_notebook(*sources, output="", **metadata):
    cells = [
        {"cell_type": "code", "source": source.splitlines(keepends=True), "metadata": {}, "outputs": [output]}
        for source in sources
    ]
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


RUN = as_notebook("from kit import old\nold()", "", output="of my run", language_info={"version": "3.12.1"})
CHANGED = as_notebook("from kit import old\nold(2)", output="of my run")


@pytest.mark.parametrize(
    ("reader", "update", "stays", "moves"),
    [
        (RUN, as_notebook("from kit import moved\nmoved()"), False, True),
        (RUN, as_notebook("from kit import old\nold()", output="stored again"), True, False),
        (CHANGED, as_notebook("from kit import moved\nmoved()"), True, False),
        (CHANGED, as_notebook("from kit import old\nold()", output="stored again"), True, False),
        (as_notebook("from kit import moved\nmoved()"), as_notebook("from kit import moved\nmoved()"), True, False),
        ("[1, 2", as_notebook("from kit import moved"), True, False),
        ('{"cells": 3}', as_notebook("from kit import moved"), True, False),
    ],
)
def test_a_notebook_that_was_only_run_is_not_a_changed_one(course, tmp_path, reader, update, stays, moves):
    """A notebook counts as changed by its cells, because Run All and even opening it change the file."""
    folder = tmp_path / "course"
    (course / lab.FIRST).write_text(as_notebook("from kit import old\nold()", output="stored"))
    lab.copy_course(folder)
    (folder / lab.FIRST).write_text(reader)
    (course / lab.FIRST).write_text(update)
    done = lab.copy_course(folder)
    assert contents(folder)[lab.FIRST] == (reader if stays else update)
    assert done.moved == ([lab.FIRST] if moves else [])
    assert contents(folder / lab.EARLIER) == ({lab.FIRST: reader} if moves else {})
    same_cells = json.loads(update)["cells"][0]["source"] == ["from kit import old\n", "old()"] or reader == update
    assert done.outdated == ({lab.FIRST: __version__} if stays and not same_cells else {})


def test_a_notebook_that_left_the_course_moves_aside_unless_a_reader_changed_it(course, tmp_path):
    folder = tmp_path / "course"
    (course / "02_old_name.ipynb").write_text("second chapter")
    lab.copy_course(folder)
    (folder / lab.FIRST).write_text("my answers")
    for name in (lab.FIRST, "02_old_name.ipynb"):
        (course / name).unlink()
    assert lab.copy_course(folder) == lab.Copied(moved=["02_old_name.ipynb"], outdated={lab.FIRST: __version__})
    assert contents(folder / lab.EARLIER) == {"02_old_name.ipynb": "second chapter"}
    assert contents(folder)[lab.FIRST] == "my answers"


def test_the_record_of_an_earlier_kit_without_editions_is_understood(course, tmp_path):
    folder = tmp_path / "course"
    lab.copy_course(folder)
    for editions in ({}, {"editions": []}, {"editions": {lab.FIRST: 3}}):
        (folder / MANIFEST).write_text(json.dumps({"files": read_manifest(folder), **editions}))
        (folder / lab.FIRST).write_text("my answers")
        assert lab.copy_course(folder) == lab.Copied()
        (folder / MANIFEST).write_text(json.dumps({"files": read_manifest(folder), **editions}))
        (course / lab.FIRST).write_text(f"the edition after {editions}")
        assert lab.copy_course(folder).outdated == {lab.FIRST: "an earlier version"}
        (folder / lab.FIRST).unlink()
        lab.copy_course(folder)


def test_a_folder_of_a_model_is_refused_and_stays(course, tmp_path, capsys):
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps({"files": {"config.json": "0" * 64}}))
    assert main(["lab", str(folder)]) == 2
    assert f"{folder} is a folder that the kit wrote for config.json. Choose another folder." in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == [MANIFEST]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', "<<<<<<< HEAD"])
def test_a_damaged_record_of_the_copies_names_a_way_out_that_works(course, tmp_path, capsys, content):
    folder = tmp_path / "course"
    lab.copy_course(folder)
    (folder / lab.FIRST).write_text("my answers")
    (folder / MANIFEST).write_text(content)
    assert main(["lab", str(folder)]) == 2
    assert "Or delete it: then every notebook that differs" in capsys.readouterr().err
    (folder / MANIFEST).unlink()
    assert lab.copy_course(folder).outdated == {lab.FIRST: "an earlier version"}
    assert contents(folder)[lab.FIRST] == "my answers"


def test_a_record_that_names_a_file_elsewhere_moves_nothing(course, tmp_path, capsys):
    folder = tmp_path / "course"
    lab.copy_course(folder)
    (tmp_path / "victim.ipynb").write_text("somebody's work")
    record = json.loads((folder / MANIFEST).read_text())
    record["files"]["../victim.ipynb"] = hashlib.sha256(b"somebody's work").hexdigest()
    (folder / MANIFEST).write_text(json.dumps(record))
    assert main(["lab", str(folder), "--copy-only"]) == 2
    assert "../victim.ipynb" in capsys.readouterr().err
    assert (tmp_path / "victim.ipynb").read_text() == "somebody's work"


def test_an_installation_without_notebooks_says_so(course, tmp_path, capsys):
    shutil.rmtree(course)
    assert main(["lab", str(tmp_path / "course")]) == 2
    assert "has no notebooks" in capsys.readouterr().err


def test_jupyterlab_opens_the_first_notebook(course, started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPLAY", ":0")
    main(["lab"])
    assert contents(tmp_path / LAB_FOLDER) == contents(course)
    assert started["command"][:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--LabApp.default_url=/lab/tree/{LAB_FOLDER}/{lab.FIRST}" in started["command"]
    assert f"--ServerApp.root_dir={tmp_path}" in started["command"]
    assert "--no-browser" not in started["command"]
    assert started["PATH"].startswith(os.path.dirname(sys.executable))


def test_the_copies_are_signed_so_that_jupyterlab_shows_their_styles(course, started, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "signatures"))
    (course / lab.FIRST).write_bytes(NOTEBOOKS[lab.FIRST])
    assert main(["lab", str(tmp_path / "course"), "--copy-only"]) == 0
    copy = nbformat.read(tmp_path / "course" / lab.FIRST, as_version=4)
    assert NotebookNotary().check_signature(copy)
    copy.cells[0].source += " changed"
    assert not NotebookNotary().check_signature(copy)


def test_a_folder_elsewhere_is_the_root_and_no_browser_is_passed_on(course, started, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DISPLAY", ":0")
    main(["lab", "../there", "--no-browser"])
    assert f"--ServerApp.root_dir={tmp_path / 'there'}" in started["command"]
    assert f"--LabApp.default_url=/lab/tree/{lab.FIRST}" in started["command"]
    assert "--no-browser" in started["command"]


@pytest.mark.parametrize("name", ["JUPYTERHUB_USER", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_PREFIX", None])
def test_in_a_hub_or_if_asked_lab_only_copies(name, course, started, tmp_path, monkeypatch, capsys):
    """A hub has a JupyterLab open, and a second server would listen where no browser outside reaches it."""
    monkeypatch.setattr(lab, "find_spec", lambda package: None)  # JupyterLab may be in another environment
    if name:
        monkeypatch.setenv(name, "me")
    folder = tmp_path / "course"
    assert main(["lab", str(folder), *([] if name else ["--copy-only"])]) == 0
    assert contents(folder) == contents(course)
    assert started == {}
    shown = capsys.readouterr().out
    assert f"Open {folder / lab.FIRST} in JupyterLab's file browser." in shown
    assert ("This is a JupyterHub" in shown) == bool(name)


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac has a display")
def test_without_a_display_no_browser_is_opened(course, started, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    main(["lab", str(tmp_path / "course")])
    assert "--no-browser" in started["command"]
    assert "open the address below in a browser" in capsys.readouterr().out


def test_the_terminal_says_what_was_done_to_each_notebook(course, started, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "course"
    main(["lab", str(folder)])
    assert (
        f"Your copy of the course is in {folder}.\nCopied from version {__version__}: 00_st" in capsys.readouterr().out
    )
    (folder / lab.FIRST).write_text("mine")
    main(["lab", str(folder)])
    assert "Copied" not in capsys.readouterr().out
    for path in course.iterdir():
        path.write_text("second edition")
    monkeypatch.setattr(lab, "__version__", "9.9")
    main(["lab", str(folder)])
    said = capsys.readouterr()
    assert "Copied from version 9.9: 01_derivatives.ipynb." in said.out
    assert f"another version of the kit than 9.9: {lab.FIRST} ({__version__})." in said.err
    assert f"lab {folder} --fresh" in said.err
    main(["lab", str(folder), "--fresh"])
    said = capsys.readouterr()
    assert f"Moved to {folder / 'earlier'}, because this version has another edition: {lab.FIRST}." in said.out
    assert said.err == ""


def test_jupyterlab_does_not_start_on_a_machine_that_is_broken(course, started, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "run", lambda: 1)
    assert main(["lab", str(tmp_path / "course")]) == 1
    assert started == {}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which the wheel is installed, without the packages that it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    unwanted = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in ("mlx_grpo_kit", "notebooks"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*pip, *build], check=True, timeout=200)
    [wheel] = folder.glob("*.whl")
    target = ["install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel)]
    subprocess.run([*pip, *target], check=True, timeout=100)
    shutil.rmtree(source)
    return wheel, folder / "site"


def test_the_wheel_has_every_notebook_once_and_every_file_of_the_package(installed):
    names = zipfile.ZipFile(installed[0]).namelist()
    assert sorted(name.rpartition("/")[2] for name in names if name.endswith(".ipynb")) == sorted(NOTEBOOKS)
    package = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("py", "js", "css", "md", "json", "safetensors", "png")
        for path in (ROOT / "mlx_grpo_kit").rglob(f"*.{suffix}")
    }
    assert not package - set(names)


def test_the_wheel_opens_the_course_far_from_any_checkout(installed, tmp_path):
    """JupyterLab serves the copied notebooks, by the kit of the wheel, and asks nobody for news."""
    here = tmp_path / "here"
    here.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTERHUB_")} | {
        "PYTHONPATH": str(installed[1]),
        "HOME": str(tmp_path),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
    }
    where = [sys.executable, "-c", "import mlx_grpo_kit; print(mlx_grpo_kit.__file__)"]
    imported = subprocess.run(where, cwd=here, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(imported.strip()).is_relative_to(installed[1])
    command = [sys.executable, "-m", "mlx_grpo_kit", "lab", "my_course", "--no-browser"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=here, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"(http://\S+?)/lab/tree/my_course/(\S+)\?token=(\w+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        address, first, token = found.groups()
        assert first == "00_start_here.ipynb"

        def get(path):
            with urllib.request.urlopen(f"{address}/{path}?token={token}", timeout=30) as answer:
                return json.load(answer)

        served = get("api/contents/my_course/00_start_here.ipynb")
        assert served["content"]["cells"][0]["source"] == "".join(
            json.loads(NOTEBOOKS["00_start_here.ipynb"])["cells"][0]["source"]
        )
        settings = get("lab/api/settings/@jupyterlab/apputils-extension:notification")
        assert settings["schema"]["properties"]["fetchNews"]["default"] == "false"
        kernels = get("lab/api/settings/@jupyterlab/apputils-extension:kernels-settings")
        comms = kernels["schema"]["properties"]["commsOverSubshells"]
        assert comms["default"] == "disabled"
        # What the guide tells those who start JupyterLab in another way.
        guide = " ".join(TROUBLESHOOTING.read_text(encoding="utf-8").split())
        [off] = [option["title"] for option in comms["oneOf"] if option["const"] == "disabled"]
        assert f"{kernels['schema']['title']}* set *{comms['title']}* to *{off}*" in guide
    finally:
        server.terminate()
        server.wait(30)
    assert {path.name: path.read_bytes() for path in (here / "my_course").glob("*.ipynb")} == NOTEBOOKS
    assert "Everything required works" in log.read_text()
