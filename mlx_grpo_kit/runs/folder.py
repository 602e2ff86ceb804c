"""The folder of a training run: its files, and resuming an interrupted run from them.

    DIR/
      run.json                 the settings; a later `--resume` needs nothing else
      metrics.jsonl            one JSON object per step; step 0 is the policy before training
      completions.jsonl        whole groups of each step's completions, with their rewards (record.py)
      reward.png               the curves
      checkpoints/step-000050  the newest two
      policy/                  the trained policy, a Hugging Face folder
      best/                    with --keep-best: the policy with the highest held-out accuracy

Even if the process is killed, lines and checkpoints are complete, and an unfinished file never looks finished. Only
files that a run wrote are ever deleted: the files above, next to a valid run.json, and folders with a list of their
files (files/manifest.py).
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import (
    clear_leftovers,
    foreign,
    is_scratch,
    locked,
    naming,
    read_json,
    remove_folder,
    write_file,
)
from mlx_grpo_kit.runs.record import (
    COMPLETIONS,
    KEEP,
    METRICS,
    metrics_line,
    read_completions,
    read_lines,
    read_metrics,
)

SETTINGS, PICTURE, CHECKPOINTS, POLICY, BEST = "run.json", "reward.png", "checkpoints", "policy", "best"
FILES = METRICS, COMPLETIONS, PICTURE
CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run.

    Attributes:
        model: "tiny" or an absolute path.
        args: the fields of GRPOConfig.
        log_completions: the number of completions per step to write, rounded to whole groups, at least one; 0 or "all".
        task_args: the arguments of the task.
        data: the SHA-256 of each file that the task reads problems from, by path.
        chat: True if problems are asked as chats.
        keep_best: True to keep the policy with the highest held-out accuracy in best/.
        begun: False while the files of an older run are being deleted. Until then, none of them belongs to this run.
    """

    model: str
    task: str
    max_steps: int
    save_every: int
    eval_every: int
    eval_problems: int
    args: dict[str, Any]
    begun: bool = True
    log_completions: int | str = KEEP
    task_args: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    chat: bool = False
    keep_best: bool = False

    def measures_after(self, step: int) -> bool:
        """True if accuracy is measured after this step."""
        return step % self.eval_every == 0 or step == self.max_steps

    @property
    def keep(self) -> int | None:
        """`log_completions` as the argument `keep` of `RunRecord`."""
        return None if self.log_completions == "all" else self.log_completions


