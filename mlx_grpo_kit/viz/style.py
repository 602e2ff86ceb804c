"""What every picture of the kit looks like: colours, lines, axes, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Petroff's six colours stay apart under the common kinds of colour blindness; the styles and markers do without colour.
COLORS = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#7a21dd", "#9c9ca1")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^"
INK, FAINT = "#333333", "#d9d9d9"


def plain_axes(axis: Axes, labelsize: float = 8) -> None:
    """No frame above and on the right, a faint grid, grey numbers."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color=FAINT, linewidth=0.6)
    axis.tick_params(labelsize=labelsize, colors="#555555")


def three_digits(value: float) -> str:
    """Three significant digits, of a constant width while a number changes: 0.71 is "0.710"."""
    return f"{value:#.3g}".rstrip(".")
