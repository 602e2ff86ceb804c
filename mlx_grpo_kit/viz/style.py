"""The look of every picture of the kit: colours, lines, axes, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

# Petroff's six colours stay apart under the common kinds of colour blindness; the styles and markers do without colour.
COLORS = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#7a21dd", "#9c9ca1")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^"
INK, SOFT, FAINT = "#333333", "#555555", "#d9d9d9"  # words, numbers beside them, a grid
EDGE = "#999999"  # of an area
BLUE, ORANGE, GREY = "#1f5fc4", "#b35900", "#6c6c72"  # for words and thin lines: more contrast than areas
NEGATIVE, ZERO, POSITIVE = "#f89c20", "#ffffff", "#5790fc"  # of numbers on both sides of 0, everywhere


def plain_axes(axis: Axes, labelsize: float = 8) -> None:
    """No frame above and on the right, a faint grid, grey numbers."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color=FAINT, linewidth=0.6)
    axis.tick_params(labelsize=labelsize, colors=SOFT)


def two_sided() -> Colormap:
    """From orange through white to blue: blue is positive, in every picture."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("two sides", [NEGATIVE, ZERO, POSITIVE])


def three_digits(value: float) -> str:
    """Three significant digits, of a constant width while a number changes: 0.71 is "0.710"."""
    return f"{value:#.3g}".rstrip(".")


def short_number(value: float) -> str:
    """Three significant digits, and all those before the point: 1234.5 is "1,234"."""
    return f"{value:,.0f}" if value >= 100 else three_digits(value)


def percent(share: float) -> str:
    """ "63%", "0.3%", "0", and "<0.1%" for what rounds to nothing."""
    if share == 0:
        return "0"
    if share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if share < 0.01 else f"{share:.0%}"
