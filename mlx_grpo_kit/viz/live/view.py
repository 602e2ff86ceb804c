"""The view of a LivePlot in a notebook during its run: two buttons, a status, the picture, a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.viz.box import colored_box
from mlx_grpo_kit.viz.live.completions import completions_table
from mlx_grpo_kit.viz.picture import Picture, show_live, still

if TYPE_CHECKING:
    from mlx_grpo_kit.viz.live.background import BackgroundRun

SECONDS_BETWEEN_STILLS = 5.0  # the maximum age of the still picture when the page or the kernel goes away


def run_in_words(state: str, step: int | None, max_steps: int | None, number: str, seconds: float) -> str:
    """Describe a run in one line: "running: step 37 of 60 · reward 0.710 · 12 s"; without a step, by its state."""
    if step is None:
        return state
    total = f" of {max_steps}" if max_steps else ""
    time_taken = f"{seconds:.0f} s" if seconds else ""
    return " · ".join(filter(None, [f"{state}: step {step}{total}", number, time_taken]))


def last_seen(status: str) -> str:
    """Return the words below the still picture of a run that goes on; a kernel that is gone cannot change them."""
    return f"Last seen {status}. If the kernel was restarted or shut down, the run ended with it."


class NotebookView:
    """Widgets on the page, until `replace_by` leaves only a still picture with a line about the end of the run.

    Only the training thread changes the content; the buttons' callbacks set the run's events and their own labels. A
    kernel may call them in a thread where nothing else is safe.
    """

    def __init__(self, run: BackgroundRun | None):
        with packages_for("LivePlot"):
            import ipywidgets as widgets

        self._status, self._warnings = widgets.HTML(), widgets.HTML()
        self._picture, self._table = widgets.HTML(), widgets.HTML()
        self._pause = widgets.Button(description="Pause", icon="pause", tooltip="Pause the run after this step")
        self._stop = widgets.Button(description="Stop", icon="stop", tooltip="End the run after this step")
        bar = [self._status]
        if run is not None:
            self._pause.on_click(lambda _: self._toggle(run))
            self._stop.on_click(lambda _: self._end(run))
            bar = [self._pause, self._stop, self._status]
        row = widgets.HBox(bar, layout=widgets.Layout(align_items="center"))
        self._box = widgets.VBox([row, self._warnings, self._picture, self._table])
        # The cell creates both outputs: a thread can change an output, but not reliably add one.
        self._places = uuid4().hex, uuid4().hex
        self._next_still: float | None = None

    def show(
        self, status: str, picture: Picture, completions: Sequence[Any], warnings: Sequence[str], *, keep: bool = False
    ) -> None:
        """Draw the next frame; the first one puts the widgets on the page. `keep` renews the still picture too."""
        self._fill(status, picture, completions, warnings)
        note = f"{last_seen(status)} Run the cell to train again."
        if self._next_still is None:
            show_live(self._box, None, note, self._places)
            self._next_still = 0.0  # there are no curves yet; the next frame, which has some, shows them
            return
        if keep or time.monotonic() >= self._next_still:
            self._put(1, still(picture, note, completions_table(completions) if completions else None))
            self._next_still = time.monotonic() + SECONDS_BETWEEN_STILLS

    def show_paused(self, paused: bool) -> None:
        """Label the Pause button with its next action."""
        self._pause.description, self._pause.icon = ("Resume", "play") if paused else ("Pause", "pause")

    def replace_by(self, picture: Picture, status: str, completions: Sequence[Any], warnings: Sequence[str]) -> None:
        """Replace the widgets by the picture, the status and the problems.

        A page that was reloaded during the run does not get this output. It still has the widgets, so they show the
        same.
        """
        self._fill(status, picture, completions, warnings)
        self._pause.layout.display = self._stop.layout.display = "none"
        words = self._status.value + self._warnings.value
        self._put(0, {"text/html": words, "text/plain": "\n".join([status, *warnings])})
        self._put(1, still(picture, "", completions_table(completions) if completions else None))

    def _fill(self, status: str, picture: Picture, completions: Sequence[Any], warnings: Sequence[str]) -> None:
        self._status.value = f'<span role="status" style="font-size:14px">{escape(status)}</span>'
        if self._warnings.value != (words := _boxes(warnings)):
            self._warnings.value = words
        self._picture.value = picture.html
        if completions:
            self._table.value = completions_table(completions)._repr_html_()

    def _put(self, place: int, data: dict[str, str]) -> None:
        from IPython.display import display

        display(data, raw=True, display_id=self._places[place], update=True)

    def _toggle(self, run: BackgroundRun) -> None:
        if run.paused:
            run.resume()
        else:
            self._pause.description = "Pausing…"  # a step may take seconds: answer the click now
            run.pause()

    def _end(self, run: BackgroundRun) -> None:
        self._stop.description, self._stop.disabled, self._pause.disabled = "Stopping…", True, True
        run.stop()


def _boxes(warnings: Sequence[str]) -> str:
    return "".join(colored_box(escape(words), "wrong", "max-width:62em;") for words in warnings)
