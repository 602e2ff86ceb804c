"""Line charts as SVG text: a hundred times as fast as Matplotlib, for pictures that follow sliders or a run.

    chart = Chart(640, 300)
    plane = chart.plane(60, 30, 560, 230, x=(0, 10), y=(1e-6, 1), log_y=True, title="error", xlabel="step")
    plane.line(xs, ys, COLORS[0], label="measured")
    plane.legend("upper right")
    show_picture(chart, "The error falls from 1 to 1e-6 in 10 steps.")

Lengths are in pixels. A colour is a hex number, or "ink" or "soft", which follow the page's theme like all text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, TypeVar

from mlx_grpo_kit.viz.style import FOR_WORDS, ON_DARK

Area = TypeVar("Area")  # an object whose parts() returns its markup
INK_COLORS = {"ink": "#24292f", "soft": "#59636e"}
DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
CHARACTER = 0.56  # the usual width of a letter, as a share of the font's size
SMALLEST = 9.9  # pixels: smaller exponents would keep a picture from shrinking on a narrow page
CORNERS = ("upper left", "upper right", "lower right", "lower left")
FAR = 1e4  # pixels: nothing is drawn farther out, because browsers do not handle such numbers well

# Cells of a sheet keep their colours.
DARK_STYLE = "".join(
    f'[data-jp-theme-light="false"] .kit-chart {what} {{{name}: {light}}}\n'
    for ink, light in ON_DARK.items()
    for name, what in (
        ("fill", f':is(text, tspan, path:not([shape-rendering]))[fill="{ink}"]'),
        ("stroke", f'path[stroke="{ink}"]'),
    )
)

# Attributes have the colours of the light theme, in case a page removes style sheets; the style sheet is for both.
STYLE = f"""<style>
.kit-chart {{--ink: var(--jp-ui-font-color1, #24292f); --soft: var(--jp-ui-font-color2, #59636e);
  --page: var(--jp-layout-color0, #fff); --faint: var(--jp-border-color2, #e0e0e0)}}
.kit-chart .ink {{stroke: var(--ink)}} .kit-chart .soft {{stroke: var(--soft)}}
.kit-chart .faint {{stroke: var(--faint)}}
.kit-chart tspan.ink {{fill: var(--ink); stroke: none}} .kit-chart tspan.soft {{fill: var(--soft); stroke: none}}
.kit-chart text.ink {{fill: var(--ink); stroke: none}} .kit-chart text.soft {{fill: var(--soft); stroke: none}}
.kit-chart .page {{fill: var(--page)}}
.kit-chart .halo {{stroke: var(--page)}}
{DARK_STYLE}</style>"""


class Chart:
    """A page of `width` x `height` pixels with areas and words on it."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self.areas: list[Any] = []
        self._parts: list[str] = []

    @property
    def planes(self) -> list[Plane]:
        """The areas with axes."""
        return [area for area in self.areas if isinstance(area, Plane)]

    def add(self, area: Area) -> Area:
        """Put an area onto the page, such as a Plane or a Sheet, and return it."""
        self.areas.append(area)
        return area

    def plane(self, left: float, top: float, width: float, height: float, **options) -> Plane:
        """Add an area to draw in, and return it; see `Plane` for the options."""
        return self.add(Plane(left, top, width, height, **options))

    def draw(self, markup: Iterable[str]) -> None:
        """Put markup onto the page, such as that of `outline`, `arrow` and `text`."""
        self._parts += markup

    def bar(self, left: float, top: float, width: float, height: float, color: str) -> None:
        """Draw a filled rectangle."""
        self._parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'
        )

    def text(self, x: float, y: float, words: str, **options) -> None:
        """Write words on the page with their baseline at y; see `text` for the options."""
        self._parts.append(text(x, y, words, **options))

    def digits(self, x: float, y: float, runs: Iterable[tuple[str, str]], *, size: float = 16) -> None:
        """Write characters of one width in several colours: `runs` are (words, colour). Hex colours are bold."""
        spans = "".join(
            f'<tspan class="{color}" fill="{INK_COLORS[color]}">{escape(words)}</tspan>'
            if color in INK_COLORS
            else f'<tspan fill="{color}" font-weight="700">{escape(words)}</tspan>'
            for words, color in runs
        )
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" xml:space="preserve" '
            f'font-family="DejaVu Sans Mono, ui-monospace, monospace">{spans}</text>'
        )

    def svg(self, alt: str) -> str:
        """Return the picture as SVG text, with `alt` for readers who cannot see it."""
        parts = [part for area in self.areas for part in area.parts()] + self._parts
        return (
            f'<svg class="kit-chart" role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} '
            f'{self.height:g}" width="{self.width:g}" height="{self.height:g}" style="max-width:100%;height:auto" '
            f'font-family="system-ui, sans-serif"><title>{escape(alt)}</title>{STYLE}'
            f'<rect class="page" width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
        )


class Plane:
    """An area of a chart with two axes. Drawings are cut off at the limits.

    Args:
        left, top, width, height: the area inside the axes; numbers and names are outside it.
        x, y: the limits, (low, high).
        log_x, log_y: True for a logarithmic axis; its limits are above 0, and smaller numbers are drawn at its end.
        title, right: words above the area, on the left and, in bold, on the right.
        xlabel: words below the area.
        grid: True to draw faint lines at the numbers of the y axis.
        numbers: True to put numbers on the x axis; without them you can write names there.
    """

    def __init__(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        log_x: bool = False,
        log_y: bool = False,
        title: str = "",
        right: str = "",
        xlabel: str = "",
        ylabel: str = "",
        grid: bool = True,
        numbers: bool = True,
    ):
        self.left, self.top, self.width, self.height = left, top, width, height
        self.x, self.y, self.log_x, self.log_y = _widened(x), _widened(y), log_x, log_y
        self.title, self.right, self.xlabel, self.ylabel, self.grid = title, right, xlabel, ylabel, grid
        self.numbers = numbers
        self.lines: dict[str, tuple[list[float], list[float]]] = {}  # label -> the drawn points
        self.labels: list[tuple[str, str, str, str]] = []  # the legend's entries: words, colour, style, marker
        self._drawn: list[tuple[list[float], list[float]]] = []  # all lines, those without a label too
        self._inside: list[str] = []
        self._above: list[str] = []  # not cut off at the limits
        self._along = _scale(self.x, log_x, 0, width)
        self._up = _scale(self.y, log_y, height, 0)

    def line(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        color: str,
        *,
        style: str = "-",
        width: float = 2.0,
        label: str = "",
        marker: str = "",
        marked: Sequence[int] = (),
        halo: bool = False,
    ) -> None:
        """Draw a line through points, with gaps where a coordinate is not finite. `label` appears in the legend.

        The points at the places `marked` have markers. `halo` adds an edge of the page's colour, which separates the
        line from values of the same colour below it.
        """
        xs, ys = list(xs), list(ys)
        self._drawn.append((xs, ys))
        path, pen_down = [], False
        for x, y in zip(xs, ys, strict=True):
            place = self._at(x, y)
            if place is None:
                pen_down = False
                continue
            path.append(f"{'L' if pen_down else 'M'}{place[0]:.1f} {place[1]:.1f}")
            pen_down = True
        dash = f' stroke-dasharray="{DASHES[style]}"' if DASHES[style] else ""
        if halo:
            self._inside.append(
                f'<path class="halo" d="{"".join(path)}" fill="none" stroke="#fff" stroke-width="{width + 1.6:g}"/>'
            )
        self._inside.append(
            f'<path d="{"".join(path)}" fill="none" {_stroke(color)} stroke-width="{width:g}"{dash} '
            'stroke-linejoin="round"/>'
        )
        if label:
            self.lines[label] = xs, ys
            self.labels.append((label, color, style, marker))
        if marked:
            self.dots([xs[place] for place in marked], [ys[place] for place in marked], color, marker=marker, size=7)

    def dots(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        color: str,
        *,
        marker: str = "o",
        size: float = 5.0,
        opacity: float = 1.0,
        label: str = "",
        cut: bool = True,
    ) -> None:
        """Draw markers of `size` pixels, all in one path: "o" discs, "s" squares, "D" diamonds, "^" and "v" triangles.

        With `cut=False` they may overlap the edge of the area.
        """
        places = [place for x, y in zip(xs, ys, strict=True) if (place := self._at(x, y)) is not None]
        if places:
            (self._inside if cut else self._above).append(_markers(places, color, marker, size, opacity))
        if label:
            self.labels.append((label, color, "", marker))

    def floor(self, xs: Sequence[float], color: str) -> None:
        """Draw triangles on the x axis, for numbers that a logarithmic axis cannot show."""
        self.dots(xs, [self.y[0]] * len(xs), color, marker="v", cut=False)

    def across(self, y: float, color: str = "soft", *, style: str = ":", width: float = 1.0, label: str = "") -> None:
        """Draw a horizontal line at height y, from side to side."""
        self.line(self.x, (y, y), color, style=style, width=width, label=label)

    def upright(self, x: float, color: str = "soft", *, style: str = "-", width: float = 1.0) -> None:
        """Draw a vertical line at x, from bottom to top."""
        self.line((x, x), self.y, color, style=style, width=width)

    def text(self, x: float, y: float, words: str, *, dx: float = 0, dy: float = 0, **options) -> None:
        """Write lines of words around a point of the plane, moved by (dx, dy) pixels; see `text` for the options."""
        place, lines = self._at(x, y), words.splitlines()
        for number, line in enumerate(lines if place else ()):
            down = dy + 16 * (number - (len(lines) - 1) / 2)
            self._above.append(text(place[0] + dx, place[1] + down, line, **options))

    def legend(self, corner: str = "upper right", *, size: float = 12.0) -> None:
        """Draw a legend with the labels so far in a corner, such as "lower left", or "free" for the emptiest corner."""
        wide = 40 + CHARACTER * size * max(len(words) for words, *_ in self.labels)
        high = (size + 5) * len(self.labels)

        corners = [
            (8 if "left" in each else self.width - wide - 4, 5 if "upper" in each else self.height - high - 7)
            for each in (CORNERS if corner == "free" else [corner])
        ]
        left, top = min(corners, key=lambda each: self._covered(*each, wide, high))
        self._above.append(
            f'<rect class="page" x="{left - 4:.1f}" y="{top - 2:.1f}" width="{wide + 4:.1f}" height="{high + 4:.1f}" '
            'fill="#fff" opacity=".82"/>'
        )
        for row, (words, color, style, marker) in enumerate(self.labels):
            y = top + (row + 0.5) * (size + 5)
            if style:
                dash = f' stroke-dasharray="{DASHES[style]}"' if DASHES[style] else ""
                self._above.append(
                    f'<path d="M{left:.1f} {y:.1f}h26" fill="none" {_stroke(color)} stroke-width="2"{dash}/>'
                )
            if marker:
                self._above.append(_markers([(left + 13, y)], color, marker, 6, 1))
            self._above.append(text(left + 33, y + size * 0.36, words, size=size))

    def _covered(self, left: float, top: float, wide: float, high: float) -> int:
        """The number of points of the lines, two pixels apart, that are inside of a rectangle."""
        count = 0
        for xs, ys in self._drawn:
            points = [self._at(x, y) for x, y in zip(xs, ys, strict=True)]
            for one, other in itertools.pairwise(points):
                if one is None or other is None:
                    continue
                steps = max(1, int(math.dist(one, other) / 2))
                for at in range(steps + 1):
                    x, y = (a + (b - a) * at / steps for a, b in zip(one, other, strict=True))
                    count += left - 4 <= x <= left + wide and top - 2 <= y <= top + high + 2
        return count

    def parts(self) -> list[str]:
        """Return the markup: grid, axes, numbers, drawings, and everything on top of them."""
        axes, grid = [], []
        for value, words in ticks(self.x, self.log_x, max(2, int(self.width / 54))) if self.numbers else ():
            at = self._along(value)
            axes.append(f'<path class="soft" d="M{at:.1f} {self.height:g}v4" stroke="#59636e"/>')
            axes.append(text(at, self.height + 17, words, size=11, anchor="middle", color="soft"))
        for value, words in ticks(self.y, self.log_y, max(2, int(self.height / 36))):
            at = self._up(value)
            if self.grid:
                grid.append(f'<path class="faint" d="M0 {at:.1f}h{self.width:g}" stroke="#e0e0e0" stroke-width=".7"/>')
            axes.append(text(-6, at + 4, words, size=11, anchor="end", color="soft"))
        axes.append(f'<path class="soft" d="M0 0v{self.height:g}h{self.width:g}" fill="none" stroke="#59636e"/>')
        axes.append(text(0, -9, self.title, size=14))
        axes.append(text(self.width, -9, self.right, size=14, anchor="end", bold=True))
        axes.append(text(self.width / 2, self.height + 33, self.xlabel, size=12, anchor="middle"))
        if self.ylabel:
            axes.append(text(-42, self.height / 2, self.ylabel, size=12, anchor="middle", turned=True))
        # A nested svg cuts off everything outside it, and needs no id for that.
        inside = f'<svg width="{self.width:g}" height="{self.height:g}">{"".join(self._inside)}</svg>'
        return [f'<g transform="translate({self.left:g} {self.top:g})">', *grid, inside, *axes, *self._above, "</g>"]

    def _at(self, x: float, y: float) -> tuple[float, float] | None:
        if not (math.isfinite(x) and math.isfinite(y)):
            return None
        return self._along(x), self._up(y)


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 13,
    anchor: str = "start",
    color: str = "ink",
    bold: bool = False,
    turned: bool = False,
) -> str:
    """Return the markup of words with their baseline at y.

    `words` may contain "10^-3", which is written with a raised exponent. `turned` text reads upwards.
    """
    if not words:
        return ""
    color = FOR_WORDS.get(color, color)
    look = f'class="{color}" fill="{INK_COLORS[color]}"' if color in INK_COLORS else f'fill="{color}"'
    weight = ' font-weight="700"' if bold else ""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    base, caret, exponent = words.partition("10^")
    inner = escape(words)
    if caret and not base:
        small = max(0.74 * size, SMALLEST)
        inner = f'10<tspan dy="{-0.42 * size:.1f}" font-size="{small:.1f}">{escape(exponent)}</tspan>'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" {look}{weight}{turn}>{inner}</text>'
    )


