"""What a LivePlot shows in a notebook while its run goes on: two buttons, a line of status, the picture, a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.live.completions import completions_table
from mlx_grpo_kit.viz.picture import SCREEN_DPI, to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlx_grpo_kit.viz.live.background import BackgroundRun


class NotebookView:
    """Widgets on the page, until `replace_by` puts a still picture in their place.

    Only the thread that runs the training changes what is shown; the buttons' callbacks set the run's events and their
    own labels. A kernel may call them in a thread where nothing else is safe.
    """

    def __init__(self, run: BackgroundRun | None):
        import ipywidgets as widgets
        from IPython.display import display

        self._status, self._table = widgets.HTML(), widgets.HTML()
        self._image = widgets.Image(format="png")
        self._image.add_class("mlx-grpo-kit-live")
        self._pause = widgets.Button(description="Pause", icon="pause", tooltip="Hold the run after this step")
        self._stop = widgets.Button(description="Stop", icon="stop", tooltip="End the run after this step")
        bar = [self._status]
        if run is not None:
            self._pause.on_click(lambda _: self._toggle(run))
            self._stop.on_click(lambda _: self._end(run))
            bar = [self._pause, self._stop, self._status]
        row = widgets.HBox(bar, layout=widgets.Layout(align_items="center"))
        self._box = widgets.VBox([row, self._image, self._table])
        self._place = display(self._box, display_id=True)
        # A second place, empty for now: a still table needs one, and a thread cannot add to a cell's output reliably.
        self._table_place = display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)

    def show(self, status: str, figure: Figure, completions: Sequence[Any]) -> None:
        """Draw the next frame."""
        self._status.value = f'<span role="status" style="font-size:14px">{escape(status)}</span>'
        self._image.value = to_png(figure, SCREEN_DPI)
        self._image.width = round(figure.get_figwidth() * SCREEN_DPI)
        if completions:
            self._table.value = completions_table(completions)._repr_html_()

    def show_paused(self, paused: bool) -> None:
        """Label the Pause button for what it does next."""
        self._pause.description, self._pause.icon = ("Resume", "play") if paused else ("Pause", "pause")

    def replace_by(self, still: Any, completions: Sequence[Any]) -> None:
        """Put `still`, which displays itself, where the widgets were, and close them."""
        from IPython.display import display

        display(still, display_id=self._place.display_id, update=True)
        if completions:
            display(completions_table(completions), display_id=self._table_place.display_id, update=True)
        for widget in (self._box, *self._box.children, *self._box.children[0].children):
            widget.close()

    def _toggle(self, run: BackgroundRun) -> None:
        if run.paused:
            run.resume()
        else:
            self._pause.description = "Pausing…"  # a step may take seconds: answer the click now
            run.pause()

    def _end(self, run: BackgroundRun) -> None:
        self._stop.description, self._stop.disabled, self._pause.disabled = "Stopping…", True, True
        run.stop()
