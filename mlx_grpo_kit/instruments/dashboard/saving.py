"""The saving of a dashboard's run while it trains, so that the next kernel can open it."""

from __future__ import annotations

import os
from pathlib import Path

from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runs.shelf import SavedRun, Shelf
from mlx_grpo_kit.viz.kernel import notebook_shell

AGAIN = "Dashboard.open() shows it again, even after a restart of the kernel."

SaveTo = str | os.PathLike | bool


class Saving:
    """The saving of one run, from its first step on.

    Args:
        save_to: the folder of all shelves; True means the default folder, in a notebook only; False saves nothing.

    Attributes:
        shelf: the saved runs of this notebook; None if nothing is saved.
        complaint: the reason why the run is not saved, in words; "" while it is saved.
    """

    def __init__(self, save_to: SaveTo):
        self.shelf: Shelf | None = None
        if not isinstance(save_to, bool):
            self.shelf = Shelf(save_to)
        elif save_to and notebook_shell() is not None:
            self.shelf = Shelf()
        self.complaint = ""
        self._saved: SavedRun | None = None

    def keep_up(self, record: RunRecord, whole: bool = False) -> None:
        """Save the steps since the last call; `whole` writes all of them again. An OSError ends only the saving."""
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
        """The folder of the run; None if it is not saved."""
        return self._saved and self._saved.path

    @property
    def again(self) -> str:
        """A sentence on how to show the run again; "" if it is not saved."""
        return AGAIN if self._saved is not None and not self.complaint else ""


def saved_run(run: str | os.PathLike | int, save_to: SaveTo) -> Path:
    """Return the folder of a saved run: 0 is the newest run of this notebook, 1 the run before it.

    Raises FileNotFoundError if there is no such run.
    """
    if not isinstance(run, int):
        return Path(run)
    shelf = Shelf() if isinstance(save_to, bool) else Shelf(save_to)
    runs = shelf.runs()
    if not 0 <= run < len(runs):
        raise FileNotFoundError(
            f"{shelf.folder} has no run {run}; it has {len(runs)} saved runs, counted from 0. Start one with "
            "Dashboard(trainer, max_steps=300).start(), or pass the folder of a run: Dashboard.open('outputs/my_run')."
        )
    return runs[run]
