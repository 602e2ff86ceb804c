"""A picture on a notebook's page, with a description for readers who cannot see it; and still pictures of live outputs.

A notebook stores `metadata["image/png"]["alt"]`, but no page uses it. A Matplotlib figure is therefore displayed as
HTML, with `<img alt=... src="data:...">`, which JupyterLab, nbconvert and GitHub keep.
"""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.kernel import use_no_subshells
from mlx_grpo_kit.viz.page import CONTROLS, LIVE, PICTURE_STYLE, STILL, STILL_STYLE, UNFOLD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCREEN_DPI = 100  # for moving pictures; a stored picture has more dots and is shown at the same size
STORED_DPI = 150
SMALLEST_TEXT = 9  # pixels, on a page of any width
FONT_SIZE = re.compile(r'font-size="([\d.]+)"|font(?:-size)?:\s*([\d.]+)px')


class Picture(Protocol):
    """A picture for a page: markup, and a description in words."""

    html: str
    alt: str


@printable
class FigurePicture:
    """A Matplotlib figure as a Picture."""

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    @property
    def html(self) -> str:
        """The picture in the resolution of a screen, for a page that soon replaces it by another."""
        return image_tag(to_png(self.figure, SCREEN_DPI), self.figure, self.alt)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The picture as HTML, in the resolution of a stored notebook, and words for pages that do not show HTML."""
        return {"text/html": image_tag(to_png(self.figure), self.figure, self.alt), "text/plain": self.alt}

    def __repr__(self) -> str:
        return self.alt


@printable
@dataclass
class SvgPicture:
    """A drawing as SVG text, which a notebook displays.

    On a narrow page it shrinks while its words stay readable, and below that it scrolls sideways in its box.

    Attributes:
        svg: the picture as text, with its least width.
        alt: its description in words.
    """

    svg: str
    alt: str

    def __post_init__(self):
        self.svg = with_least_width(self.svg)

    @property
    def html(self) -> str:
        """The picture for a page; it scrolls sideways if it is wider than the page."""
        return f'<div style="overflow-x:auto">{self.svg}</div>'

    def save(self, path: Any) -> None:
        """Write the picture as an SVG file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        image = base64.b64encode(self.svg.encode()).decode()
        page = (
            f'<div style="overflow-x:auto"><img alt="{escape(self.alt)}" src="data:image/svg+xml;base64,{image}" '
            f'style="min-width:{least_width(self.svg)}px;max-width:100%">'
            f"{UNFOLD}</div>"
        )
        return {"text/html": page, "text/plain": self.alt}

    def __repr__(self) -> str:
        return self.alt


def least_width(svg: str) -> int:
    """Return the width in pixels at which the smallest words are SMALLEST_TEXT pixels high; 0 without words."""
    width = float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1])
    sizes = [float(one or other) for one, other in FONT_SIZE.findall(svg)]
    return math.ceil(width * SMALLEST_TEXT / min(sizes)) if sizes else 0


def with_least_width(svg: str) -> str:
    """Add the least width of an SVG to the style of its root, which must have a style."""
    root = svg[: svg.index(">")]
    return svg if "min-width:" in root else svg.replace(' style="', f' style="min-width:{least_width(svg)}px;', 1)


def as_picture(drawn: Any, alt: str) -> Picture:
    """Turn a Matplotlib figure or a Chart into a Picture."""
    return SvgPicture(drawn.svg(alt), alt) if isinstance(drawn, Chart) else FigurePicture(drawn, alt)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty white figure, `width` by `height` inches, that is not registered anywhere.

    It is made without pyplot, which keeps a global list of figures and is not safe to use from a thread. A "$" in its
    words is drawn as it is. (Matplotlib would read the words between two of them as a formula.)
    """
    with packages_for("A picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    draw = figure.draw

    def draw_words_as_they_are(renderer: Any) -> None:
        _without_formulas(figure)
        draw(renderer)

    figure.draw = draw_words_as_they_are
    return figure


def _without_formulas(figure: Figure) -> None:
    """Switch formulas off in all words but the numbers of logarithmic axes, which Matplotlib writes as formulas."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter, LogFormatter

    formulas = set()
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        formatter = axis.get_major_formatter()
        if isinstance(formatter, LogFormatter):
            formulas |= {*axis.findobj(Text)} - {axis.label}
        elif isinstance(formatter, FuncFormatter):
            axis.get_ticklabels()  # makes the words of set_xticks(places, words), if they do not exist yet
    for words in figure.findobj(Text):
        words.set_parse_math(words in formulas)


