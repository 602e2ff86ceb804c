"""Other runs to compare with: the records that you pass to the dashboard, and the saved runs of this notebook."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_grpo_kit.instruments.dashboard.messages import all_of
from mlx_grpo_kit.instruments.dashboard.panels import metrics_of
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runs.shelf import Shelf

MOST = 4  # runs to draw over this one, because there are four dash patterns

Run = RunRecord | str | os.PathLike


class OtherRuns:
    """The runs that you can choose on the page, each with a fixed name.

    Args:
        given: records or their folders, by name or in a list.
        shelf: the saved runs of this notebook; None if there are none.

    Raises:
        TypeError: a run is neither a record nor a folder.
        FileNotFoundError, ValueError: a folder cannot be read; see `RunRecord.load`.
    """

    def __init__(self, given: Mapping[str, Run] | Sequence[Run] = (), shelf: Shelf | None = None):
        self.shelf = shelf
        if isinstance(given, RunRecord | str | os.PathLike):
            given = [given]
        named = given.items() if isinstance(given, Mapping) else ((None, run) for run in given)
        self._given: dict[str, RunRecord] = {}
        for name, run in named:
            record = _record(run)
            name = name or record.title or "a run"
            places = range(2, len(self._given) + 3)
            name = next(each for each in [name, *(f"{name} ({n})" for n in places)] if each not in self._given)
            self._given[name] = record

    @property
    def given(self) -> list[str]:
        """The names of the runs that you passed; they are drawn from the beginning."""
        return [*self._given][:MOST]

    def names(self, but: Path | None = None) -> list[str]:
        """List the names of all runs to choose from, except the saved run in the folder `but`."""
        saved = [run.name for run in self.shelf.runs() if run != but] if self.shelf else []
        return [*self._given, *(name for name in saved if name not in self._given)]

    def columns_of(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the steps and columns of some of these runs. Raises ValueError for an unknown name."""
        found = []
        for name in names[:MOST]:
            record = self._given.get(name)
            if record is None:
                path = next((run for run in self.shelf.runs() if run.name == name), None) if self.shelf else None
                if path is None:
                    raise ValueError(f"There is no saved run {name!r}.")
                record = _record(path)
            whole = all_of(record, metrics_of(record))
            found.append({"name": name, "steps": whole["steps"], "columns": whole["columns"]})
        return found


def _record(run: Run) -> RunRecord:
    if isinstance(run, RunRecord):
        return run
    if isinstance(run, str | os.PathLike):
        return RunRecord.load(run)
    raise TypeError(f"A run to compare with is a {type(run).__name__}; expected a RunRecord or the folder of a run.")
