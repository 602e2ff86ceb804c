"""The panel of chapter 09 in JupyterLab: the waiting operations follow the slider."""

SET_UP, WAITING = 1, 10


def open_panel(notebook, cell):
    notebook.show(cell)
    notebook.run_cell(cell)
    notebook.cell(cell).locator(".widget-html svg[role=img]").wait_for()
    return notebook.cell(cell)


def test_waiting_operations_follow_the_slider(open_notebook):
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
