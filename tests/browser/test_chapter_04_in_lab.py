"""The shape explorer of chapter 04 in JupyterLab: an example is chosen, a shape is typed, the picture follows, and the
page stays where it is.
"""

import pytest

EXPLORER = """
from mlx_grpo_kit.course.chapters.chapter_04.pictures.shapes import shape_explorer
panel = shape_explorer()
panel
"""
HEIGHT = "() => document.querySelector('.kit-live').getBoundingClientRect().height"


def test_the_shape_explorer_follows_its_controls_in_the_browser(open_notebook):
    notebook = open_notebook("shapes", EXPLORER, "print(panel.picture.alt)")
    notebook.run_cell(0)
    output = notebook.cell(0)
    status = output.get_by_role("status")
    status.filter(has_text="Fits: (3, 1) and (4,) give (3, 4).").wait_for()
    height = notebook.page.evaluate(HEIGHT)
    output.locator("select").first.select_option(label="three axes: (2, 1, 4) and (3, 1)")
    status.filter(has_text="give (2, 3, 4)").wait_for()
    output.locator("select").nth(1).select_option(label="backward")
    status.filter(has_text="the sum of 8 numbers of g").wait_for()
    assert "gradient of b" in output.locator(".kit-live svg.kit-cells").text_content()

    b = output.locator("input[type=text]").nth(1)
    b.fill("2 x 3")
    b.press("Enter")
    status.filter(has_text="must match the size of tensor b (3) at non-singleton dimension 2").wait_for()
    b.fill("two by three")
    b.press("Enter")
    status.filter(has_text="b = 'two by three' is not a shape: 'two' is not a number").wait_for()
    notebook.run_cell(1)
    notebook.wait_for_text(1, "is not a number")

    examples, view, _ = output.locator("select").all()
    for option in examples.locator("option").all_inner_texts():  # pictures of any height
        examples.select_option(option)
        for direction in ("backward", "forward"):
            view.select_option(direction)
            notebook.page.wait_for_timeout(300)
            assert notebook.page.evaluate(HEIGHT) == pytest.approx(height, abs=1), (option, direction)