def outline(x: float, y: float, wide: float, high: float, color: str, width: float = 2, dash: str = "") -> str:
    """Return the markup of the edge of a box, as a path, because the dark theme recolours paths."""
    corner = 5
    path = (
        f"M{x + corner:g} {y:g}H{x + wide - corner:g}Q{x + wide:g} {y:g} {x + wide:g} {y + corner:g}"
        f"V{y + high - corner:g}Q{x + wide:g} {y + high:g} {x + wide - corner:g} {y + high:g}H{x + corner:g}"
        f"Q{x:g} {y + high:g} {x:g} {y + high - corner:g}V{y + corner:g}Q{x:g} {y:g} {x + corner:g} {y:g}Z"
    )
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dashes}/>'


def arrow(points: Sequence[tuple[float, float]], color: str, width: float = 2) -> str:
    """Return the markup of a line through points, with a head at its end."""
    (x0, y0), (x, y) = points[-2:]
    long = math.dist((x0, y0), (x, y))
    dx, dy = (x - x0) / long, (y - y0) / long
    path = "M" + "L".join(f"{a:g} {b:g}" for a, b in points)
    head = (
        f"M{x:g} {y:g}L{x - 8 * dx - 4 * dy:g} {y - 8 * dy + 4 * dx:g}L{x - 8 * dx + 4 * dy:g} {y - 8 * dy - 4 * dx:g}Z"
    )
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"/><path d="{head}" fill="{color}"/>'


