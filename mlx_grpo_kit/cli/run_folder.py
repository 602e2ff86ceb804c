"""The folder of a training run: what it holds, and how a run that was cut off goes on from it.

    DIR/
      run.json                 the settings; a later `--resume` needs nothing else
      metrics.jsonl            one JSON object a step; step 0 is the policy before training
      reward.png               the curves
      checkpoints/step-000050  the newest two
      policy/                  the trained policy, a Hugging Face folder

A kill at any moment leaves whole lines, whole checkpoints, and no file that looks like more than it is.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo import GRPOTrainer
    from mlx_grpo_kit.tasks import Task

SETTINGS, METRICS, PICTURE, CHECKPOINTS, POLICY = "run.json", "metrics.jsonl", "reward.png", "checkpoints", "policy"
CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class RunSettings:
    """All that decides what a run does. `args` are GRPOConfig's fields; `model` is "tiny" or an absolute path."""

    model: str
    task: str
    max_steps: int
    save_every: int
    eval_every: int
    eval_problems: int
    args: dict[str, Any]


class RunFolder:
    """One run's files. Nothing is written before `open`, so a run that fails to start leaves no trace."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.policy, self.picture, self.metrics = self.path / POLICY, self.path / PICTURE, self.path / METRICS
        self._lines: Any = None  # the open metrics.jsonl, which is also the lock on the folder
        self._saved_step: int | None = None

    def check_free(self, overwrite: bool) -> None:
        """Raises an OSError when a new run may not be written here: another run is here, or nothing can be written."""
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"{self.path} is a file; expected a folder for --output, or a free name.")
        taken = [name for name in (SETTINGS, METRICS, PICTURE, CHECKPOINTS, POLICY) if (self.path / name).exists()]
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
        check_writable(self.path)

    def read_settings(self) -> RunSettings:
        """The settings of the run that is here. Raises FileNotFoundError or ValueError where there is none."""
        file = self.path / SETTINGS
        if not file.is_file():
            raise FileNotFoundError(
                f"{self.path} holds no run to resume (no {SETTINGS}). Leave --resume out to start one."
            )
        try:
            return RunSettings(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            message = f"{file} cannot be read ({error}); it was changed by hand or written by another version."
            raise ValueError(message) from error

    def checkpoints(self) -> list[Path]:
        """The checkpoints that are here, good or not, the newest first."""
        numbered = {_step_of(folder): folder for folder in (self.path / CHECKPOINTS).glob("step-*") if _step_of(folder)}
        return [numbered[step] for step in sorted(numbered, reverse=True)]

    def load_newest(self, task: Task) -> GRPOTrainer | None:
        """The trainer at the newest checkpoint that is whole, with a warning for each newer one that is not.

        None where there are no checkpoints. Raises ValueError when there are some and none can be read.
        """
        from mlx_grpo_kit.grpo import GRPOTrainer

        checkpoints = self.checkpoints()
        for folder in checkpoints:
            try:
                trainer = GRPOTrainer.resume(folder, task)
            except (OSError, ValueError, TypeError) as error:  # TypeError: settings of another version of GRPOConfig
                warnings.warn(f"{folder.name} is passed over: {error}", stacklevel=2)
                continue
            self._saved_step = trainer.step
            return trainer
        if checkpoints:
            raise ValueError(f"No checkpoint in {self.path / CHECKPOINTS} can be read. --overwrite starts again.")
        return None

    def open(self, settings: RunSettings, keep_steps: int | None = None) -> None:
        """Make the folder this process's own and ready for lines.

        `keep_steps` None is for a new run: what another run left here is removed. A number is for a resumed one: lines
        of steps after it are cut off, since those steps are done again.

        Raises FileExistsError while another process trains in this folder.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lines = self.metrics.open("a+b")
        try:
            fcntl.flock(self._lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            message = f"Another process is training in {self.path} now. Wait for it, or give another folder."
            raise FileExistsError(message) from None
        for cut_off in (self.path / CHECKPOINTS).glob(".step-*.tmp"):  # by a kill, while it was written
            _remove(cut_off)
        if keep_steps is None:
            for name in (CHECKPOINTS, POLICY, PICTURE):
                _remove(self.path / name)
            self._saved_step = None
        self._lines.truncate(0 if keep_steps is None else self._bytes_until(keep_steps))
        _write(self.path / SETTINGS, (json.dumps(asdict(settings), indent=2) + "\n").encode())

    @property
    def is_open(self) -> bool:
        """Whether this process has made the folder its own."""
        return self._lines is not None

    def append(self, line: Mapping[str, float]) -> None:
        """Add one line to metrics.jsonl. What is no number becomes null: JSON has no NaN."""
        values = {name: value if math.isfinite(value) else None for name, value in line.items()}
        self._lines.write((json.dumps(values, allow_nan=False) + "\n").encode())
        self._lines.flush()

    def save(self, trainer: GRPOTrainer) -> None:
        """Write a checkpoint, unless this step has one, and remove the ones that are no longer needed."""
        if trainer.step == self._saved_step:
            return
        os.fsync(self._lines.fileno())  # a checkpoint counts on the lines before it
        trainer.save_checkpoint(self.path / CHECKPOINTS / f"step-{trainer.step:06d}")
        self._saved_step = trainer.step
        # Later ones than this are broken ones that --resume passed over.
        older = [folder for folder in self.checkpoints() if _step_of(folder) < trainer.step]
        later = [folder for folder in self.checkpoints() if _step_of(folder) > trainer.step]
        for folder in [*older[CHECKPOINTS_KEPT - 1 :], *later]:
            _remove(folder)

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def measured(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that have an accuracy on held-out problems."""
        return [line for _, line in self._whole_lines() if line.get("eval/accuracy") is not None]

    def draw(self, title: str) -> None:
        """Write reward.png from metrics.jsonl."""
        _write(self.picture, _curves([line for _, line in self._whole_lines()], self.measured(), title))

    def _whole_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each line with the position behind it, up to the first one that is not whole."""
        position = 0
        for text in self.metrics.read_bytes().splitlines(keepends=True):
            position += len(text)
            try:
                line = json.loads(text)
            except ValueError:
                return
            if not text.endswith(b"\n") or not isinstance(line, dict) or "step" not in line:
                return
            yield position, line

    def _bytes_until(self, step: int) -> int:
        return max((position for position, line in self._whole_lines() if line["step"] <= step), default=0)


def check_writable(path: Path) -> None:
    """Raises PermissionError where `path`, or a folder of that name, could not be written. Leaves nothing behind."""
    place = next(folder for folder in [path, *path.absolute().parents] if folder.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        message = f"Cannot write --output {path}: {error.strerror} ({place}). Give another folder."
        raise PermissionError(message) from error


def _curves(lines: list[dict[str, Any]], measured: list[dict[str, Any]], title: str) -> bytes:
    """Reward of every step, and the accuracy on held-out problems where it was measured, as a PNG."""
    from mlx_grpo_kit.viz.live.curves import smooth
    from mlx_grpo_kit.viz.picture import new_figure, to_png
    from mlx_grpo_kit.viz.style import COLORS, FAINT, INK, three_digits

    figure = new_figure(8.4, 3.2)
    figure.suptitle(title, x=0.012, ha="left", size=12, weight="bold", color=INK)
    rewards = [(line["step"], line["reward"]) for line in lines if line.get("reward") is not None]
    accuracies = [(line["step"], line["eval/accuracy"]) for line in measured]
    margins = {"left": 0.06, "right": 0.98, "bottom": 0.15, "top": 0.8, "wspace": 0.16}
    left, right = figure.subplots(1, 2, gridspec_kw=margins)
    if rewards:
        steps, values = zip(*rewards, strict=True)
        averages = smooth(values, 0.7)
        left.plot(steps, values, "o", color=COLORS[0], markersize=3, alpha=0.45, markeredgewidth=0)
        left.plot(steps, averages, color=COLORS[0], linewidth=2)
        left.set_title(three_digits(averages[-1]), loc="right", size=11, weight="bold", color=INK)
    if accuracies:
        right.plot(*zip(*accuracies, strict=True), "s-", color=COLORS[1], linewidth=2, markersize=6, clip_on=False)
        right.set_title(three_digits(accuracies[-1][1]), loc="right", size=11, weight="bold", color=INK)
    left.set_title("reward of each step", loc="left", size=10, color=INK)
    right.set_title("accuracy on held-out problems", loc="left", size=10, color=INK)
    right.set_ylim(0, 1.02)
    for axis in (left, right):
        axis.set_xlim(0, max([line["step"] for line in lines], default=0) * 1.02 + 1)
        axis.set_xlabel("step", size=9, color=INK)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, labelcolor=INK)
        axis.grid(axis="y", color=FAINT, linewidth=0.6)
    return to_png(figure)


def _step_of(checkpoint: Path) -> int | None:
    found = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(found[1]) if found else None


def _write(file: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_bytes(content)
    new.replace(file)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
