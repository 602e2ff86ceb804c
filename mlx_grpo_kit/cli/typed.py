"""Commands to type: how to continue a run, for the shell and the folder in which the kit was called."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mlx_grpo_kit.runs.folder import RunFolder


def way_on(folder: RunFolder, together: Sequence[object], begun: bool) -> str:
    """The command that resumes a run, if the run has begun."""
    if not begun:
        return "Nothing was written."
    if not (checkpoints := folder.checkpoints()):
        return f"There is no checkpoint in {folder.path} yet; use --overwrite to start again."
    return f"Go on from {checkpoints[0].name}: {train_on(folder, *together)}"


def together(options: argparse.Namespace) -> list[object]:
    """The options of `train` for several processes, as they were given."""
    return ["--processes", options.processes] if options.processes else []


def train_on(folder: RunFolder, *options: object) -> str:
    """The command that resumes a run, with these options, in as many processes of torchrun as now."""
    program = PROGRAM
    if "TORCHELASTIC_RUN_ID" in os.environ:
        python, *kit = PROGRAM
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"]]
        program = [python, *torchrun, *kit]
    return _line(*program, "train", "--output", folder.typed(folder.path), "--resume", *options)


def command_line(*arguments: object) -> str:
    """A command line for the kit, with the same Python or script as now."""
    return _line(*PROGRAM, *arguments)


def _line(*arguments: object) -> str:
    return " ".join(_word(str(argument)) for argument in arguments)


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
