"""The base of the browser widgets: a JavaScript module next to its Python, JSON data, requests, a still picture.

    class Bars(BrowserWidget):
        source = Path(__file__).with_name("bars")         # bars.js and bars.css, next to this file
        def __init__(self, heights):
            super().__init__({"heights": heights})        # model.get("data") in the module
        def answer(self, question):                       # the result of ask(question) in the module, as JSON
            return {"heights": [height * question["factor"] for height in self.data["heights"]]}
        def draw_still(self):
            return as_picture(chart, "Three bars, 1, 2 and 3 high.")

`browser.js` is prepended to each module and documents its functions; `browser.css` has the colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.picture import Picture, show_live
from mlx_grpo_kit.viz.style import BLUE, COLORS, NEGATIVE, ON_DARK, ORANGE, POSITIVE

with packages_for("A browser widget"):
    import anywidget
    import traitlets

NOTE = "A still picture. Run the cell to use its controls."


@printable
class BrowserWidget:
    """A widget that the module at `source` draws. Put it at the end of a cell, or pass it to `display`.

    The notebook also stores a still picture of it. A subclass defines `source` and `draw_still`, and `answer` if its
    module sends requests. `parts` lists files that are put before the module, without .js: names in the module's
    folder, or paths. A file has its own style sheet if there is one with its name.

    Args:
        data: the module's data, as JSON; numbers that are not finite become null.

    Attributes:
        widget: the anywidget.
    """

    source: ClassVar[Path]
    parts: ClassVar[tuple[str | Path, ...]] = ()
    note: ClassVar[str] = NOTE

    def __init__(self, data: Mapping[str, Any]):
        files = [Path(__file__), *(self.source.parent / part for part in self.parts), self.source]
        sheets = [file.with_suffix(".css") for file in files]
        self.widget = _Page(
            _esm="".join(_read(file.with_suffix(".js")) for file in files),
            _css=_colors() + "".join(_read(sheet) for sheet in sheets if sheet.exists()),
            _anywidget_id=f"mlx_grpo_kit.{self.source.name}",  # a page has one style sheet per id
            data=as_json(data),
        )
        self.widget.on_msg(lambda _, message, __: self._reply(message))

    @property
    def data(self) -> dict[str, Any]:
        """The module's data. An assignment sends all of it; use `send` for growing data."""
        return self.widget.data

    @data.setter
    def data(self, data: Mapping[str, Any]) -> None:
        self.widget.data = as_json(data)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the module, which receives it with `model.on("msg:custom", message => ...)`."""
        self.widget.send(as_json(message))

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Answer the module's `ask(question)`. An error becomes {"complaint": its message}, for the page to show."""
        raise NotImplementedError(f"{type(self).__name__} has no answers; its module asked {question!r}")

    def draw_still(self) -> Picture:
        """Draw the picture that stays in the notebook for readers without a kernel."""
        raise NotImplementedError(f"{type(self).__name__} needs draw_still()")

    def _reply(self, message: Mapping[str, Any]) -> None:
        try:
            answer = self.answer(message["question"])
        except ValueError as error:
            answer = {"complaint": str(error)}
        except Exception as error:  # ipywidgets would drop it, and the page would wait for an answer
            answer = {"complaint": f"{type(error).__name__}: {error}"}
        self.send({"number": message["number"], "answer": answer})

    def _ipython_display_(self) -> None:
        show_live(self._box(), self.draw_still(), self.note)

    def _box(self) -> Any:
        """Put the widget in a box, which shows when the kernel is gone; an anywidget alone does not."""
        import ipywidgets as widgets

        return widgets.VBox([self.widget])

    def __repr__(self) -> str:
        return self.draw_still().alt


class _Page(anywidget.AnyWidget):
    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)


def as_json(value: Any) -> Any:
    """Return `value` with lists instead of tuples, and with None instead of numbers that are not finite.

    JSON has neither. An unpaired surrogate, which UTF-8 cannot encode, becomes a question mark.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _colors() -> str:
    """Return the kit's colours as CSS variables: for areas, and darker ones for words and thin lines."""
    lines = "".join(f"--kit-line{place}:{color};" for place, color in enumerate(COLORS))
    return (
        f".kit-widget{{--kit-positive:{POSITIVE};--kit-negative:{NEGATIVE};"
        f"--kit-positive-ink:{BLUE};--kit-negative-ink:{ORANGE};{lines}}}\n"
        f'[data-jp-theme-light="false"] .kit-widget{{--kit-positive-ink:{ON_DARK[BLUE]};'
        f"--kit-negative-ink:{ON_DARK[ORANGE]}}}\n"
    )
