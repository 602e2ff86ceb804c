"""`mlx_grpo_kit lab [FOLDER]`: copy the course to a folder, check this machine, and open JupyterLab there."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from mlx_grpo_kit import __version__
from mlx_grpo_kit.cli.terminal import say
from mlx_grpo_kit.cli.typed import command_line
from mlx_grpo_kit.files import MANIFEST, free_name, read_file, read_json, read_manifest, write_file
from mlx_grpo_kit.files.manifest import sha256_of
from mlx_grpo_kit.runtime.extras import install

COURSE = Path(__file__).parents[1] / "course" / "notebooks"
FIRST = "00_start_here.ipynb"
EARLIER = "earlier"  # the subfolder for notebooks of other versions that were replaced
# JupyterLab does not fetch news, look for updates, or ask for permission to do so. Widgets talk to the kernel without
# subshells: after a page reload JupyterLab deletes the subshell that a widget still uses.
SETTINGS = Path(__file__).with_name("jupyter")


@dataclass
class Copied:
    """The result of `copy_course`, as names of notebooks.

    Attributes:
        written: notebooks of this version that were missing or out of date.
        moved: old notebooks that are in the folder EARLIER now.
        outdated: notebooks of another version that stayed because a reader changed them, each with that version.
    """

    written: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    outdated: dict[str, str] = field(default_factory=dict)


def copy_course(folder: Path, fresh: bool = False) -> Copied:
    """Copy the notebooks to `folder`, or bring those in it up to date. Nothing that a reader wrote is lost.

    mlx_grpo_kit.json in the folder records the edition that each notebook was copied from: the hash of the file, the
    hash of its cells, and the version of the kit. A notebook of this edition stays as it is. An older one is replaced
    if it is untouched. If a reader has only run it, it moves to the folder EARLIER. If a reader has changed a cell, it
    stays, unless `fresh` is True: then it moves too.

    Raises:
        FileNotFoundError: this installation has no notebooks.
        FileExistsError: the kit wrote something else to `folder`, such as a model.
        OSError: `folder` cannot be written.
        ValueError: its mlx_grpo_kit.json cannot be read.
    """
    shipped = {path.name: path for path in COURSE.glob("*.ipynb")}
    if not shipped:
        raise FileNotFoundError(f"{COURSE} has no notebooks. The kit comes with them; install it again.")
    done = Copied()
    if folder.exists() and folder.samefile(COURSE):
        return done
    folder.mkdir(parents=True, exist_ok=True)
    try:
        hashes = read_manifest(folder) or {}
    except ValueError as error:
        raise ValueError(
            f"{error} Or delete it: then every notebook that differs from the one of this version is kept."
        ) from error
    if others := [name for name in hashes if not name.endswith(".ipynb") or name != Path(name).name]:
        raise FileExistsError(f"{folder} is a folder that the kit wrote for {others[0]}. Choose another folder.")
    editions = _editions(folder) if hashes else {}
    for name in sorted(shipped.keys() | hashes.keys()):
        copy, newest, before = folder / name, shipped.get(name), editions.pop(name, {})
        edition = {"version": __version__, "cells": _cells(newest)} if newest else {}
        same_edition = False
        if os.path.lexists(copy):
            there, cells = sha256_of(copy), _cells(copy)
            untouched, only_run = there == hashes.get(name), cells == before.get("cells")
            if newest:
                bytes_agree = sha256_of(newest) in (there, hashes.get(name))
                same_edition = bytes_agree or edition["cells"] in (cells, before.get("cells"))
            if not (same_edition or untouched or only_run or fresh):
                done.outdated[name] = before.get("version", "an earlier version")
                editions[name] = before
                continue
            if not same_edition and not (untouched and newest):
                (folder / EARLIER).mkdir(exist_ok=True)
                copy.rename(free_name(folder / EARLIER, copy.stem, copy.suffix))
                done.moved.append(name)
        if not newest:
            hashes.pop(name)  # it is not in the course of this version
            continue
        if not same_edition:
            write_file(copy, read_file(newest))
            done.written.append(name)
        hashes[name], editions[name] = sha256_of(newest), edition
    content = {"files": hashes, "editions": editions}
    write_file(folder / MANIFEST, (json.dumps(content, indent=2) + "\n").encode())
    return done


def _editions(folder: Path) -> dict[str, dict[str, str]]:
    """The version and the hash of the cells of each notebook when it was copied; empty if they are not recorded."""
    editions = read_json(folder, MANIFEST).get("editions")
    known = isinstance(editions, dict) and all(isinstance(each, dict) for each in editions.values())
    return editions if known else {}


def _cells(notebook: Path) -> str:
    """The hash of what a reader may have written: text and attachments of all cells, without outputs and metadata."""
    content = notebook.read_bytes()
    try:
        cells = json.loads(content)["cells"]
        written = [[cell["cell_type"], "".join(cell["source"]), cell.get("attachments")] for cell in cells]
        content = json.dumps([cell for cell in written if cell[1].strip()]).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # not a notebook
    return hashlib.sha256(content).hexdigest()


def _report(folder: Path, done: Copied) -> None:
    """Say in the terminal what `copy_course` did."""
    print(f"Your copy of the course is in {folder}.")
    if done.written:
        print(f"Copied from version {__version__}: {_listed(done.written)}.")
    if done.moved:
        print(f"Moved to {folder / EARLIER}, because this version has another edition: {_listed(done.moved)}.")
    if done.outdated:
        names = ", ".join(f"{name} ({version})" for name, version in done.outdated.items())
        say(
            f"These notebooks have your changes, and they were made for another version of the kit than {__version__}: "
            f"{names}. They were not replaced, and their imports may fail. To move them to {folder / EARLIER} and copy "
            f"the current ones: {command_line('lab', folder, '--fresh')}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 6 else f"{len(names)} notebooks"


def _trust(notebooks: list[Path]) -> None:
    """Sign notebooks, as `jupyter trust` does: JupyterLab drops styles and scripts of outputs that nobody signed.

    It is no error if this fails, in a home that is read-only for example: running a cell has the same effect.
    """
    if find_spec("nbformat") is None:
        return
    import nbformat
    from nbformat.sign import NotebookNotary

    with suppress(OSError, ValueError):
        notary = NotebookNotary()
        for notebook in notebooks:
            notary.sign(nbformat.read(notebook, as_version=4))


def run(options: argparse.Namespace) -> int:
    """Copy the course, run the doctor, and start JupyterLab in this process. Return 1 if the doctor finds a problem.

    With --copy-only, and inside a JupyterHub, the course is copied and nothing is started: a second server there would
    have an address that no browser outside reaches.

    Raises ImportError, which names the extra, if JupyterLab is needed and not installed.
    """
    from mlx_grpo_kit.cli import doctor

    folder, no_browser, copy_only = Path(options.folder), options.no_browser, options.copy_only
    hub = any(name.startswith("JUPYTERHUB_") for name in os.environ)
    if not (copy_only or hub) and find_spec("jupyterlab") is None:
        raise ImportError(f"lab needs jupyterlab, which is not installed. Install it: {install('course')}")
    done = copy_course(folder, options.fresh)
    _trust([folder / name for name in done.written])
    _report(folder, done)
    if copy_only or hub:
        if hub:
            print("This is a JupyterHub, whose JupyterLab is already open, so no other one was started.")
        print(f"Open {folder / FIRST} in JupyterLab's file browser.")
        return 0
    if doctor.run() != 0:
        return 1
    folder = folder.resolve()
    root = Path.cwd() if folder.is_relative_to(Path.cwd()) else folder
    first = (folder / FIRST).relative_to(root).as_posix()
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", "--Application.log_level=WARN"]
    command.append(f"--LabApp.default_url=/lab/tree/{first}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        no_browser = True
        print("No display here: open the address below in a browser. Ctrl-C stops JupyterLab.")
    if no_browser:
        command.append("--no-browser")
    sys.stdout.flush()
    os.execve(sys.executable, command, _environment())


def _environment() -> dict[str, str]:
    """The environment of JupyterLab: this Python's programs first, the kit's settings after the user's own.

    A notebook may import MLX before the kit, and its kernel has the fast BLAS nevertheless.
    """
    from mlx_grpo_kit.runtime import blas

    programs = [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    settings = [os.environ.get("JUPYTER_CONFIG_PATH", ""), str(SETTINGS)]
    return (
        os.environ
        | blas.preload()
        | {
            "PATH": os.pathsep.join(filter(None, programs)),
            "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, settings)),
        }
    )