class RunFolder:
    """The files of one run, locked for this process by `with`. Nothing is written before `begin` or `go_on`.

    A run that fails to start therefore leaves no trace. `with` raises ValueError or OSError if the folder cannot be
    written, or if another process is training in it.
    """

    def __init__(self, path: str | os.PathLike):
        self._given, self._home = path, Path.cwd()
        self.path = Path(path).absolute()  # a task may change the current folder
        self.policy, self.best = self.path / POLICY, self.path / BEST
        self.picture, self.metrics, self.completions = (self.path / name for name in (PICTURE, METRICS, COMPLETIONS))
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}  # metrics.jsonl and completions.jsonl, while this process owns the run
        self._saved_step: int | None = None

    def __enter__(self) -> RunFolder:
        check_writable(self._given)
        with ExitStack() as stack:
            for _ in range(100):
                made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
                self.path.mkdir(parents=True, exist_ok=True)
                if stack.enter_context(locked(self.path)):
                    for folder in reversed(made):
                        stack.callback(_remove_empty, folder)
                    self._stack = stack.pop_all()
                    return self
                if self.path.exists():
                    break
        raise FileExistsError(f"Another process is training in {self.path} now. Wait for it, or choose another folder.")

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()
        self._stack.close()

    def typed(self, path: Path) -> str:
        """Return a path as the user types it in the folder where this command was started."""
        short = str(path.relative_to(self._home)) if path.is_relative_to(self._home) else str(path)
        return f"./{short}" if short.startswith("-") else short

    def check_free(self, overwrite: bool) -> None:
        """Raise FileExistsError or ValueError if a new run must not be written here."""
        taken = [name for name in (SETTINGS, *FILES, CHECKPOINTS, POLICY, BEST) if os.path.lexists(self.path / name)]
        if taken and SETTINGS not in taken:
            raise FileExistsError(
                f"{self.path} contains {', '.join(taken)} but no {SETTINGS}, so it is not the folder of a run, and "
                "nothing in it was changed. Choose another folder for --output."
            )
        if taken and not overwrite:
            raise FileExistsError(
                f"{self.path} already contains a run. Add --resume to continue it, --overwrite to replace it, or "
                "choose another folder for --output."
            )
        if taken:
            self.read_settings()
        self.check_ours()

    def check_ours(self) -> None:
        """Raise FileExistsError if there is something that no run wrote under the name of a run's file."""
        others = [name for name in FILES if os.path.lexists(self.path / name) and not _is_file(self.path / name)]
        for name in (CHECKPOINTS, POLICY, BEST):
            folder = self.path / name
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                others.append(name)
            elif name != CHECKPOINTS and folder.exists():
                others += [f"{name}/{other}" for other in foreign(folder)]
            elif folder.exists():
                others += [
                    f"{name}/{other}" for entry in sorted(folder.iterdir()) for other in _not_a_checkpoint(entry)
                ]
        if others:
            shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
            raise FileExistsError(
                f"{self.path} contains {shown}, which no run wrote, so nothing in it was changed. Move that away, or "
                "choose another folder for --output."
            )

    def read_settings(self) -> RunSettings:
        """Read the settings of the run in this folder. Raises FileNotFoundError or ValueError if there is none."""
        file = self.path / SETTINGS
        if not os.path.lexists(file):
            raise FileNotFoundError(
                f"{self.path} contains no run to resume (no {SETTINGS}). Leave --resume out to start one."
            )
        try:
            content = read_json(self.path, SETTINGS)
            if content.pop("sha256", None) != _hash(content):
                raise ValueError("its content does not match its sha256")
            return RunSettings(**content)
        except (ValueError, TypeError) as error:
            message = f"{file} cannot be read ({error}); it was changed by hand or written by another version."
            raise ValueError(message) from error

    def written_at(self) -> int | None:
        """Return the time when a run last took over the folder, in nanoseconds; None if none did."""
        file = self.path / SETTINGS
        return file.stat().st_mtime_ns if file.exists() else None

    def checkpoints(self) -> list[Path]:
        """List the checkpoints in this folder, valid or not, newest first."""
        numbered = {_step_of(folder): folder for folder in (self.path / CHECKPOINTS).glob("step-*") if _step_of(folder)}
        return [numbered[step] for step in sorted(numbered, reverse=True)]

    def begin(self, settings: RunSettings) -> None:
        """Take over the folder for a new run, and delete the files of an older one.

        The first write replaces run.json, which then says that no other file belongs to the new run. This changes once
        all older files are deleted, so a kill in between cannot mix two runs.
        """
        self.check_ours()
        self._write_settings(replace(settings, begun=False))
        if (self.path / CHECKPOINTS).exists():
            clear_leftovers(self.path / CHECKPOINTS)
            for folder in self.checkpoints():
                remove_folder(folder)
        for folder in (self.policy, self.best):
            if folder.exists():
                remove_folder(folder)
        self.picture.unlink(missing_ok=True)
        write_file(self.completions, b"")
        write_file(self.metrics, b"")
        self._write_settings(replace(settings, begun=True))
        self._open_files()

    def go_on(self, settings: RunSettings, step: int) -> None:
        """Prepare the folder for the steps after `step`: remove the lines of later steps, which will be repeated."""
        self.check_ours()
        if (self.path / CHECKPOINTS).exists():
            clear_leftovers(self.path / CHECKPOINTS)
        if self.best.exists() and self.best_point()[0] > step:
            remove_folder(self.best)  # the step that it belongs to will be repeated
        for file, read in ((self.metrics, read_metrics), (self.completions, read_completions)):
            write_file(file, b"".join(line for number, line, _ in _whole_lines(file, read) if number <= step))
        self._write_settings(settings)
        self._open_files()
        self._saved_step = step

    @property
    def is_open(self) -> bool:
        """True if this process has taken over the folder."""
        return bool(self._open)

    def append(
        self,
        step: int,
        metrics: Mapping[str, float],
        changes: Mapping[str, Any] | None = None,
        completions: bytes | None = None,
    ) -> None:
        """Add a step: first its line of completions.jsonl, if it has one, then a line of metrics.jsonl."""
        for file, line in ((self.completions, completions), (self.metrics, metrics_line(step, metrics, changes))):
            if line is not None:
                end = self._open[file].seek(0, os.SEEK_END)
                with naming(file):
                    if self._open[file].write(line) < len(line):
                        self._open[file].truncate(end)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(self, trainer: Any) -> None:
        """Write the trainer's checkpoint, unless this step has one, and delete those that are no longer needed."""
        if trainer.step != self._saved_step:
            for path, file in self._open.items():
                with naming(path):
                    os.fsync(file.fileno())  # a checkpoint relies on the lines before it
            trainer.save_checkpoint(self.path / CHECKPOINTS / f"step-{trainer.step:06d}")
            self._saved_step = trainer.step
        # Checkpoints of later steps are damaged ones that --resume skipped.
        older = [folder for folder in self.checkpoints() if _step_of(folder) < trainer.step]
        later = [folder for folder in self.checkpoints() if _step_of(folder) > trainer.step]
        for folder in [*older[CHECKPOINTS_KEPT - 1 :], *later]:
            try:
                remove_folder(folder)
            except FileExistsError as error:
                warnings.warn(f"{folder.name} is kept: {error}", stacklevel=2)

    def measured(self) -> list[tuple[int, float]]:
        """List (step, accuracy on held-out problems) for each measurement."""
        return self.points("eval/accuracy")

    def best_point(self) -> tuple[int, float]:
        """Return (step, accuracy) of the first step with the highest accuracy; step 0 is the model before training."""
        return max(self.measured(), key=lambda point: point[1], default=(0, math.nan))

    def points(self, metric: str) -> list[tuple[int, float]]:
        """List (step, value) for each line of metrics.jsonl that has a finite value."""
        found = (
            (step, metrics.get(metric, math.nan)) for step, _, (metrics, _) in _whole_lines(self.metrics, read_metrics)
        )
        return [(step, value) for step, value in found if math.isfinite(value)]

    def _open_files(self) -> None:
        self._open = {file: file.open("ab", buffering=0) for file in (self.metrics, self.completions)}

    def _write_settings(self, settings: RunSettings) -> None:
        content = asdict(settings)
        text = json.dumps(content | {"sha256": _hash(content)}, indent=2)
        write_file(self.path / SETTINGS, f"{text}\n".encode())


