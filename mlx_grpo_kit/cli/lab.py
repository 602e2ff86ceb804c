"""`mlx_grpo_kit lab [FOLDER]`: copy the course to a folder, check this machine, and open JupyterLab there."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from mlx_grpo_kit.cli.terminal import say
from mlx_grpo_kit.files import MANIFEST, read_file, read_manifest, write_file
from mlx_grpo_kit.files.manifest import sha256_of
from mlx_grpo_kit.runtime.extras import install

COURSE = Path(__file__).parents[1] / "course" / "notebooks"
FIRST = "00_start_here.ipynb"
# JupyterLab does not fetch news, look for updates, or ask for permission to do so. Widgets talk to the kernel without
# subshells: after a page reload JupyterLab deletes the subshell that a widget still uses.
SETTINGS = Path(__file__).with_name("jupyter")


def copy_course(folder: Path) -> list[str]:
    """Copy the notebooks to `folder`; return the names of existing ones that differ and were kept.

    A notebook is replaced only if it is unchanged since an earlier call. The hashes are in mlx_grpo_kit.json.

    Raises:
        FileNotFoundError: this installation has no notebooks.
        FileExistsError: the kit wrote something else to `folder`, such as a model.
        OSError: `folder` cannot be written.
        ValueError: its mlx_grpo_kit.json cannot be read.
    """
    notebooks = sorted(COURSE.glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(f"{COURSE} has no notebooks. The kit comes with them; install it again.")
    if folder.exists() and folder.samefile(COURSE):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    written = read_manifest(folder) or {}
    if others := [name for name in written if not name.endswith(".ipynb")]:
        raise FileExistsError(f"{folder} is a folder that the kit wrote for {others[0]}. Choose another folder.")
    kept = []
    for notebook in notebooks:
        name, copy, newest = notebook.name, folder / notebook.name, sha256_of(notebook)
        there = sha256_of(copy) if os.path.lexists(copy) else None
        if there not in (None, newest, written.get(name)):
            kept.append(name)
            continue
        if there != newest:
            write_file(copy, read_file(notebook))
        written[name] = newest
    write_file(folder / MANIFEST, (json.dumps({"files": written}, indent=2) + "\n").encode())
    return kept


def lab(folder: Path, no_browser: bool = False) -> int:
    """Copy the course, run the doctor, and start JupyterLab in this process. Return 1 if the doctor finds a problem.

    Raises ImportError, which names the extra, if JupyterLab is not installed.
    """
    from mlx_grpo_kit.cli import doctor

    if find_spec("jupyterlab") is None:
        raise ImportError(f"lab needs jupyterlab, which is not installed. Install it: {install('course')}")
    if kept := copy_course(folder):
        say(
            f"These notebooks have your changes and were not replaced: {', '.join(kept)}. "
            "Delete a notebook to get a fresh copy."
        )
    if doctor.main() != 0:
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
    """The environment of JupyterLab: this Python's programs first, and the kit's settings after the user's own."""
    programs = [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    settings = [os.environ.get("JUPYTER_CONFIG_PATH", ""), str(SETTINGS)]
    return os.environ | {
        "PATH": os.pathsep.join(filter(None, programs)),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, settings)),
    }
