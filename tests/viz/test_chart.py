"""Charts as SVG: places of points, numbers on axes, gaps, and well-formed markup."""

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from mlx_grpo_kit.viz.chart import Chart, ticks
from mlx_grpo_kit.viz.live.curves import chart_curves, draw_curves
from mlx_grpo_kit.viz.picture import SvgPicture, as_picture
from mlx_grpo_kit.viz.style import BLUE, ORANGE

SVG = "{http://www.w3.org/2000/svg}"


def paths(chart):
    """Return the lines and markers of the first plane: a list of lists of points."""
    tree = ElementTree.fromstring(chart.svg("words"))
    inside = tree.find(f"{SVG}g/{SVG}svg")
    return [re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d")) for path in inside.findall(f"{SVG}path")]


def plane(chart, **options):
    return chart.plane(10, 20, 200, 100, **{"x": (0, 10), "y": (0, 1), **options})


def test_points_land_where_the_axes_say():
    chart = Chart(300, 200)
    plane(chart).line([0, 5, 10], [0, 0.5, 1], "#123456")
    assert paths(chart) == [[("0.0", "100.0"), ("100.0", "50.0"), ("200.0", "0.0")]]
    chart = Chart(300, 200)
    plane(chart, x=(1e-4, 1), y=(1e-2, 1e2), log_x=True, log_y=True).dots([1e-4, 1e-2, 1], [1, 1e-2, 0], "ink")
    assert paths(chart) == [[("0.0", "50.0"), ("100.0", "100.0"), ("200.0", "100.0")]]  # 0 is at the end of the axis


def test_values_that_are_not_finite_are_gaps():
    chart = Chart(300, 200)
    plane(chart).line([0, 1, 2, 3, 4], [0, 1, math.nan, math.inf, 0], "ink")
    [path] = re.findall(r'<path d="([^"]+)"', chart.svg("words"))
    assert path == "M0.0 100.0L20.0 0.0M80.0 100.0"


@pytest.mark.parametrize(
    ("limits", "log", "words"),
    [
        ((0, 10), False, ["0", "2", "4", "6", "8", "10"]),
        ((-1.1, 1.1), False, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),  # noqa: RUF001
        ((0, 400), False, ["0", "100", "200", "300", "400"]),
        ((-1e-8, 4e-8), False, ["−1e−08", "0", "1e−08", "2e−08", "3e−08", "4e−08"]),  # noqa: RUF001
        ((2e-8, 3e-8), False, ["2e−08", "2.2e−08", "2.4e−08", "2.6e−08", "2.8e−08", "3e−08"]),  # noqa: RUF001
        ((1e-3, 10), True, ["10^−3", "10^−2", "10^−1", "1", "10"]),  # noqa: RUF001
        ((1e-14, 1), True, ["10^−12", "10^−9", "10^−6", "10^−3", "1"]),  # noqa: RUF001
    ],
)
def test_an_axis_has_round_numbers(limits, log, words):
    found = ticks(limits, log, 5)
    assert [text for _, text in found] == words
    for number, text in found:
        plain = text.replace("\N{MINUS SIGN}", "-")
        assert number == pytest.approx(10.0 ** int(plain[3:]) if plain.startswith("10^") else float(plain))


def test_flat_data_have_an_axis_too():
    chart = Chart(300, 200)
    plane(chart, y=(0.5, 0.5)).across(0.5)
    assert paths(chart) == [[("0.0", "50.0"), ("200.0", "50.0")]]


def test_a_chart_is_one_image_with_a_description_and_escaped_text():
    chart = Chart(300, 200)
    area = plane(chart, title="a < b", right="1 & 2", xlabel="<x>", ylabel="y")
    for marker in "osD^v":
        area.dots([1], [0.5], "#5790fc", marker=marker, label=f"<{marker}>")
    area.legend("lower left")
    chart.text(5, 5, "<b>")
    tree = ElementTree.fromstring(chart.svg('<"words">'))
    assert tree.get("role") == "img"
    assert tree.find(f"{SVG}title").text == '<"words">'
    texts = {"".join(text.itertext()) for text in tree.iter(f"{SVG}text")}
    assert {"a < b", "1 & 2", "<x>", "<b>", "<o>", "<v>"} < texts
    picture = as_picture(chart, "words")
    assert isinstance(picture, SvgPicture)
    assert 'alt="words" src="data:image/svg+xml;base64,' in picture._repr_mimebundle_()["text/html"]


def test_inks_are_lighter_on_a_dark_page_and_cells_keep_their_colours():
    chart = Chart(300, 200)
    area = plane(chart)
    area.line([0, 1], [0, 1], BLUE)
    area.dots([1], [0.5], ORANGE, marker="D")
    chart.text(5, 5, "words", color=ORANGE)
    svg = chart.svg("words")
    rules = re.findall(r'\[data-jp-theme-light="false"\] .kit-chart (\S.*?) \{(fill|stroke): (#\w+)\}', svg)
    assert {(name, color) for what, name, color in rules if BLUE in what} == {
        ("fill", "#8db4ff"),
        ("stroke", "#8db4ff"),
    }
    assert {(name, color) for what, name, color in rules if ORANGE in what} == {
        ("fill", "#ffb85c"), ("stroke", "#ffb85c")
    }  # fmt: skip
    assert f'stroke="{BLUE}"' in svg.partition("</style>")[2]
    assert svg.partition("</style>")[2].count(f'fill="{ORANGE}"') == 2
    assert all("path:not([shape-rendering])" in what for what, name, _ in rules if name == "fill")


def test_a_chart_and_a_figure_draw_the_same_curves():
    history = {"reward": [0.5, math.nan, 1.0], "d": [1e-3, 0.0, 1e-5]}
    panels = {"reward": ["reward"], "d": ["d"], "no": ["x"], "two": ["reward", "d"]}
    drawn = [draw([1, 2, 3], history, panels, smoothing=0, log={"d"}) for draw in (chart_curves, draw_curves)]
    chart, axes = drawn[0], drawn[1].axes
    for plane, axis in zip(chart.planes, axes, strict=True):
        assert (plane.title, plane.right) == (axis.get_title(loc="left"), axis.get_title(loc="right"))
        assert [*plane.x, *plane.y] == pytest.approx([*axis.get_xlim(), *axis.get_ylim()])
        for label, points in plane.lines.items():
            [line] = [line for line in axis.lines if line.get_label() == label]
            np.testing.assert_array_equal(points, [line.get_xdata(), line.get_ydata()])
    reward, difference, missing, _ = chart.planes
    assert reward.right == "1.00"
    assert reward.lines["reward  1.00"][0] == [1, 3]
    assert (difference.log_y, difference.y) == (True, (1e-5, 1e-3))
    assert missing.lines == {}
    assert "waiting for x" in chart.svg("words")
    assert chart_curves([1], {"a": [1.0]}, {"a": ["a"]}, max_steps=60).planes[0].x[1] > 60


def test_a_free_legend_covers_no_line_where_a_corner_is_free():
    rises = [(0, 0.05), (10, 0.95)]  # from the lower left to the upper right
    falls = [(x, 1 - y) for x, y in rises]
    for points, free in ((rises, "upper left"), (falls, "upper right"), ([(0, 0.9), (10, 0.9)], "lower right")):
        legends = []
        for corner in ("free", free):
            chart = Chart(300, 200)
            area = plane(chart)
            area.line(*zip(*points, strict=True), BLUE, label="one")
            area.legend(corner)
            legends.append(chart.svg("words"))
        assert legends[0] == legends[1], free
