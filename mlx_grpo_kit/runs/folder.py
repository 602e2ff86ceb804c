"""The folder of a training run: what it holds, and how a run that was cut off goes on from it.

    DIR/
      run.json                 the settings; a later `--resume` needs nothing else
      metrics.jsonl            one JSON object a step; step 0 is the policy before training
      completions.jsonl        whole groups of each step's completions, with their rewards (record.py)
      reward.png               the curves
      checkpoints/step-000050  the newest two
      policy/                  the trained policy, a Hugging Face folder
      best/                    with --keep-best: the policy that had the highest held-out accuracy

A kill at any moment leaves whole lines, whole checkpoints, and no file that looks like more than it is. Only what a run
wrote is ever deleted: these files beside a run.json that is ours, and folders whose list says so (files/manifest.py).
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
from typing import Any, Protocol

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
    """All that decides what a run does.

    Attributes:
        model: "tiny" or an absolute path.
        args: GRPOConfig's fields.
        log_completions: how many completions of a step are written, whole groups and one at least; 0 or "all".
        task_args: what the task is called with.
        data: the SHA-256 of each file that the task reads problems from, by path.
        chat: whether its problems are put as chats.
        keep_best: whether the policy with the highest held-out accuracy is kept in best/.
        begun: False while what an older run left in the folder is being deleted: nothing there is this run's yet.
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
        """`log_completions` as `RunRecord` has it."""
        return None if self.log_completions == "all" else self.log_completions


class Saveable(Protocol):
    """Anything that has done some steps and can write a checkpoint of itself, as `GRPOTrainer` does."""

    step: int

    def save_checkpoint(self, folder: str | os.PathLike) -> None: ...


