"""A Matplotlib figure as PNG bytes, and on a notebook's page with a description for readers who cannot see it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCREEN_DPI = 100  # of the picture on the page; a stored picture has more dots and is shown at the same size
STORED_DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure, `width` by `height` inches, that belongs to nobody.

    It is made without pyplot, which keeps a global list of figures and is not safe to use from a thread.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def to_png(figure: Figure, dpi: int = STORED_DPI) -> bytes:
    """The figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def mimebundle(figure: Figure, alt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(data, metadata) that Jupyter stores: the picture, the words that stand for it, and its size on the page."""
    width = round(figure.get_figwidth() * SCREEN_DPI)
    return {"image/png": to_png(figure), "text/plain": alt}, {"image/png": {"alt": alt, "width": width}}


def show_picture(figure: Figure, alt: str) -> None:
    """Display `figure` in a notebook, with `alt` as its description.

    Raises ValueError when `alt` is empty: every picture of the course can also be read.
    """
    if not alt.strip():
        raise ValueError("show_picture(figure, alt) needs alt: a sentence that says what the picture shows")
    from IPython.display import display

    data, metadata = mimebundle(figure, alt)
    display(data, raw=True, metadata=metadata)
