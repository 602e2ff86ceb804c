"""The panels of chapter 09 in JupyterLab: what waits follows the slider, and so do the point and the direction."""

import pytest

pytestmark = pytest.mark.timeout(180)
SET_UP, WAITING, CURVATURE = 1, 10, 46


def open_panel(notebook, cell):
    notebook.show(cell)
    notebook.run_cell(cell)
    notebook.cell(cell).locator(".widget-html svg[role=img]").wait_for(timeout=90_000)
    return notebook.cell(cell)


def test_what_waits_follows_the_slider_and_curvature_the_point_and_the_direction(open_notebook):
    notebook = open_notebook("09_mlx")
    notebook.run_cell(SET_UP)

    panel = open_panel(notebook, WAITING)
    notebook.wait_for_words("evaluated after every 8. Up to 144 operations wait")
    handle = panel.locator(".noUi-handle")
    handle.press("ArrowRight")
    notebook.wait_for_words("evaluated after every 9. Up to 162 operations wait")
    handle.press("Home")
    notebook.wait_for_words("evaluated after every one. Up to 18 operations wait")
    handle.press("End")
    notebook.wait_for_words("evaluated after every 40. Up to 720 operations wait")

    panel = open_panel(notebook, CURVATURE)
    notebook.wait_for_words("at (-0.80, 0.50). Its Hessian is (30.4, 16.0; 16.0, 10.0)")
    handles = panel.locator(".noUi-handle")
    handles.nth(1).press("ArrowRight")
    notebook.wait_for_words("at (-0.80, 0.60). Its Hessian is (28.4, 16.0; 16.0, 10.0)")
    handles.nth(2).press("Home")
    notebook.wait_for_words("v = (1.00, 0.00) gives H v = (28.4, 16.0)")
