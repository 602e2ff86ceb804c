"""The look of every picture of the kit: colours, lines, axes, numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.extras import packages_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

# Petroff's six colours can be told apart with the common kinds of colour blindness; styles and markers need no colour.
# The orange and the grey are darker than his, the violet is lighter: a line needs a contrast of 3 with a white page and
# with a black one, and words need 4.5 with the cell that they are in (https://www.w3.org/TR/WCAG22, 1.4.3 and 1.4.11).
COLORS = ("#5790fc", "#d97b00", "#e42536", "#964a8b", "#8838df", "#919196")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^"
INK, SOFT, FAINT = "#24292f", "#555555", "#d9d9d9"  # for words, for numbers, for a grid
EDGE = "#949494"  # for the edge of an area
BLUE, ORANGE, GREY = "#1f5fc4", "#b35900", "#6c6c72"  # for words and thin lines: more contrast than areas
NEGATIVE, ZERO, POSITIVE = "#d97b00", "#ffffff", "#5790fc"  # for numbers on both sides of 0, in every picture
# Inks that are dark enough for words on white are too dark on black; these replace them in the dark theme.
ON_DARK = {
    BLUE: "#8db4ff",
    ORANGE: "#ffb85c",
    COLORS[2]: "#ff8a94",
    COLORS[3]: "#cf8fc4",
    COLORS[4]: "#b58af5",
    GREY: "#a6a6ac",
}
FOR_WORDS = {COLORS[0]: BLUE, COLORS[1]: ORANGE, COLORS[5]: GREY}  # words need more contrast than lines
WORDS_CONTRAST, LINES_CONTRAST = 4.5, 3.0  # the least that WCAG asks for


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio"). Colours are "#rrggbb"."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = (part / 255 for part in bytes.fromhex(color[1:]))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(fill: str) -> str:
    """Return the ink for words on an area: the usual one or white, or black if neither is readable."""
    inks = (ink for ink in (INK, "#ffffff") if contrast(ink, fill) >= WORDS_CONTRAST)
    return next(inks, "#000000")


def shades(low: float, high: float, colors: Sequence[str]) -> Callable[[float], str]:
    """Make a function from numbers to colours: `colors` are hex, from `low` to `high`, mixed in between."""
    stops = [bytes.fromhex(color[1:]) for color in colors]

    def color(number: float) -> str:
        place = min(max((number - low) / (high - low), 0.0), 1.0) * (len(stops) - 1)
        first = min(int(place), len(stops) - 2)
        share = place - first
        mixed = (round(a + (b - a) * share) for a, b in zip(stops[first], stops[first + 1], strict=True))
        return "#" + "".join(f"{part:02x}" for part in mixed)

    return color


def plain_axes(axis: Axes, labelsize: float = 8, grid: str = "both") -> None:
    """Remove the frame at the top and on the right, and draw a faint grid and grey numbers."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=grid, color=FAINT, linewidth=0.6)
    axis.tick_params(labelsize=labelsize, colors=SOFT)


def two_sided() -> Colormap:
    """Make the colour map from orange through white to blue; blue is positive, in every picture."""
    with packages_for("two_sided"):
        from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("two sides", [NEGATIVE, ZERO, POSITIVE])


def three_digits(value: float) -> str:
    """Write three significant digits, so that the width stays constant while a number changes: 0.71 is "0.710"."""
    return f"{value:#.3g}".rstrip(".")


def short_number(value: float) -> str:
    """Write three significant digits, but all digits before the point: 1234.5 is "1,234"."""
    return f"{value:,.0f}" if value >= 100 else three_digits(value)


def percent(share: float) -> str:
    """Write a share as "63%", "0.3%" or "0", or as "<0.1%" if it would round to 0."""
    if share == 0:
        return "0"
    if share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if share < 0.01 else f"{share:.0%}"
