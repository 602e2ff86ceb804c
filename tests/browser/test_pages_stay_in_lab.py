"""The page does not move while controls are moved: neither a picture nor a message pushes it or covers controls."""

import pytest

PANEL = """
import ipywidgets as widgets
import numpy as np
from mlx_grpo_kit.course.pictures.heatmaps import draw_gradient_heatmap
from mlx_grpo_kit.viz import Panel

X, W = np.arange(20.0).reshape(4, 5), np.ones((5, 3))

def draw(operation, note):
    if "?" in note:
        raise ValueError(f"{note!r} has a character that is not known; expected digits.")
    if operation == "x.T":
        return draw_gradient_heatmap("x.T", {"x": X}, X.T, np.ones((5, 4)), {"x": np.ones((4, 5))})
    if operation == "sum(x)":
        return draw_gradient_heatmap("sum(x)", {"x": X}, [[X.sum()]], [[1.0]], {"x": np.ones((4, 5))})
    return draw_gradient_heatmap("x @ w", {"x": X, "w": W}, X @ W, np.ones((4, 3)), {"x": X, "w": W})

Panel(draw, operation=widgets.Dropdown(options=["sum(x)", "x.T", "x @ w"]),
      note=widgets.Text("1", continuous_update=False))
"""
# The tops of the picture and of the content after the panel, relative to the top of the panel's output.
PLACES = """() => {
  const top = document.querySelector(".kit-live").getBoundingClientRect().top;
  return [document.querySelector(".kit-live .widget-html img").getBoundingClientRect().top - top,
          document.querySelectorAll(".jp-Notebook .jp-Cell")[1].getBoundingClientRect().top - top];
}"""


def test_neither_a_new_picture_nor_a_message_moves_the_page(open_notebook):
    notebook = open_notebook("stays", PANEL, "'what comes after'")
    notebook.run_cell(0)
    live = notebook.cell(0).locator(".kit-live")
    picture = live.locator(".widget-html img")
    picture.and_(notebook.page.locator('[alt*="Heatmaps of sum(x)"]')).wait_for()
    places = notebook.page.evaluate(PLACES)
    for operation in ("x.T", "x @ w"):
        live.locator("select").select_option(operation)
        picture.and_(notebook.page.locator(f'[alt*="Heatmaps of {operation}"]')).wait_for()
        assert notebook.page.evaluate(PLACES) == pytest.approx(places, abs=1), operation
    note = live.locator("input[type=text]")
    note.fill("1?")
    note.press("Enter")
    complaint = live.get_by_text("expected digits")
    complaint.wait_for()
    assert notebook.page.evaluate(PLACES) == pytest.approx(places, abs=1)
    # It can be read: nothing covers it, and it covers the picture with a background of its own.
    box = complaint.bounding_box()
    assert box["y"] + box["height"] > picture.bounding_box()["y"]
    seen = "([x, y]) => document.elementFromPoint(x, y).textContent"
    assert "expected digits" in notebook.page.evaluate(seen, [box["x"] + 9, box["y"] + box["height"] - 3])
    note.fill("2")
    note.press("Enter")
    complaint.wait_for(state="detached")
    assert notebook.page.evaluate(PLACES) == pytest.approx(places, abs=1)


HEIGHT = "() => document.querySelector('.kit-live').getBoundingClientRect().height"
TREE = """
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.instruments.generation_tree import show_generation_tree
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
config, params = load_pretrained(TINY)
show_generation_tree(config, params, load_tokenizer(TINY), "27+38=", answers=["55", "65"])
"""


def test_the_tree_keeps_its_height_and_its_message_covers_nothing(open_notebook):
    notebook = open_notebook("stays_for_the_tree", TREE)
    for width in (1280, 700):
        notebook.page.set_viewport_size({"width": width, "height": 1000})
        notebook.run_cell(0)
        notebook.wait_until_idle()
        use_the_tree(notebook)


def use_the_tree(notebook):
    live = notebook.cell(0).locator(".kit-live .kit-tree")
    likeliest = live.get_by_role("button", name="take the likeliest")
    likeliest.wait_for()
    height = notebook.page.evaluate(HEIGHT)
    nodes = live.locator(".node")
    for _ in range(3):  # the answer and the end of the text
        likeliest.click()
        notebook.page.wait_for_timeout(500)
        assert notebook.page.evaluate(HEIGHT) == pytest.approx(height, abs=1), nodes.count()
    live.get_by_text("The text has ended").wait_for()
    live.get_by_role("button", name="27+38=, the beginning").click()
    for place in range(4, 10):  # a branch for each
        live.locator(".bar").nth(place).click()
        live.get_by_role("button", name="27+38=, the beginning").click()
    assert notebook.page.evaluate(HEIGHT) == pytest.approx(height, abs=1), nodes.count()
    prompt = live.get_by_label("prompt", exact=True)
    prompt.fill("8+" + "\u00e9" * 60)
    prompt.press("Enter")
    message = live.locator(".kit-complaint", has_text="no token for")
    message.wait_for()
    assert notebook.page.evaluate(HEIGHT) == pytest.approx(height, abs=1)
    slot, bars = live.locator(".kit-slot").bounding_box(), live.locator(".bars").bounding_box()
    assert slot["y"] + slot["height"] <= bars["y"]
    assert live.locator(".kit-row").bounding_box()["y"] < slot["y"]
    seen = "([x, y]) => document.elementFromPoint(x, y).textContent"
    assert "no token for" in notebook.page.evaluate(seen, [slot["x"] + 20, slot["y"] + 10])
