"""A picture that is redrawn while a loop runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.viz.live.pace import next_frame
from mlx_grpo_kit.viz.picture import as_picture


class LivePicture:
    """A place on the page for a changing picture.

        live = LivePicture()
        for step in range(100):
            ...
            live.update(lambda: draw_boundary(...))  # draws at most four times a second
        live.finish(lambda: draw_boundary(...))      # the last one stays in the notebook

    `draw` returns (Matplotlib figure or Chart, words for it).

    Attributes:
        frames: the number of pictures drawn.
    """

    def __init__(self):
        self.frames = 0
        self._handle: Any = None
        self._next = 0.0

    def update(self, draw: Callable[[], tuple[Any, str]]) -> None:
        """Call `draw` and show its picture, unless the last one is too recent (see pace.py)."""
        if time.monotonic() >= self._next:
            started = time.monotonic()
            self.finish(draw)
            self._next = next_frame(started)

    def finish(self, draw: Callable[[], tuple[Any, str]]) -> None:
        """Call `draw` and show its picture, regardless of the time."""
        with packages_for("LivePicture"):
            from IPython.display import display

        picture = as_picture(*draw())
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self.frames += 1
