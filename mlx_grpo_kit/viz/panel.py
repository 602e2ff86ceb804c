"""A picture that follows its controls: sliders and menus above, drawn by a pure function of their values."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Protocol

from mlx_grpo_kit.viz.picture import SCREEN_DPI, mimebundle


class Picture(Protocol):
    """What a panel shows: markup for the page, and the same in words."""

    html: str
    alt: str


class FigurePicture:
    """A Matplotlib figure as a Picture."""

    def __init__(self, figure: Any, alt: str):
        self.figure, self.alt = figure, alt

    @property
    def html(self) -> str:
        png = base64.b64encode(mimebundle(self.figure, self.alt)[0]["image/png"]).decode()
        width = round(self.figure.get_figwidth() * SCREEN_DPI)
        return (
            f'<img src="data:image/png;base64,{png}" alt="{escape(self.alt)}" width="{width}" style="max-width:100%">'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return mimebundle(self.figure, self.alt)


class PictureWidget:
    """Widgets with a picture among them: `picture` is what is shown now.

    Besides the widgets it leaves its picture in the notebook, for those who read it where no kernel runs.
    """

    widget: Any
    picture: Picture

    def __init__(self):
        import ipywidgets as widgets

        self._page = widgets.HTML()

    def _show(self, drawn: Any) -> None:
        """Show a Picture, or a (Matplotlib figure, words for it)."""
        self.picture = FigurePicture(*drawn) if isinstance(drawn, tuple) else drawn
        self._page.value = self.picture.html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        still = self.picture._repr_mimebundle_()
        data, metadata = still if isinstance(still, tuple) else (still, {})
        return {**self.widget._repr_mimebundle_(), **data}, metadata

    def __repr__(self) -> str:
        return self.picture.alt


class Panel(PictureWidget):
    """Controls and the picture they steer. Ends a cell, or goes to `display`.

        panel = Panel(draw_tangent, x=FloatSlider(1.0, min=-2, max=2), h=FloatLogSlider(0.1, min=-8, max=0))

    draw      called with the controls' values by name; returns a Picture, or (Matplotlib figure, words for it)
    controls  ipywidgets by name, each with a `value`; `extra` widgets stand beside them and are not passed to `draw`

    `picture` is what is shown now. `set(x=0.5)` moves controls as a hand would, without a browser.
    """

    def __init__(self, draw: Callable[..., Any], *, extra: Sequence[Any] = (), **controls: Any):
        import ipywidgets as widgets

        super().__init__()
        self.draw, self.controls = draw, controls
        for name, control in controls.items():
            control.description = control.description or name
            control.style.description_width = "initial"
            control.observe(self._redraw, names="value")
        layout = widgets.Layout(flex_flow="row wrap", align_items="center")
        row = widgets.Box([*controls.values(), *extra], layout=layout)
        self.widget = widgets.VBox([row, self._page])
        self._redraw()

    def set(self, **values: Any) -> None:
        """Give controls new values. Raises KeyError for a name that is not a control's."""
        for name, value in values.items():
            if name not in self.controls:
                raise KeyError(f"no control is called {name!r}; there are {', '.join(map(repr, self.controls))}")
            self.controls[name].value = value

    def _redraw(self, change: Any = None) -> None:
        self._show(self.draw(**{name: control.value for name, control in self.controls.items()}))