def ticks(limits: tuple[float, float], log: bool, most: int) -> list[tuple[float, str]]:
    """List (number, words) for an axis: at most about `most` round numbers, or powers of ten on a logarithmic axis."""
    low, high = limits
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        stride = max(1, math.ceil((last - first + 1) / most))
        return [(10.0**power, _power(power)) for power in range(first, last + 1) if power % stride == 0]
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    count = itertools.count(math.ceil(low / step - 1e-9))
    numbers = itertools.takewhile(lambda number: number <= high + 1e-9 * step, (step * index for index in count))
    return [(number, _plain(number, digits)) for number in numbers]


def _plain(number: float, digits: int) -> str:
    tiny = digits > 6 and abs(number) < 10.0 ** (4 - digits)  # at most four digits that are not zeros in front
    words = f"{number + 0.0:.4g}" if tiny else f"{number + 0.0:.{digits}f}" if abs(number) < 1e5 else f"{number:g}"
    return words.replace("-", "\N{MINUS SIGN}")


def _power(power: int) -> str:
    return {0: "1", 1: "10"}.get(power, f"10^{power}".replace("-", "\N{MINUS SIGN}"))


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _scale(limits: tuple[float, float], log: bool, start: float, end: float) -> Callable[[float], float]:
    """Make the function from numbers to pixels."""
    low, high = map(math.log10, limits) if log else limits
    factor = (end - start) / (high - low)

    def place(number: float) -> float:
        if log:
            number = math.log10(number) if number > 0 else low
        return min(max(start + (number - low) * factor, -FAR), FAR)

    return place


