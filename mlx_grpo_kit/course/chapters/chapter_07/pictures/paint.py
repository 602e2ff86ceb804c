"""A sheet of a few pixels to paint on, and a picture that is redrawn after every dab."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.panel import PictureWidget

if TYPE_CHECKING:
    import numpy as np

SPILL = 0.3  # ink that each of the four neighbours gets, because pen strokes blur in a scan
CELL = "30px"
SECONDS_OF_REST = 0.03  # from a dab to the redraw


def dab(image: np.ndarray, row: int, column: int, erase: bool = False) -> np.ndarray:
    """A new image [H, W] with ink (1) at a pixel and a little ink at its neighbours, or with that pixel erased to 0."""
    image = image.copy()
    if erase:
        image[row, column] = 0.0
        return image
    for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
        beside = row + down, column + right
        if 0 <= beside[0] < image.shape[0] and 0 <= beside[1] < image.shape[1]:
            image[beside] = min(1.0, image[beside] + SPILL)
    image[row, column] = 1.0
    return image


class PaintBox(PictureWidget):
    """Pixels to paint on, and next to them the picture that `draw` makes of the image.

        PaintBox(lambda image: draw_reading(image, probabilities_of(image)), start=np.zeros((8, 8)))

    `paint(row, column)`, `wipe(row, column)`, `clear()` and `restart()` do what the mouse does, without a browser.

    Args:
        draw: called with the image, [H, W] from 0 (paper) to 1 (ink); returns a Picture, or (figure or Chart, words).
        start: the image to begin with and to return to.

    Attributes:
        image: the current image.
    """

    def __init__(self, draw: Callable[[np.ndarray], Any], start: np.ndarray):
        import ipywidgets as widgets
        import numpy as np

        super().__init__()
        self._draw, self._start = draw, np.array(start, dtype=float)
        rows, columns = self._start.shape
        pixel = widgets.Layout(width=CELL, height=CELL, margin="0", padding="0", border="1px solid #d9d9d9")
        self._pixels = {}
        for row in range(rows):
            for column in range(columns):
                button = widgets.Button(layout=pixel, tooltip=f"row {row}, column {column}")
                button.on_click(lambda _, row=row, column=column: self._click(row, column))
                self._pixels[row, column] = button
        self._drawing: asyncio.TimerHandle | None = None
        sheet = widgets.GridBox(
            [*self._pixels.values()],
            layout=widgets.Layout(grid_template_columns=f"repeat({columns}, {CELL})", grid_gap="0"),
        )
        sheet.add_class("kit-sheet")  # the pointer paints as it is dragged, and the arrow keys move (page.py)
        self._tool = widgets.ToggleButtons(options=["ink", "eraser"], style={"button_width": "70px"})
        clear, restart = widgets.Button(description="Clear"), widgets.Button(description="Start again")
        clear.on_click(lambda _: self.clear())
        restart.on_click(lambda _: self.restart())
        for button in (clear, restart):
            button.layout.width = "104px"
        left = widgets.VBox([self._tool, sheet, widgets.HBox([clear, restart])])
        self.widget = widgets.Box([left, self._page], layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        self.restart()

    def paint(self, row: int, column: int) -> None:
        """Put ink on a pixel."""
        self._set(dab(self.image, row, column))

    def wipe(self, row: int, column: int) -> None:
        """Erase a pixel."""
        self._set(dab(self.image, row, column, erase=True))

    def clear(self) -> None:
        """Show an empty sheet."""
        self._set(self._start * 0)

    def restart(self) -> None:
        """Return to the first image."""
        self._set(self._start.copy())

    def _click(self, row: int, column: int) -> None:
        self._set(dab(self.image, row, column, erase=self._tool.value == "eraser"), soon=True)

    def _set(self, image: np.ndarray, soon: bool = False) -> None:
        self.image = image
        for place, button in self._pixels.items():
            shade = round(255 * (1 - image[place]))
            button.style.button_color = f"#{shade:02x}{shade:02x}{shade:02x}"
        self._redraw(soon)

    def _redraw(self, soon: bool) -> None:
        """Draw now, or with `soon` after a short rest, so that a stroke of many clicks is drawn once."""
        if self._drawing is not None:
            self._drawing.cancel()
            self._drawing = None
        try:
            loop = asyncio.get_running_loop() if soon else None
        except RuntimeError:
            loop = None  # outside a kernel
        if loop is None:
            self._show(lambda: self._draw(self.image))
        else:
            self._drawing = loop.call_later(SECONDS_OF_REST, self._redraw, False)
