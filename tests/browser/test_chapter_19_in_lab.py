"""The panel of chapter 19 in JupyterLab: two variants side by side follow their menus and sliders."""

import pytest

pytestmark = pytest.mark.timeout(240)


def place_of(notebook, id):
    return next(place for place, cell in enumerate(notebook.saved().cells) if cell.id == f"19-{id}")


def wait_for_words(notebook, words):
    notebook.page.wait_for_function(
        "words => [...document.querySelectorAll('.widget-html svg title')].some(title =>"
        " title.textContent.includes(words))",
        arg=words,
    )


def test_two_variants_side_by_side(open_notebook):
    notebook = open_notebook("19_variant_lab")
    notebook.run_cell(place_of(notebook, "setup"))
    notebook.wait_until_idle(120)
    at = place_of(notebook, "panel")
    notebook.show(at)
    notebook.run_cell(at)
    wait_for_words(notebook, "29+78= after 0 updates.")
    panel = notebook.cell(at)
    panel.locator(".widget-hslider", has_text="updates").locator(".noUi-handle").press("ArrowRight")
    wait_for_words(notebook, "29+78= after 1 update.")
    panel.locator("select").last.select_option("cispo")
    wait_for_words(notebook, "cispo: ")
    panel.locator(".widget-hslider", has_text="group").locator(".noUi-handle").press("ArrowRight")
    notebook.page.wait_for_function(
        "words => ![...document.querySelectorAll('.widget-html svg title')].some(t => t.textContent.includes(words))",
        arg="29+78=",
    )
