"""The table of edges: numbers and words in its cells, in HTML and as text, and a panel that picks a family."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from ipywidgets import Dropdown

from mlx_grpo_kit.course.chapters.chapter_05.pictures.edge_table import EdgeRow, edge_table, number_text
from mlx_grpo_kit.viz import Panel

INF, NAN = math.inf, math.nan
MINUS = "\N{MINUS SIGN}"
ROOT = EdgeRow("roots", "sqrt(x)", (0.0,), 0.0, (INF,), 0.0, (INF,), "1 / 0")
POWER = EdgeRow(
    "powers", "a ** b", (0.0, 0.0), 1.0, (0.0, 0.0), 1.0, (0.0, 0.0), "0 * inf", True,
    {"JAX": (NAN, 0.0), "MLX": (NAN, -INF)},
)  # fmt: skip
LARGEST = EdgeRow(
    "ties", "max(x) < 4", ((3.0, 1.0, 3.0),), 3.0, ((0.5, 0.0, 0.5),), 3.0, ((0.5, 0.0, 0.5),), "shared", True
)
ROWS = [ROOT, POWER, LARGEST]


def cells(table):
    """The rows of the HTML table as lists of texts."""
    page = ElementTree.fromstring(table.html)
    return [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"), (-0.0, "0"), (0.5, "0.5"), (-12.0, f"{MINUS}12"), (-0.158655, f"{MINUS}0.1587"), (INF, "∞"),
        (-INF, f"{MINUS}∞"), (NAN, "nan"), ((1.0, -INF), f"(1, {MINUS}∞)"),
    ],
)  # fmt: skip
def test_numbers(number, text):
    assert number_text(number) == text


def test_every_cell_of_the_table():
    assert cells(edge_table(ROWS)) == [
        ["operation", "at", "value", "gradient", "torch", "elsewhere", "why"],
        ["roots"],
        ["sqrt(x)", "0", "0", "∞", "same", "", "1 / 0"],
        ["powers"],
        ["a ** b", "0, 0", "1", "0, 0", "same", f"JAX (nan, 0)\nMLX (nan, {MINUS}∞)", "a choice: 0 * inf"],
        ["ties"],
        ["max(x) < 4", "(3, 1, 3)", "3", "(0.5, 0, 0.5)", "same", "", "a choice: shared"],
    ]


def test_the_table_in_words():
    table = edge_table(ROWS)
    assert table.alt.splitlines()[:4] == [
        "roots:",
        "  sqrt(x) at 0: value 0, gradient ∞, torch same. Why: 1 / 0.",
        "powers:",
        "  a ** b at 0, 0: value 1, gradient 0, 0, torch same. "
        f"Elsewhere JAX (nan, 0), MLX (nan, {MINUS}∞). Why: a choice: 0 * inf.",
    ]
    assert table._repr_mimebundle_() == {"text/html": table.html, "text/plain": table.alt}


@pytest.mark.parametrize(
    "change",
    [
        {"torch_gradients": (1.0,)}, {"torch_gradients": (-INF,)}, {"torch_gradients": (NAN,)}, {"torch_value": NAN},
        {"torch_value": 1e-6}, {"torch_gradients": (INF, 0.0)},
    ],
    ids=str,
)  # fmt: skip
def test_a_difference_from_torch_is_marked_and_named(change):
    row = replace(ROOT, **change)
    assert ROOT.agrees
    assert not row.agrees
    assert "NOT the same" in cells(edge_table([row]))[2][4]


def test_nan_agrees_with_nan():
    assert replace(ROOT, gradients=(NAN,), torch_gradients=(NAN,)).agrees


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (ROOT, "infinite"),
        (POWER, "a choice"),
        (replace(ROOT, gradients=(INF, NAN)), "nan"),
        (replace(POWER, is_choice=False), "exact"),
        (LARGEST, "a choice"),
    ],
)
def test_kinds(row, kind):
    assert row.kind == kind


def test_the_panel_picks_a_family():
    panel = Panel(lambda family: edge_table(ROWS, family), family=Dropdown(options=["", "roots", "ties"]))
    assert "sqrt" in panel.picture.alt
    assert "max" in panel.picture.alt
    panel.set(family="ties")
    assert panel.picture.alt.startswith("ties:\n  max(x) < 4 at")
    assert "sqrt" not in panel._page.value
    with pytest.raises(KeyError, match="there are 'roots', 'powers', 'ties'"):
        edge_table(ROWS, "kinks")
