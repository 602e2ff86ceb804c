"""Runs that are saved automatically: the newest few of each notebook, in folders that `RunRecord.load` reads.

    shelf = Shelf("outputs/dashboard")      # in the notebook 18_grpo_training: outputs/dashboard/18_grpo_training
    saved = shelf.begin(record)             # outputs/dashboard/18_grpo_training/2026-11-26_104503_addition
    record.add(step)
    saved.keep_up()                         # after each step
    RunRecord.load(shelf.runs()[0])         # the newest run, even after a restart of the kernel

A shelf stays small. It keeps the newest `KEPT` runs of a notebook. If a run takes too much space, the completions of
every second step are deleted, then those of every second remaining step, and so on.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from mlx_grpo_kit.files import naming, remove_folder, write_file
from mlx_grpo_kit.runs.record import COMPLETIONS, METRICS, RunRecord, metrics_line

PLACE = Path("outputs", "dashboard")
KEPT = 5  # runs per notebook
MEGABYTES = 32  # for the completions of a run, and as much again for its metrics
TIME = "%Y-%m-%d_%H%M%S"
NAME = re.compile(r"\d{4}-\d\d-\d\d_\d{6}_.+")  # the order of the names is the order of the times


class Shelf:
    """The saved runs of one notebook.

    Args:
        place: the folder with the shelves of all notebooks. If it is new, a .gitignore is written into it.
        notebook: the name of this notebook; None asks Jupyter for it.

    Attributes:
        folder: the folder of this shelf.
    """

    def __init__(self, place: str | os.PathLike = PLACE, notebook: str | None = None):
        self.place = Path(place).absolute()  # the current folder may change during a run
        self.folder = self.place / (notebook or notebook_name())

    def runs(self) -> list[Path]:
        """List the folders of the saved runs, newest first."""
        if not self.folder.is_dir():
            return []
        found = [run for run in self.folder.iterdir() if NAME.fullmatch(run.name) and (run / METRICS).is_file()]
        return sorted(found, key=lambda run: run.name, reverse=True)

    def begin(self, record: RunRecord) -> SavedRun:
        """Make a folder for a run, and delete the oldest ones. Raises OSError if nothing can be written."""
        if not self.place.exists():
            self.place.mkdir(parents=True)
            write_file(self.place / ".gitignore", b"*\n")
        saved = SavedRun(record, self.folder / f"{self._now()}_{_plain(record.title) or 'run'}")
        for old in self.runs()[KEPT:]:
            with suppress(OSError):  # a folder that contains a user's file is kept
                remove_folder(old)
        return saved

    def _now(self) -> str:
        """Return the time in the form of a name, or the second after the newest run if that is later."""
        now = time.strftime(TIME)
        newest = max((run.name[: len(now)] for run in self.runs()), default="")
        if now > newest:
            return now
        return time.strftime(TIME, time.localtime(time.mktime(time.strptime(newest, TIME)) + 1))


class SavedRun:
    """The folder of a run in progress.

    Each step is appended to its files. After a rewind, the whole record is written again, completely or not at all.

    Attributes:
        path: the folder.
        every: completions are saved for every `every`-th step.
        complaint: the reason why the run is no longer saved; "" while it is saved.
    """

    def __init__(self, record: RunRecord, path: Path):
        self.record, self.path = record, path
        self.every, self.complaint = 1, ""
        self._steps = self._branches = 0
        self._write_anew()

    def keep_up(self, whole: bool = False) -> None:
        """Save the steps that are not in the folder yet; `whole` writes the whole record again, and waits for the disk.

        An OSError ends the saving but not the run; its message becomes the `complaint`.
        """
        if self.complaint:
            return
        try:
            if whole or self._steps > len(self.record) or self._branches != len(self.record.abandoned):
                self._write_anew()
            else:
                self._append()
        except OSError as error:
            self.complaint = f"The run is no longer saved: {error}."

    def _append(self) -> None:
        steps = self.record.steps[self._steps :]
        lines = [step.line for step in steps if step.line is not None and step.step % self.every == 0]
        sizes = [
            _append(self.path / COMPLETIONS, b"".join(lines)),
            _append(
                self.path / METRICS, b"".join(metrics_line(step.step, step.metrics, step.changes) for step in steps)
            ),
        ]
        self._steps += len(steps)
        if sizes[0] > MEGABYTES * 1e6:
            self.every *= 2
            self._write_anew()
        if sizes[1] > MEGABYTES * 1e6:
            self.complaint = (
                f"The run is no longer saved: its metrics take more than {MEGABYTES} MB. "
                "dashboard.record.save(folder) saves all of it."
            )

    def _write_anew(self) -> None:
        steps, branches = len(self.record), len(self.record.abandoned)
        self.record.save(self.path, self.every)
        self._steps, self._branches = steps, branches


def notebook_name() -> str:
    """Return the name of this kernel's notebook, without .ipynb; "notebook" if Jupyter does not provide it."""
    return _plain(Path(os.environ.get("JPY_SESSION_NAME", "")).stem) or "notebook"


def _plain(words: str) -> str:
    """Turn words into the name of a folder."""
    return re.sub(r"[^\w.-]+", "_", words).strip("_.")[:60]


def _append(file: Path, content: bytes) -> int:
    """Add whole lines to the end of a file, and return its size."""
    with naming(file), file.open("ab") as opened:
        opened.write(content)
        return opened.tell()
