"""The panels of chapter 22 in JupyterLab: how far the loop is ahead, and how old the weights may be."""

import pytest

pytestmark = pytest.mark.timeout(600)


def open_panel(notebook, id):
    at = notebook.place_of(id)
    notebook.show(at)
    notebook.run_cell(at)
    notebook.wait_until_idle(120)
    return notebook.cell(at)


def handle(panel, label):
    return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")


def test_the_loop_gets_ahead_and_the_weights_grow_old(open_notebook):
    notebook = open_notebook("22_training_backends")
    for id in ("setup", "ex3-use"):
        if id == "ex3-use":  # without the first picture's measurements
            notebook.run_cell(notebook.place_of("wait"))
        notebook.run_cell(notebook.place_of(id))
        notebook.wait_until_idle(120)

    panel = open_panel(notebook, "pipe-panel")
    notebook.wait_for_words("0 ahead: 800 ms, loop busy 40%, backend's thread busy 60%")
    handle(panel, "ahead").press("ArrowRight")
    notebook.wait_for_words("1 ahead: 520 ms, loop busy 62%, backend's thread busy 92%")
    handle(panel, "learn (ms)").press("Home")
    notebook.wait_for_words("1 ahead: 325 ms")
    handle(panel, "fetch (ms)").press("Home")
    notebook.wait_for_words("1 ahead: 40.0 ms, loop busy 0%, backend's thread busy 100%")

    panel = open_panel(notebook, "lag-panel")
    notebook.wait_for_words("at most 0: lags 0, 0, 0, 0, 0, 0, 0: 17.5 s")
    handle(panel, "largest lag").press("ArrowRight")
    notebook.wait_for_words("at most 1: lags 0, 1, 1, 1, 1, 1, 1: 11.5 s, engine busy 61%, backend busy 91%")
    handle(panel, "largest lag").press("End")
    notebook.wait_for_words("at most 4: lags 0, 1, 2, 2, 2, 3, 3: 11.5 s")
    handle(panel, "write (s)").press("End")
    notebook.wait_for_words("backend busy 47%")
