"""Other runs to lay over this one: records that were given, and the runs of this notebook that saved themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_grpo_kit.instruments.dashboard.messages import all_of
from mlx_grpo_kit.instruments.dashboard.panels import metrics_of
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runs.shelf import Shelf

MOST = 4  # runs over this one, as many as have dashes of their own

Run = RunRecord | str | os.PathLike


class OtherRuns:
    """The runs that the page may choose from, each with a name that stays.

    Args:
        given: records or their folders, by name, or without names.
        shelf: the saved runs of this notebook; None where there are none.

    Raises:
        TypeError: something else was given.
        FileNotFoundError, ValueError: as `RunRecord.load` does.
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
        """The names of the runs that were given: they are laid over from the beginning."""
        return [*self._given][:MOST]

    def names(self, but: Path | None = None) -> list[str]:
        """The names of all runs to choose from, without the saved run in the folder `but`."""
        saved = [run.name for run in self.shelf.runs() if run != but] if self.shelf else []
        return [*self._given, *(name for name in saved if name not in self._given)]

    def laid_over(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The steps and columns of some of these runs. Raises ValueError for a name that is none of them."""
        found = []
        for name in names[:MOST]:
            record = self._given.get(name)
            if record is None:
                path = next((run for run in self.shelf.runs() if run.name == name), None) if self.shelf else None
                if path is None:
                    raise ValueError(f"There is no saved run {name!r} any more.")
                record = _record(path)
            told = all_of(record, metrics_of(record))
            found.append({"name": name, "steps": told["steps"], "columns": told["columns"]})
        return found


def _record(run: Run) -> RunRecord:
    if isinstance(run, RunRecord):
        return run
    if isinstance(run, str | os.PathLike):
        return RunRecord.load(run)
    raise TypeError(f"A run to compare with is a {type(run).__name__}; expected a RunRecord or the folder of a run.")
