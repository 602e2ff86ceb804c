"""A dashboard's run saves itself while it goes on, and is found again by the next kernel."""

from __future__ import annotations

import os
from pathlib import Path

from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runs.shelf import SavedRun, Shelf
from mlx_grpo_kit.viz.live.plot import _notebook_shell

AGAIN = "Dashboard.open() shows it again, after a restart of the kernel too."

SaveTo = str | os.PathLike | bool


class Saving:
    """The saving of one run, from its first step on.

    Args:
        save_to: the folder of all shelves; True is the usual one, in a notebook only; False saves nothing.

    Attributes:
        shelf: with the saved runs of this notebook, None where nothing is saved.
        complaint: the reason why the run is not saved, in words.
    """

    def __init__(self, save_to: SaveTo):
        self.shelf: Shelf | None = None
        if not isinstance(save_to, bool):
            self.shelf = Shelf(save_to)
        elif save_to and _notebook_shell() is not None:
            self.shelf = Shelf()
        self.complaint = ""
        self._saved: SavedRun | None = None

    def keep_up(self, record: RunRecord, whole: bool = False) -> None:
        """Save the steps that came since; `whole` writes all of them anew. A disk that refuses ends only the saving."""
        if self._saved is None and self.shelf is not None and not self.complaint and record.steps:
            try:
                self._saved = self.shelf.begin(record)
            except (OSError, ValueError) as error:
                self.complaint = f"The run is not saved: {error}."
        if self._saved is not None:
            self._saved.keep_up(whole)
            self.complaint = self._saved.complaint

    @property
    def path(self) -> Path | None:
        """The folder of the run."""
        return self._saved and self._saved.path

    @property
    def again(self) -> str:
        """A sentence that says how the run is shown again, "" where it is not saved."""
        return AGAIN if self._saved is not None and not self.complaint else ""


def saved_run(run: str | os.PathLike | int, save_to: SaveTo) -> Path:
    """The folder of a saved run: the newest of this notebook is 0, the one before it 1.

    Raises FileNotFoundError where there is none.
    """
    if not isinstance(run, int):
        return Path(run)
    shelf = Shelf() if isinstance(save_to, bool) else Shelf(save_to)
    runs = shelf.runs()
    if not 0 <= run < len(runs):
        raise FileNotFoundError(
            f"{shelf.folder} has {len(runs)} saved runs, counted from 0, and so no run {run}. Start one with "
            "Dashboard(trainer, max_steps=300).start(), or give the folder of a run: Dashboard.open('outputs/my_run')."
        )
    return runs[run]