def check_writable(output: str | os.PathLike) -> None:
    """Raise ValueError or OSError if `output` cannot be written, without creating anything that stays."""
    if not os.fspath(output):
        raise ValueError("--output is empty; expected the name of a folder.")
    path = Path(output)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"--output {str(path)!r} is not UTF-8, and MLX cannot open other names.") from None
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; expected a folder for --output, or a new name.")
    place = next(folder for folder in [path, *path.absolute().parents] if folder.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        message = f"Cannot write --output {path}: {error.strerror} ({place}). Choose another folder."
        raise PermissionError(message) from error


def _whole_lines(file: Path, read: Callable[[bytes], tuple[int, Any]]) -> Iterator[tuple[int, bytes, Any]]:
    """Yield the lines of a file like `read_lines`, with a warning for each line that cannot be read."""
    if file.exists():
        damaged: list[str] = []
        yield from read_lines(file, read, damaged)
        for words in damaged:
            warnings.warn(words, stacklevel=2)


def _step_of(checkpoint: Path) -> int | None:
    found = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def _not_a_checkpoint(entry: Path) -> list[str]:
    """List the paths in an entry of checkpoints/ that no run wrote."""
    if entry.is_symlink() or not entry.is_dir():
        return [entry.name]
    if is_scratch(entry):
        return []
    return [f"{entry.name}/{name}" for name in foreign(entry)] if _step_of(entry) else [f"{entry.name}/"]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
