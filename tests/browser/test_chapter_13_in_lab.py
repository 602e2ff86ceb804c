"""The panels of chapter 13 in JupyterLab: filters reshape a distribution by keyboard, and a text grows."""

import pytest

pytestmark = pytest.mark.timeout(240)


def place_of(notebook, id):
    return next(place for place, cell in enumerate(notebook.saved().cells) if cell.id == f"13-{id}")


def wait_for_words(notebook, words):
    notebook.page.wait_for_function(
        "words => [...document.querySelectorAll('.widget-html svg title')].some(title =>"
        " title.textContent.includes(words))",
        arg=words,
    )


def run(notebook, *ids):
    for id in ids:
        notebook.run_cell(place_of(notebook, id))
        notebook.wait_until_idle(120)


def test_filters_and_temperature_reshape_the_distribution(open_notebook):
    notebook = open_notebook("13_generation")
    run(notebook, "setup", "steps", "greedy-use", "draw-use")
    at = place_of(notebook, "panel")
    notebook.show(at)
    run(notebook, "panel")
    wait_for_words(notebook, "after 27+38= at temperature 1.5: 2 of 64 tokens kept: '5' '6'. top-p took out 62.")
    panel = notebook.cell(at)

    def handle(label):
        return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")

    handle("top-k").press("ArrowRight")
    wait_for_words(notebook, "1 of 64 tokens kept: '5'. top-k took out 63. Drawn: '5' 100%.")
    handle("top-k").press("ArrowLeft")
    handle("temperature").press("ArrowLeft")
    wait_for_words(notebook, "at temperature 1.4: 2 of 64 tokens kept")
    text = panel.locator("input[type=text]").first
    text.fill("12+34=4")
    text.press("Enter")
    wait_for_words(notebook, "after 12+34=4 at temperature 1.4")
    text.fill("")
    text.press("Enter")
    panel.get_by_text("There has to be a text to continue.").wait_for()


def test_the_cost_of_a_token_follows_its_slider(open_notebook):
    notebook = open_notebook("13_generation")
    run(notebook, "setup", "whole")
    at = place_of(notebook, "cost")
    notebook.show(at)
    run(notebook, "cost")
    wait_for_words(notebook, "At 60 positions one more token takes about")
    notebook.cell(at).locator(".widget-hslider .noUi-handle").press("ArrowRight")
    wait_for_words(notebook, "At 61 positions one more token takes about")
