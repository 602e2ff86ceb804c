"""Flip-books of panels: which values they have, and which picture belongs to which of them."""

import base64
import gzip
import itertools
import json
import re

import ipywidgets as widgets
import pytest

from mlx_grpo_kit.course.book import moving
from mlx_grpo_kit.course.book.foreseen import answers_of
from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.picture import new_figure


def draw(**values):
    if values.get("size") == 4:
        raise ValueError("4 is too <much>")
    chart = Chart(100, 50)
    chart.text(5, 20, str(sorted(values.items())))
    return chart, f"drawn for {sorted(values.items())}"


def panel(**options):
    return Panel(
        draw,
        size=widgets.IntSlider(2, min=0, max=10, description="how large"),
        rate=widgets.FloatLogSlider(0.1, min=-3, max=0, step=1, readout_format=".0e"),
        kind=widgets.Dropdown(options=[("one", 1), ("two", 2)], value=2),
        on=widgets.Checkbox(True),
        **options,
    )


def test_every_combination_has_the_picture_that_the_panel_draws():
    book = moving.flip_book(panel(), {"size": 3, "rate": 4, "kind": 2})
    sizes, rates, kinds = ([*control["words"]] for control in book["controls"])
    assert (sizes, rates, kinds) == (["0", "2", "10"], ["1e-03", "1e-02", "1e-01", "1e+00"], ["one", "two"])
    assert [control["start"] for control in book["controls"]] == [1, 2, 1]
    assert [control["kind"] for control in book["controls"]] == ["range", "range", "choice"]
    combinations = [*itertools.product((0, 2, 10), (1e-3, 1e-2, 0.1, 1.0), (1, 2))]
    assert len(book["frames"]) == len(combinations) == len(book["pictures"])
    for frame, (size, rate, kind) in zip(book["frames"], combinations, strict=True):
        values = sorted({"size": size, "rate": rate, "kind": kind, "on": True}.items())
        assert f"drawn for {values}".replace("'", "&#x27;") in book["pictures"][frame]
    assert "Fixed here: on: on." in book["note"]
    assert "24 pictures" in book["note"]


def test_equal_pictures_are_stored_once_and_limits_hold():
    book = moving.flip_book(panel(limits=lambda on, **_: {"size": 10 if on else 5}), {"size": 11, "on": 2})
    off, on = book["frames"][::2], book["frames"][1::2]
    assert len({*on}) == 11
    assert off[5:] == [off[5]] * 6


def test_values_that_cannot_be_drawn_show_the_message():
    book = moving.flip_book(panel(), {"size": 11})
    assert "4 is too &lt;much&gt;" in book["pictures"][book["frames"][4]]


def test_texts_are_a_menu_and_every_slider_keeps_its_start():
    shown = Panel(draw, text=widgets.Text("b"), x=widgets.FloatSlider(0.7, min=0, max=1, step=0.1))
    book = moving.flip_book(shown, {"text": ("a", "b"), "x": 2})
    assert [(control["words"], control["start"]) for control in book["controls"]] == [
        (["a", "b"], 1),
        (["0.00", "0.70"], 1),
    ]


def test_a_figure_is_stored_with_few_colours():
    def figure(size):
        page = new_figure(4, 3)
        page.add_subplot().imshow([[0, 1, 2], [3, 4, size]])
        return page, "squares"

    book = moving.flip_book(Panel(figure, size=widgets.IntSlider(5, min=4, max=5)), {"size": 2})
    png = base64.b64decode(re.search(r'base64,([^"]+)"', book["pictures"][0])[1])
    assert png[25] == 3
    assert len(png) < 6000
    assert 'alt="squares"' in book["pictures"][0]


def notebook(folder, **sources):
    cells = [
        {"cell_type": "code", "id": id, "source": [source], "metadata": {}, "outputs": [], "execution_count": None}
        for id, source in sources.items()
    ]
    path = folder / "00_some.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


PANEL = """from ipywidgets import IntSlider
from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.viz.chart import Chart
Panel(lambda x: (Chart(x, x), f"square {x}"), x=IntSlider(2, min=1, max=3))"""


def test_a_notebook_runs_in_a_process_of_its_own_and_a_cell_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(moving, "FLIP_BOOKS", {})  # here only; the process has the kit's table
    monkeypatch.setattr(moving, "INSTRUMENTS", {"01-14": "", "13-tree": ""})
    path = notebook(tmp_path, **{"first": "print('hello')\nraise SystemExit(3)", "01-14": PANEL, "13-tree": "nothing"})
    complaints = moving.make_moving([path], tmp_path)
    assert complaints == [
        "00_some.ipynb: the picture of cell 13-tree stays still: NameError: name 'nothing' is not defined"
    ]
    packed = re.search(r'"([\w+/=]{99,})"', (tmp_path / "01-14.js").read_text())[1]
    assert "square 2" in json.loads(gzip.decompress(base64.b64decode(packed)))["pictures"][1]


def test_a_process_that_dies_leaves_still_pictures_and_a_line(tmp_path):
    path = notebook(tmp_path, **{"01-14": "import os\nos._exit(9)\n1"})
    path.write_text(path.read_text().replace("os._exit(9)\\n1", "end = os._exit(9)\\nend"))
    assert moving.make_moving([path], tmp_path) == ["00_some.ipynb: its pictures stay still: exit status 9"]
    assert [*tmp_path.glob("*.js")] == []


def test_a_flip_book_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(moving, "MOST", 10)
    [complaint] = moving.parts_of(notebook(tmp_path, **{"01-14": PANEL}), tmp_path)
    assert "expected at most 10. Move fewer controls." in complaint


def test_other_widgets_have_no_foreseen_answers():
    with pytest.raises(TypeError, match="questions of a Panel"):
        answers_of(panel())
