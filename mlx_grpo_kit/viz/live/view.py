"""The page of a LivePlot: a widget during and after its run, and a still picture for a page without a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mlx_grpo_kit.viz.box import colored_box
from mlx_grpo_kit.viz.browser import BrowserWidget
from mlx_grpo_kit.viz.live.completions import completions_table, rows_for_page
from mlx_grpo_kit.viz.live.curves import CURVE
from mlx_grpo_kit.viz.live.pace import SECONDS_BETWEEN_STILLS
from mlx_grpo_kit.viz.live.words import last_seen
from mlx_grpo_kit.viz.picture import Picture, show_live, still

if TYPE_CHECKING:
    from mlx_grpo_kit.viz.live.background import BackgroundRun


class LiveView(BrowserWidget):
    """The widget of a LivePlot, whose buttons end and pause `run`; None for a run in the cell itself.

    Only the training thread sends frames. The buttons only set events of the run, because a kernel may call `answer` in
    a thread where nothing else is safe.
    """

    source = Path(__file__).with_name("live_plot")
    parts = (CURVE,)

    def __init__(self, run: BackgroundRun | None, frame: Mapping[str, Any]):
        self._run = run
        # The cell creates both outputs: a thread can change an output, but not reliably add one.
        self._places = uuid4().hex, uuid4().hex
        self._next_still: float | None = None
        super().__init__(self._whole(frame, ()))

    def show(
        self, frame: Mapping[str, Any], completions: Sequence[Any], draw: Callable[[], Picture], *, keep: bool = False
    ) -> None:
        """Send the next frame; the first one puts the widget on the page. `keep` renews the still picture too."""
        self.data = self._whole(frame, completions)
        note = f"{last_seen(frame['status'])} Run the cell to train again."
        if self._next_still is None:
            show_live(self._box(), None, note, self._places)
            self._next_still = 0.0  # there are no curves yet; the next frame, which has some, shows them
        elif keep or time.monotonic() >= self._next_still:
            self._put(still(draw(), note, completions_table(completions) if completions else None))
            self._next_still = time.monotonic() + SECONDS_BETWEEN_STILLS

    def end(self, frame: Mapping[str, Any], completions: Sequence[Any], draw: Callable[[], Picture]) -> None:
        """Send the last frame, and keep the picture, the status and the problems for a page without a kernel."""
        self.data = self._whole(frame, completions)
        status, warnings = frame["status"], frame["warnings"]
        above = f'<span role="status" style="font-size:14px">{escape(status)}</span>'
        above += "".join(colored_box(escape(each), "wrong", "max-width:62em;") for each in warnings)
        table = completions_table(completions) if completions else None
        self._put(still(draw(), "", table, above=(above, "\n".join([status, *warnings]))))

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a button's order."""
        {"pause": self._run.pause, "resume": self._run.resume, "stop": self._run.stop}[question["order"]]()
        return {}

    def _whole(self, frame: Mapping[str, Any], completions: Sequence[Any]) -> dict[str, Any]:
        table = rows_for_page(completions) if completions else None
        return {**frame, "stoppable": self._run is not None, "table": table}

    def _put(self, data: dict[str, str]) -> None:
        from IPython.display import display

        display(data, raw=True, display_id=self._places[1], update=True)
