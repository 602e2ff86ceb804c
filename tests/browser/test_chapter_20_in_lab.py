"""Chapter 20 in JupyterLab: the museum follows its menu, and a live run is told what is wrong with it."""

import pytest

pytestmark = pytest.mark.timeout(240)


def place_of(notebook, id):
    return next(place for place, cell in enumerate(notebook.saved().cells) if cell.id == f"20-{id}")


def run(notebook, *ids):
    for id in ids:
        notebook.run_cell(place_of(notebook, id))
        notebook.wait_until_idle(120)


def test_an_exhibit_is_chosen_by_keyboard_and_the_picture_and_its_words_follow(open_notebook):
    notebook = open_notebook("20_failure_museum")
    run(notebook, "setup")
    at = place_of(notebook, "museum")
    notebook.show(at)
    run(notebook, "museum")
    panel = notebook.cell(at)
    panel.locator(".widget-html svg title", has_text="L: a reward that can be had for nothing").wait_for(
        state="attached"
    )
    menu = panel.locator("select")
    menu.focus()
    menu.select_option("E: masked too late")
    title = panel.locator(".widget-html svg title", has_text="E: masked too late")
    title.wait_for(state="attached")
    words = title.text_content()
    assert "gradient norm is not a number" in words
    assert "grad_norm is no finite number since step 1" in words
    picture = panel.locator(".widget-html svg[role=img]")
    assert picture.get_by_text("What was changed").is_visible()
    assert picture.bounding_box()["width"] <= panel.bounding_box()["width"]


def test_a_sick_run_is_told_so_under_its_status_and_the_words_stay(open_notebook):
    notebook = open_notebook("20_failure_museum")
    run(notebook, "setup", "bug")
    at = place_of(notebook, "live-run")
    notebook.show(at)
    run(notebook, "live-run")
    words = notebook.cell(at).get_by_text("The gradient is exactly 0 since step 1, although rewards differ")
    words.first.wait_for()
    saved = "".join(str(output.get("data", {}).get("text/html", "")) for output in notebook.saved().cells[at].outputs)
    assert "finished: step 25 of 25" in saved
    assert "The gradient is exactly 0 since step 1" in saved
