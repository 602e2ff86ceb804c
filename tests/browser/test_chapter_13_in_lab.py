"""The panels of chapter 13 in JupyterLab: filters reshape a distribution by keyboard, and a text grows."""

import pytest

pytestmark = pytest.mark.timeout(600)


def run(notebook, *ids):
    for id in ids:
        notebook.run_cell(notebook.place_of(id))
        notebook.wait_until_idle(120)


def test_filters_reshape_the_distribution_and_the_cost_follows_the_length(open_notebook):
    notebook = open_notebook("13_generation")
    run(notebook, "setup", "steps", "whole", "greedy-use", "draw-use")
    at = notebook.place_of("panel")
    notebook.show(at)
    run(notebook, "panel")
    notebook.wait_for_words("after 27+38= at temperature 1.5: 2 of 64 tokens kept: '5' '6'. top-p removed 62.")
    panel = notebook.cell(at)

    def handle(label):
        return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")

    handle("top-k").press("ArrowRight")
    notebook.wait_for_words("1 of 64 tokens kept: '5'. top-k removed 63. Drawn: '5' 100%.")
    handle("top-k").press("ArrowLeft")
    notebook.wait_for_words("at temperature 1.5: 2 of 64 tokens kept")
    handle("temperature").press("ArrowLeft")
    notebook.wait_for_words("at temperature 1.4: 2 of 64 tokens kept")
    text = panel.locator("input[type=text]").first
    text.fill("12+34=4")
    text.press("Enter")
    notebook.wait_for_words("after 12+34=4 at temperature 1.4")
    text.fill("")
    text.press("Enter")
    panel.get_by_role("status").get_by_text("The text is empty. Type at least one character").wait_for()

    at = notebook.place_of("cost")
    notebook.show(at)
    run(notebook, "cost")
    notebook.wait_for_words("At 60 positions one more token takes about")
    notebook.cell(at).locator(".widget-hslider .noUi-handle").press("ArrowRight")
    notebook.wait_for_words("At 61 positions one more token takes about")