class RunFolder:
    """One run's files, this process's own from `with` on. Nothing is written before `begin` or `go_on`.

    So a run that fails to start leaves no trace. Entering raises ValueError or OSError for a folder that cannot be
    written or in which another process trains.
    """

    def __init__(self, path: str | os.PathLike):
        self._given, self._home = path, Path.cwd()
        self.path = Path(path).absolute()  # a task may change the current folder
        self.policy, self.best = self.path / POLICY, self.path / BEST
        self.picture, self.metrics, self.completions = (self.path / name for name in (PICTURE, METRICS, COMPLETIONS))
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}  # metrics.jsonl and completions.jsonl, while the run is ours
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
        raise FileExistsError(f"Another process is training in {self.path} now. Wait for it, or give another folder.")

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()
        self._stack.close()

    def typed(self, path: Path) -> str:
        """A path as a command has it that is typed in the folder where this one was."""
        short = str(path.relative_to(self._home)) if path.is_relative_to(self._home) else str(path)
        return f"./{short}" if short.startswith("-") else short

    def check_free(self, overwrite: bool) -> None:
        """Raises FileExistsError or ValueError when a new run may not be written here."""
        taken = [name for name in (SETTINGS, *FILES, CHECKPOINTS, POLICY, BEST) if os.path.lexists(self.path / name)]
        if taken and SETTINGS not in taken:
            raise FileExistsError(
                f"{self.path} holds {', '.join(taken)} but no {SETTINGS}, so it is not the folder of a run and "
                "nothing in it is touched. Give another folder for --output."
            )
        if taken and not overwrite:
            raise FileExistsError(
                f"{self.path} already holds a run. Add --resume to go on with it, --overwrite to replace it, or give "
                "another folder for --output."
            )
        if taken:
            self.read_settings()
        self.check_ours()

    def check_ours(self) -> None:
        """Raises FileExistsError where something that no run wrote stands in the place of a run's files."""
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
                f"{self.path} holds {shown}, which no run wrote there, so nothing in it is touched. Move that away, or "
                "give another folder for --output."
            )

    def read_settings(self) -> RunSettings:
        """The settings of the run that is here. Raises FileNotFoundError or ValueError where there is none."""
        file = self.path / SETTINGS
        if not os.path.lexists(file):
            raise FileNotFoundError(
                f"{self.path} holds no run to resume (no {SETTINGS}). Leave --resume out to start one."
            )
        try:
            content = read_json(self.path, SETTINGS)
            if content.pop("sha256", None) != _hash(content):
                raise ValueError("its content does not fit its sha256")
            return RunSettings(**content)
        except (ValueError, TypeError) as error:
            message = f"{file} cannot be read ({error}); it was changed by hand or written by another version."
            raise ValueError(message) from error

    def written_at(self) -> int | None:
        """When a run last made the folder its own, in nanoseconds; None where none did."""
        file = self.path / SETTINGS
        return file.stat().st_mtime_ns if file.exists() else None

    def checkpoints(self) -> list[Path]:
        """The checkpoints that are here, good or not, the newest first."""
        numbered = {_step_of(folder): folder for folder in (self.path / CHECKPOINTS).glob("step-*") if _step_of(folder)}
        return [numbered[step] for step in sorted(numbered, reverse=True)]

    def begin(self, settings: RunSettings) -> None:
        """Make the folder a new run's: what another run left here is deleted.

        From the first write on run.json is the new run's; until the last it says that nothing else is, so a kill in
        between leaves no mixture of two runs.
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
        """Make the folder ready for the steps after `step`. Lines of later steps, which are done again, are cut off."""
        self.check_ours()
        if (self.path / CHECKPOINTS).exists():
            clear_leftovers(self.path / CHECKPOINTS)
        if self.best.exists() and self.best_step() > step:
            remove_folder(self.best)  # its step is done again
        for file, read in ((self.metrics, read_metrics), (self.completions, read_completions)):
            write_file(file, b"".join(line for number, line, _ in _whole_lines(file, read) if number <= step))
        self._write_settings(settings)
        self._open_files()
        self._saved_step = step

    @property
    def is_open(self) -> bool:
        """True if this process has made the folder its own."""
        return bool(self._open)

    def append(
        self,
        step: int,
        metrics: Mapping[str, float],
        changes: Mapping[str, Any] | None = None,
        completions: bytes | None = None,
    ) -> None:
        """Add a step: a line to metrics.jsonl and, before it, its line of completions.jsonl, if it has one."""
        for file, line in ((self.completions, completions), (self.metrics, metrics_line(step, metrics, changes))):
            if line is not None:
                end = self._open[file].seek(0, os.SEEK_END)
                with naming(file):
                    if self._open[file].write(line) < len(line):
                        self._open[file].truncate(end)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(self, trainer: Saveable) -> None:
        """Write a checkpoint, unless this step has one, and delete the ones that are no longer needed."""
        if trainer.step != self._saved_step:
            for path, file in self._open.items():
                with naming(path):
                    os.fsync(file.fileno())  # a checkpoint counts on the lines before it
            trainer.save_checkpoint(self.path / CHECKPOINTS / f"step-{trainer.step:06d}")
            self._saved_step = trainer.step
        # Later ones than this are broken ones that --resume passed over.
        older = [folder for folder in self.checkpoints() if _step_of(folder) < trainer.step]
        later = [folder for folder in self.checkpoints() if _step_of(folder) > trainer.step]
        for folder in [*older[CHECKPOINTS_KEPT - 1 :], *later]:
            try:
                remove_folder(folder)
            except FileExistsError as error:
                warnings.warn(f"{folder.name} is kept: {error}", stacklevel=2)

    def measured(self) -> list[tuple[int, float]]:
        """(step, accuracy on held-out problems) where it was measured."""
        return self.points("eval/accuracy")

    def best_step(self) -> int:
        """The step after which accuracy was highest, the first of them; 0 is the model before training."""
        return max(self.measured(), key=lambda point: point[1], default=(0, 0.0))[0]

    def points(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) for each line of metrics.jsonl that has one."""
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
    """Raises ValueError or an OSError where no folder could be written as `output`. Leaves nothing behind."""
    if not os.fspath(output):
        raise ValueError("--output is empty; expected the name of a folder.")
    path = Path(output)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"--output {str(path)!r} is not UTF-8, and MLX opens no other names.") from None
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; expected a folder for --output, or a free name.")
    place = next(folder for folder in [path, *path.absolute().parents] if folder.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        message = f"Cannot write --output {path}: {error.strerror} ({place}). Give another folder."
        raise PermissionError(message) from error


def _whole_lines(file: Path, read: Callable[[bytes], tuple[int, Any]]) -> Iterator[tuple[int, bytes, Any]]:
    """The lines of a file, as `read_lines` has them, with a warning for each that cannot be read."""
    if file.exists():
        damaged: list[str] = []
        yield from read_lines(file, read, damaged)
        for words in damaged:
            warnings.warn(words, stacklevel=2)


def _step_of(checkpoint: Path) -> int | None:
    found = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def _not_a_checkpoint(entry: Path) -> list[str]:
    """The content of an entry of checkpoints/ that no run wrote."""
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
