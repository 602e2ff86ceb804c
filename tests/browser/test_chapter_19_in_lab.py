"""The panel of chapter 19 in JupyterLab: two variants side by side follow their menus and sliders."""

import pytest

pytestmark = pytest.mark.timeout(600)


def test_two_variants_side_by_side(open_notebook):
    notebook = open_notebook("19_variant_lab")
    notebook.run_cell(notebook.place_of("setup"))
    notebook.wait_until_idle(120)
    at = notebook.place_of("panel")
    notebook.show(at)
    notebook.run_cell(at)
    notebook.wait_for_words("29+78= after 0 updates.")
    panel = notebook.cell(at)
    panel.locator(".widget-hslider", has_text="updates").locator(".noUi-handle").press("ArrowRight")
    notebook.wait_for_words("29+78= after 1 update.")
    panel.locator("select").last.select_option("cispo")
    notebook.wait_for_words("cispo: ")
    panel.locator(".widget-hslider", has_text="group").locator(".noUi-handle").press("ArrowRight")
    notebook.page.wait_for_function(
        "words => ![...document.querySelectorAll('.widget-html svg title')].some(t => t.textContent.includes(words))",
        arg="29+78=",
    )
