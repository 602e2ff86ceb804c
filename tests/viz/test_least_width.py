"""On a page of any width, the smallest words of an SVG picture are at least 9 pixels high; a narrow page scrolls."""

import base64
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mlx_grpo_kit.course.chapters.chapter_00.pictures.answers import draw_answers, draw_push
from mlx_grpo_kit.course.chapters.chapter_16.pictures.series import draw_series
from mlx_grpo_kit.instruments.dashboard.run_picture import chart_run
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.viz import draw_graph
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.live.curves import chart_curves, draw_curves
from mlx_grpo_kit.viz.picture import SMALLEST_TEXT, as_picture, least_width, new_figure, with_least_width

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NARROW = 530  # pixels of an output in a window of 1000 by 700 with JupyterLab's file browser and a scroll bar
SVG = "{http://www.w3.org/2000/svg}"
STORED = re.compile(r'src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"')


def sizes_of_words(node, size=16.0):
    """List the size of every piece of text in user units, found by walking the tree as a browser does."""
    own = re.search(r"font(?:-size)?:\s*([\d.]+)px", node.get("style", ""))
    size = float(node.get("font-size") or (own[1] if own else size))
    if node.tag in (f"{SVG}text", f"{SVG}tspan") and (node.text or "").strip():
        yield size
    for child in node:
        yield from sizes_of_words(child, size)


def smallest_on_a_narrow_page(svg):
    """Return the sizes in pixels on a page that is narrower than the picture's least width."""
    tree = ElementTree.fromstring(with_least_width(svg))
    _, _, wide, _ = map(float, tree.get("viewBox").split())
    least = float(re.search(r"min-width:(\d+)px", tree.get("style"))[1])
    return min((size * least / wide for size in sizes_of_words(tree)), default=99)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_words_of_stored_pictures_are_readable_on_a_narrow_page(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    pages = ["".join(output.get("data", {}).get("text/html", "")) for c in cells for output in c.get("outputs", [])]
    svgs = [base64.b64decode(image).decode() for page in pages for image in STORED.findall(page)]
    for svg in (svg for svg in svgs if 'role="img"' in svg):  # the others are arrows without words
        assert smallest_on_a_narrow_page(svg) >= SMALLEST_TEXT - 1e-6
        wide = float(re.search(r' width="([\d.]+)"', svg)[1])
        assert least_width(svg) <= 1.2 * wide  # not much more than the size it was drawn for


def test_a_chart_and_a_graph_contain_their_least_width():
    chart = Chart(800, 300)
    chart.text(10, 20, "large", size=18)
    chart.text(10, 50, "small", size=12)
    a = Value(2.0, label="a")
    for picture, least in ((as_picture(chart, "words"), 600), (draw_graph(a * a), None)):
        least = least or least_width(picture.svg)
        assert f'style="min-width:{least}px;' in picture.svg[: picture.svg.index(">")]
        assert picture.html == f'<div style="overflow-x:auto">{picture.svg}</div>'
        stored = picture._repr_mimebundle_()["text/html"]
        assert stored.startswith('<div style="overflow-x:auto"><img ')
        assert f'style="min-width:{least}px;max-width:100%"' in stored
        assert smallest_on_a_narrow_page(picture.svg) >= SMALLEST_TEXT


def test_exponents_are_not_much_smaller_than_other_numbers():
    chart = Chart(800, 300)
    chart.plane(60, 30, 700, 200, x=(0, 1), y=(1e-6, 1), log_y=True)
    assert least_width(chart.svg("words")) < 800


@pytest.mark.parametrize("stored", [False, True])
def test_a_figure_scrolls_if_its_smallest_words_would_be_too_small(stored):
    figure = new_figure(8, 3)  # inches, 800 pixels on the page
    axis = figure.subplots()
    axis.plot([0, 1])
    axis.tick_params(labelsize=8.1)  # points, 11.25 pixels
    axis.set_title("larger words", fontsize=14)
    picture = as_picture(figure, "A line.")
    markup = picture._repr_mimebundle_()["text/html"] if stored else picture.html
    assert markup.startswith('<div style="overflow-x:auto"><img ')
    assert ' width="800" ' in markup
    assert 'style="min-width:640px;max-width:100%;height:auto"' in markup
    axis.text(0.5, 0.5, "tiny", fontsize=4)  # too small even on a wide page
    assert 'style="min-width:800px;max-width:100%;' in as_picture(figure, "A line.").html


def test_a_figure_without_words_shrinks_to_the_width_of_the_page():
    figure = new_figure(8, 3)
    figure.add_axes((0, 0, 1, 1)).set_axis_off()
    assert 'style="min-width:0px;' in as_picture(figure, "Nothing.").html


NAMES = [f"metric {number}" for number in range(9)]
CURVES = [([1, 2], {name: [0.1, 0.2] for name in NAMES}, {name: [name] for name in NAMES[:n]}) for n in (1, 2, 3, 9)]
SERIES = [{name: {"seed 0": [1.0, 2.0]} for name in NAMES[:n]} for n in (1, 2, 3, 4)]
STEPS = RunRecord("a run", 2).steps
FIT = {
    "answers": lambda: draw_answers({"before": {"55": 3, "65": 1}, "after": {"65": 4}}, "65", title="asked twice"),
    "push": lambda: draw_push([1.0, -1.0, 0.0], [0.1, 0.2, 0.3], [0.2, 0.1, 0.3], title="one step"),
    "a dashboard": lambda: chart_run(STEPS, title="a run")[0],
    **{f"live plot {len(each[2])}": lambda each=each: chart_curves(*each, title="a run") for each in CURVES},
    **{f"figure {len(each[2])}": lambda each=each: draw_curves(*each, title="a run", note="over") for each in CURVES},
    **{
        f"series {len(each)}": lambda each=each: draw_series(each, limits=dict.fromkeys(each, (-1, 2)), xlabel="step")[
            0
        ]
        for each in SERIES
    },
}


@pytest.mark.parametrize("name", FIT)
def test_a_picture_of_several_panels_fits_a_narrow_page(name):
    markup = as_picture(FIT[name](), "words").html
    assert int(re.search(r"min-width:(\d+)px", markup)[1]) <= NARROW


@pytest.mark.parametrize("chapter", ["00"])
def test_stored_pictures_fit_a_narrow_page(chapter):
    [notebook] = [path for path in NOTEBOOKS if path.stem.startswith(chapter)]
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    pages = ["".join(output.get("data", {}).get("text/html", "")) for c in cells for output in c.get("outputs", [])]
    least = [int(width) for page in pages for width in re.findall(r"<img[^>]*min-width:(\d+)px", page)]
    assert len(least) > 5
    assert max(least) <= NARROW