def to_png(figure: Figure, dpi: int = STORED_DPI) -> bytes:
    """Return a figure as PNG bytes: a small file for storage, or a quick one (SCREEN_DPI) for a moving picture."""
    file = io.BytesIO()
    quick = {"compress_level": 1} if dpi <= SCREEN_DPI else {}
    figure.savefig(file, format="png", dpi=dpi, pil_kwargs=quick)
    return file.getvalue()


def image_tag(png: bytes, figure: Figure, alt: str) -> str:
    """Return the `<img>` markup of a figure's PNG at its size on the page, with `alt`, in a box that scrolls."""
    width, height = (round(inches * SCREEN_DPI) for inches in figure.get_size_inches())
    ink = "" if _has_photographs(figure) else " kit-ink"
    return (
        f'<div style="overflow-x:auto"><img class="kit-picture{ink}" alt="{escape(alt)}" width="{width}" '
        f'height="{height}" decoding="sync" style="min-width:{_least_width(figure)}px;max-width:100%;height:auto" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">{PICTURE_STYLE}</div>'
    )


def _least_width(figure: Figure) -> int:
    """Return the `least_width` of a figure that has been drawn."""
    from matplotlib.text import Text

    words = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    points = min((each.get_fontsize() for each in words), default=math.inf)
    width = figure.get_size_inches()[0] * SCREEN_DPI
    return min(math.ceil(width * SMALLEST_TEXT / (points * SCREEN_DPI / 72)), round(width))


def _has_photographs(figure: Figure) -> bool:
    """True if there is an image in shades of grey, whose negative would turn ink into paper."""
    return any(image.cmap.name.lower().startswith(("gray", "grey")) for axis in figure.axes for image in axis.images)


def show_picture(drawn: Figure | Chart, alt: str) -> None:
    """Display a Matplotlib figure or a Chart in a notebook, with `alt` as its description.

    Raises:
        ValueError: `alt` is empty. Every picture of the course has a description in words.
    """
    if not alt.strip():
        raise ValueError("show_picture(figure, alt): alt is empty; expected a sentence that describes the picture.")
    with packages_for("A picture"):
        from IPython.display import display

    display(as_picture(drawn, alt)._repr_mimebundle_(), raw=True)


def still(picture: Picture | None, note: str, table: Any = None, above: tuple[str, str] = ("", "")) -> dict[str, str]:
    """Return the mimebundle of the picture that replaces the live output before it.

    Args:
        picture: shown if no kernel runs the live output; None if there is nothing to draw yet.
        note: a line below it, such as how to get the live output back.
        table: a CompletionsTable below them.
        above: markup above the picture, and the same in words.
    """
    data = picture._repr_mimebundle_() if picture else {"text/html": "", "text/plain": note}
    below = table._repr_html_() if table else ""
    if note:
        note = f'<div style="font-size:12px;color:var(--jp-ui-font-color2,#59636e)">{escape(note)}</div>'
    return {
        "text/html": f'<div class="{STILL}">{above[0]}{data["text/html"]}{note}{below}{STILL_STYLE}{CONTROLS}</div>',
        "text/plain": "\n\n".join(filter(None, [above[1], data["text/plain"], table and str(table)])),
    }


def show_live(widget: Any, picture: Picture | None, note: str, display_ids: tuple[str, str] | None = None) -> None:
    """Display a widget, and `still(picture, note)` in a separate output.

    Args:
        widget: an ipywidgets box; it gets the class that hides the still picture.
        display_ids: names of the two outputs, for later updates.
    """
    with packages_for("A picture"):
        from IPython.display import display

    use_no_subshells()
    widget.add_class(LIVE)
    view = widget._repr_mimebundle_()["application/vnd.jupyter.widget-view+json"]
    first, second = display_ids or (None, None)
    # It has no text: a page that does not show widgets shows the next output.
    display({"application/vnd.jupyter.widget-view+json": view, "text/plain": ""}, raw=True, display_id=first)
    display(still(picture, note), raw=True, display_id=second)
