"""The contrast of every ink with its page, in the light and in the dark theme (WCAG 2.2, 1.4.3 and 1.4.11)."""

import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_20.pictures.symptoms import draw_symptoms
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.viz import draw_graph, page, style
from mlx_grpo_kit.viz.box import LOOKS
from mlx_grpo_kit.viz.chart import INK_COLORS, STYLE, text
from mlx_grpo_kit.viz.graphs import graph
from mlx_grpo_kit.viz.live.curves import CURVE
from mlx_grpo_kit.viz.style import shades

LIGHT, DARK = "#ffffff", ("#111111", "#121212")  # JupyterLab's page and the book's
LINES = {*style.COLORS, style.EDGE, style.NEGATIVE, style.POSITIVE, style.BLUE, style.ORANGE, style.GREY}
WORDS = {style.INK, style.SOFT, style.BLUE, style.ORANGE, style.GREY, *INK_COLORS.values()}
# A grid carries no information, because there are numbers next to it.


def test_the_contrast_of_known_pairs():
    assert style.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert style.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert style.contrast("#ffffff", "#f89c20") == pytest.approx(2.15, abs=0.01)


def negative(color):
    """Return the colour that the filter of page.py makes of a colour in a Matplotlib picture."""
    assert "invert(.93) hue-rotate(180deg) brightness(1.12)" in page.PICTURE_STYLE
    inverted = 0.93 - 0.86 * np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    turn = 2 * np.array([0.213, 0.715, 0.072]) * np.ones((3, 1)) - np.eye(3)
    return "#" + "".join(f"{round(255 * part):02x}" for part in np.clip(1.12 * np.clip(turn @ inverted, 0, 1), 0, 1))


@pytest.mark.parametrize("ink", sorted(LINES))
def test_lines_can_be_seen(ink):
    assert style.contrast(ink, LIGHT) >= style.LINES_CONTRAST
    for dark in DARK:
        assert style.contrast(style.ON_DARK.get(ink, ink), dark) >= style.LINES_CONTRAST
    assert style.contrast(negative(ink), negative(LIGHT)) >= style.LINES_CONTRAST


@pytest.mark.parametrize("ink", sorted(WORDS))
def test_words_can_be_read(ink):
    assert style.contrast(ink, LIGHT) >= style.WORDS_CONTRAST
    assert style.contrast(negative(ink), negative(LIGHT)) >= style.WORDS_CONTRAST


@pytest.mark.parametrize("ink", sorted(style.ON_DARK))
def test_words_can_be_read_in_the_dark_theme(ink):
    for dark in DARK:
        assert style.contrast(style.ON_DARK[ink], dark) >= style.WORDS_CONTRAST
    for name in ("fill", "stroke"):
        assert f"{{{name}: {style.ON_DARK[ink]}}}" in STYLE


@pytest.mark.parametrize("edge", [edge for edge, _ in LOOKS.values()])
def test_the_edges_of_boxes_can_be_seen(edge):
    assert style.contrast(edge, LIGHT) >= style.LINES_CONTRAST


@pytest.mark.parametrize("color", style.COLORS)
def test_words_in_the_colour_of_a_line_can_be_read(color):
    ink = re.search('fill="(#[0-9a-f]+)"', text(0, 0, "words", color=color))[1]
    assert style.contrast(ink, LIGHT) >= style.WORDS_CONTRAST
    assert min(style.contrast(style.ON_DARK.get(ink, ink), dark) for dark in DARK) >= style.WORDS_CONTRAST


def test_words_on_areas_can_be_read():
    two_sided = shades(-1, 1, (style.NEGATIVE, style.ZERO, style.POSITIVE))
    grays = shades(0, 1, ("#ffffff", "#000000"))
    fills = [color(number) for color in (two_sided, grays) for number in np.linspace(-1, 1, 401)]
    for fill in (*fills, *style.COLORS):
        assert style.contrast(style.ink_on(fill), fill) >= style.WORDS_CONTRAST, fill
    for area in (style.POSITIVE, style.NEGATIVE, style.ZERO, style.FAINT):
        assert style.ink_on(area) == style.INK  # which pictures use on these areas without a check


def test_raw_values_below_a_smooth_line_can_be_seen():
    curves = {"reward": [0.1, 0.7, 0.3, 0.9, 0.5]}
    chart, _ = draw_symptoms(curves, curves, title="a run")
    raw = re.findall(r'<path d="[^"]*" fill="none" stroke="(#\w+)" stroke-width="0.8"([^>]*)>', chart.svg("a run"))
    assert {color for color, _ in raw} == set(style.COLORS[:2])
    assert not any("opacity" in more for _, more in raw)
    sheet = CURVE.with_suffix(".css").read_text(encoding="utf-8")
    for name in ("raw", "points", "line", "abandoned"):
        assert "opacity" not in re.search(rf"\.kit-{name} {{([^}}]*)}}", sheet)[1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_frames_of_a_graph_can_be_seen(theme):
    colors = {
        name: re.findall(rf"--{name}: (#\w+)", graph.STYLE)[theme == "dark"] for name in ("frame", "leaf", "made")
    }
    for area in (colors["leaf"], colors["made"], *((LIGHT,) if theme == "light" else DARK)):
        assert style.contrast(colors["frame"], area) >= style.LINES_CONTRAST
    if theme == "light":  # and on a page that removes style sheets
        assert f'stroke="{colors["frame"]}"' in draw_graph(Value(2.0) * 3.0).svg
