"""Runs that save themselves: the newest few of each notebook, in folders that `RunRecord.load` reads.

    shelf = Shelf("outputs/dashboard")      # outputs/dashboard/18_grpo_training, where that notebook runs
    saved = shelf.begin(record)             # outputs/dashboard/18_grpo_training/2026-11-26_104503_addition
    record.add(step)
    saved.keep_up()                         # after each step
    RunRecord.load(shelf.runs()[0])         # the newest, after a restart of the kernel too

A shelf stays small. It keeps the newest `KEPT` runs of a notebook, and a run that takes too much gives up the
completions of every second step, then of every second one that is left.
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
KEPT = 5  # runs of a notebook
MEGABYTES = 32  # of the completions of a run, and as much again of its metrics
TIME = "%Y-%m-%d_%H%M%S"
NAME = re.compile(r"\d{4}-\d\d-\d\d_\d{6}_.+")  # sorted by name is sorted by time


class Shelf:
    """The saved runs of one notebook.

    Args:
        place: the folder of all notebooks' shelves. It gets a .gitignore if it is new.
        notebook: the name of this one; None asks Jupyter.

    Attributes:
        folder: the shelf.
    """

    def __init__(self, place: str | os.PathLike = PLACE, notebook: str | None = None):
        self.place = Path(place).absolute()  # the current folder may change while a run goes on
        self.folder = self.place / (notebook or notebook_name())

    def runs(self) -> list[Path]:
        """The folders of the saved runs, the newest first."""
        if not self.folder.is_dir():
            return []
        found = [run for run in self.folder.iterdir() if NAME.fullmatch(run.name) and (run / METRICS).is_file()]
        return sorted(found, key=lambda run: run.name, reverse=True)

    def begin(self, record: RunRecord) -> SavedRun:
        """Make a folder for a run, and remove the oldest ones. Raises OSError where nothing can be written."""
        if not self.place.exists():
            self.place.mkdir(parents=True)
            write_file(self.place / ".gitignore", b"*\n")
        saved = SavedRun(record, self.folder / f"{self._now()}_{_plain(record.title) or 'run'}")
        for old in self.runs()[KEPT:]:
            with suppress(OSError):  # with a file of the reader's own in it: it stays
                remove_folder(old)
        return saved

    def _now(self) -> str:
        """The time as a name has it; one second after the newest run, if that is of this second or of a later one."""
        now = time.strftime(TIME)
        newest = max((run.name[: len(now)] for run in self.runs()), default="")
        if now > newest:
            return now
        return time.strftime(TIME, time.localtime(time.mktime(time.strptime(newest, TIME)) + 1))


class SavedRun:
    """The folder of a run that goes on.

    Each step is added to its files. Where the record was turned back it is written anew, whole or not at all.

    Attributes:
        path: of the folder.
        every: completions are saved of each `every`-th step.
        complaint: the reason why nothing more is saved, "" as a rule.
    """

    def __init__(self, record: RunRecord, path: Path):
        self.record, self.path = record, path
        self.every, self.complaint = 1, ""
        self._steps = self._branches = 0
        self._write_anew()

    def keep_up(self, whole: bool = False) -> None:
        """Save what the record has and the folder has not; `whole` writes all of it anew, and waits for the disk.

        An error ends the saving, not the run: its words are the `complaint`.
        """
        if self.complaint:
            return
        try:
            if whole or self._steps > len(self.record) or self._branches != len(self.record.abandoned):
                self._write_anew()
            else:
                self._append()
        except OSError as error:
            self.complaint = f"The run is not saved any more: {error}."

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
                f"The run is not saved any more: its metrics take more than {MEGABYTES} MB. "
                "dashboard.record.save(folder) writes all of it."
            )

    def _write_anew(self) -> None:
        steps, branches = len(self.record), len(self.record.abandoned)
        self.record.save(self.path, self.every)
        self._steps, self._branches = steps, branches


def notebook_name() -> str:
    """The name of the notebook whose kernel this is, without .ipynb; "notebook" where Jupyter does not say it."""
    return _plain(Path(os.environ.get("JPY_SESSION_NAME", "")).stem) or "notebook"


def _plain(words: str) -> str:
    """A name for a folder."""
    return re.sub(r"[^\w.-]+", "_", words).strip("_.")[:60]


def _append(file: Path, content: bytes) -> int:
    """Add whole lines to the end of a file, and return its size."""
    with naming(file), file.open("ab") as opened:
        opened.write(content)
        return opened.tell()