def _stroke(color: str) -> str:
    return f'class="{color}" stroke="{INK_COLORS[color]}"' if color in INK_COLORS else f'stroke="{color}"'


def _markers(places: Sequence[tuple[float, float]], color: str, marker: str, size: float, opacity: float) -> str:
    faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
    if marker in "os":  # a stroke of no length is a disc or a square, by its caps
        caps = "round" if marker == "o" else "square"
        path = "".join(f"M{x:.1f} {y:.1f}h.01" for x, y in places)
        return f'<path d="{path}" fill="none" {_stroke(color)} stroke-width="{size:g}" stroke-linecap="{caps}"{faint}/>'
    half = size * 0.62
    shape = {
        "D": f"m0 {-half:.1f}l{half:.1f} {half:.1f}l{-half:.1f} {half:.1f}l{-half:.1f} {-half:.1f}z",
        "^": f"m0 {-half:.1f}l{half:.1f} {2 * half:.1f}h{-2 * half:.1f}z",
        "v": f"m0 {half:.1f}l{half:.1f} {-2 * half:.1f}h{-2 * half:.1f}z",
    }[marker]
    path = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in places)
    fill = INK_COLORS.get(color, color)
    theme = f' style="fill:var(--{color},{fill})"' if color in INK_COLORS else ""  # their class is for strokes
    return f'<path d="{path}" fill="{fill}"{theme}{faint}/>'
