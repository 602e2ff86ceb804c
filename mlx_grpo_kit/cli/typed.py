"""Commands to type: how to continue a run, for the shell and the folder in which the kit was called."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from mlx_grpo_kit.runs.folder import RunFolder


def way_on(folder: RunFolder, processes: int | None, begun: bool) -> str:
    """The command that resumes a run, if the run has begun."""
    if not begun:
        return "Nothing was written."
    if not (checkpoints := folder.checkpoints()):
        return f"There is no checkpoint in {folder.path} yet; use --overwrite to start again."
    return f"Go on from {checkpoints[0].name}: {command_line(*train_on(folder, processes))}"


def train_on(folder: RunFolder, processes: int | None) -> list[object]:
    again = ["train", "--output", folder.typed(folder.path), "--resume"]
    return [*again, "--processes", processes] if processes else again


def command_line(*arguments: object) -> str:
    """A command line for the kit, with the same Python or script as now."""
    return " ".join(_word(str(argument)) for argument in [*PROGRAM, *arguments])


def _program() -> list[object]:
    if Path(sys.argv[0]).name == "mlx-grpo-kit":
        return ["mlx-grpo-kit" if shutil.which("mlx-grpo-kit") else sys.argv[0]]
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return ["python" if shutil.which("python") == sys.executable else python, "-m", "mlx_grpo_kit"]


PROGRAM = _program()  # computed at import, because a task may change the current folder


def _word(text: str) -> str:
    """One argument as it is typed: on one line, with invisible characters escaped for bash and zsh."""
    if text.isprintable():
        return shlex.quote(text)
    known = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    spelled = (known.get(each) or (each if each.isprintable() else _by_number(each)) for each in text)
    return f"$'{''.join(spelled)}'"


def _by_number(character: str) -> str:
    number = ord(character)
    return f"\\{number:03o}" if number < 128 else f"\\U{number:08x}"
