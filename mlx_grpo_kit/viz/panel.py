"""A picture that follows the sliders and menus above it, drawn by a pure function of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.box import colored_box
from mlx_grpo_kit.viz.picture import Picture, as_picture, show_live

NOTE = "A still picture. Run the cell to use its controls."
PAPER = "position:relative;z-index:1;background:var(--jp-layout-color1,#fff);border-radius:4px"  # below a message
HEIGHT = re.compile(r'<(?:svg|img)[^>]* height="([\d.]+)"')


@printable
class PictureWidget:
    """Widgets with a picture. Put it at the end of a cell, or pass it to `display`.

    It also stores a picture in the notebook, for readers without a kernel.

    Attributes:
        widget: the box of widgets.
        picture: the current picture.
    """

    widget: Any
    picture: Picture

    def __init__(self):
        with packages_for("A panel"):
            import ipywidgets as widgets

        self._page = widgets.HTML()

    def _show(self, draw: Callable[[], Any]) -> None:
        """Show the result of `draw`: a Picture, or (Matplotlib figure or Chart, its description)."""
        self._page.add_class("kit-busy")
        try:
            drawn = draw()
            self.picture = as_picture(*drawn) if isinstance(drawn, tuple) else drawn
            self._page.value = self.picture.html
        finally:
            self._page.remove_class("kit-busy")

    def _ipython_display_(self) -> None:
        show_live(self.widget, self.picture, NOTE)

    def __repr__(self) -> str:
        return self.picture.alt


class Panel(PictureWidget):
    """Controls and the picture that follows them.

        panel = Panel(draw_tangent, x=FloatSlider(1.0, min=-2, max=2), h=FloatLogSlider(0.1, min=-8, max=0))

    `set(x=0.5)` changes controls as a user does, without a browser. If `draw` raises ValueError, for example because of
    a text that the user typed, its message covers the top of the picture, and nothing moves. A picture that is lower
    than one before it leaves the rest of the room empty, so that the page does not move.

    Args:
        draw: a function that gets the controls' values by name and returns a Picture, or (Matplotlib figure or Chart,
            its description).
        extra: widgets next to the controls that are not passed to `draw`.
        limits: a function that gets the controls' values by name before each drawing and returns the current maximum of
            some sliders, by name, so that a slider cannot have a value that the picture cannot show.
        height: pixels to reserve for the picture and its words, if their height depends on the controls.
        controls: ipywidgets by name, each with a `value`.
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        *,
        extra: Sequence[Any] = (),
        limits: Callable[..., Mapping[str, float]] | None = None,
        height: float = 0,
        **controls: Any,
    ):
        with packages_for("A panel"):
            import ipywidgets as widgets

        super().__init__()
        self.draw, self.controls, self.limits = draw, controls, limits
        self._is_limiting, self._highest = False, height
        for name, control in controls.items():
            control.description = control.description or name
            control.style.description_width = "initial"
            control.observe(self._redraw, names="value")
        # A wide gap, so that the value of one slider does not touch the name of the next.
        layout = widgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="2px 18px")
        row = widgets.Box([*controls.values(), *extra], layout=layout)
        # It has no height and covers the picture, so nothing moves when it appears or disappears.
        self._complaint = widgets.HTML(layout=widgets.Layout(height="0", overflow="visible"))
        self.widget = widgets.VBox([row, self._complaint, self._page])
        self._limit()
        self._draw()

    def set(self, **values: Any) -> None:
        """Give controls new values. Raises KeyError for a name that is not a control's."""
        for name, value in values.items():
            if name not in self.controls:
                raise KeyError(f"no control is called {name!r}; there are {', '.join(map(repr, self.controls))}")
            self.controls[name].value = value

    @property
    def values(self) -> dict[str, Any]:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    def _limit(self) -> None:
        self._is_limiting = True  # a slider that moves because of its new limit does not cause another drawing
        try:
            for name, most in (self.limits(**self.values) if self.limits else {}).items():
                if self.controls[name].max != most:
                    self.controls[name].max = most
        finally:
            self._is_limiting = False

    def _draw(self) -> None:
        self._show(lambda: self.draw(**self.values))
        found = HEIGHT.search(self._page.value)
        height = float(found[1]) if found else 0
        self._highest = max(self._highest, height)
        if height < self._highest:  # a page that is narrower than the picture needs less, so nothing is reserved before
            self._page.layout.min_height = f"{self._highest:g}px"

    def _redraw(self, change: Any = None) -> None:
        if self._is_limiting:
            return
        try:
            self._limit()
            self._draw()
            complaint = ""
        except ValueError as error:
            complaint = f'<div style="{PAPER}">{colored_box(escape(str(error)), "wrong")}</div>'
        if self._complaint.value != complaint:
            self._complaint.value = complaint
