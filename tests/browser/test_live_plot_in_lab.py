"""LivePlot in JupyterLab: buttons and curves are used, the kernel is interrupted, the notebook is saved."""

import re

import pytest
from playwright.sync_api import expect

SETUP = """
import time
from types import SimpleNamespace
from mlx_grpo_kit.viz import LivePlot

closed = []

def training(max_steps, seconds=0.05):
    try:
        for step in range(1, max_steps + 1):
            time.sleep(seconds)
            sampled = [SimpleNamespace(prompt="12+34=", completion=str(step), reward=1.0, advantage=0.5)]
            yield SimpleNamespace(step=step, metrics={"reward": step / max_steps}, completions=sampled)
    finally:
        closed.append("closed")
"""
WATCH = """
plot = LivePlot(["reward"], title="A slow run", max_steps=400, completions=1)
for step in plot.watch(training(400)):
    pass
print("the cell went on")
"""
START = """
plot = LivePlot(["reward"], title="A slow run", max_steps=400, completions=1)
run = plot.start(training(400))
"""


WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def assert_still_picture(outputs, state):
    """The live curves have no text, and the output after them has the status and a picture with a description."""
    live, still = (output["data"] for output in outputs[:2])
    assert {*live} == {WIDGET_VIEW, "text/plain"}
    assert "".join(live["text/plain"]) == ""
    assert {*still} == {"text/html", "text/plain"}
    html, words = "".join(still["text/html"]), "".join(still["text/plain"])
    assert f'<span role="status" style="font-size:14px">{state}: step' in html
    assert ' alt="A slow run. Training curves' in html
    assert words.startswith(f"{state}: step")
    assert "A slow run. Training curves" in words


def status_of(notebook):
    return notebook.cell(1).locator(".kit-live-plot .kit-row").first


def curve_of(notebook):
    return notebook.cell(1).locator("svg[role=slider]").first


def test_stop_and_pause_work_while_a_cell_awaits_the_run(open_notebook):
    notebook = open_notebook("background", SETUP, START, "await run\nprint(run, closed)", "print('ran on')")
    notebook.run_all()
    notebook.wait_for_text(1, "running: step")

    notebook.click(1, "Pause")
    notebook.wait_for_text(1, "paused: step")
    status = status_of(notebook)
    paused_at = status.inner_text()
    notebook.page.wait_for_timeout(1000)
    assert status.inner_text() == paused_at  # nothing moves, and the clock is stopped

    notebook.click(1, "Resume")
    notebook.wait_for_text(1, "running: step")
    notebook.click(1, "Stop")
    notebook.wait_until_idle()

    assert "stopped: step" in notebook.text(2)
    assert "['closed']" in notebook.text(2)
    assert notebook.text(3) == "ran on\n"
    saved = notebook.save()
    assert_still_picture(saved.cells[1].outputs, "stopped")
    assert "12+34=" in saved.cells[1].outputs[1]["data"]["text/html"]
    assert len(saved.cells[1].outputs) == 2
    assert "widgets" not in saved.metadata
    assert curve_of(notebook).is_visible()
    assert notebook.cell(1).get_by_role("button", name="Stop").count() == 0
    still = notebook.cell(1).locator(".kit-still svg[role=img]")
    assert not still.is_visible()
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    still.wait_for()
    assert not curve_of(notebook).is_visible()


def test_stop_works_when_nothing_else_runs(open_notebook):
    notebook = open_notebook("idle", SETUP, START, "print(run)")
    notebook.run_cell(0)
    notebook.run_cell(1)
    notebook.wait_for_text(1, "running: step")
    notebook.click(1, "Stop")
    notebook.wait_for_text(1, "stopped: step")
    notebook.run_cell(2)
    notebook.wait_for_text(2, "stopped: step")


@pytest.mark.parametrize("waiting", ["await run", "run.wait()"])
def test_interrupting_the_waiting_cell_stops_the_run(open_notebook, waiting):
    notebook = open_notebook("interrupt_" + waiting[:1], SETUP, START, f"{waiting}\nprint(run)")
    notebook.run_all()
    notebook.wait_for_text(1, "running: step")
    notebook.page.wait_for_timeout(500)
    notebook.command("notebook:interrupt-kernel")
    notebook.wait_until_idle()
    assert "stopped: step" in notebook.text(2)
    assert_still_picture(notebook.outputs(1), "stopped")


def test_interrupting_a_foreground_run_keeps_the_picture_and_the_history(open_notebook):
    notebook = open_notebook("foreground", SETUP, WATCH, "print(plot, len(plot.history['reward']) == len(plot.steps))")
    notebook.run_all()
    notebook.wait_for_text(1, "running: step")
    assert notebook.cell(1).get_by_role("button").filter(has_text="Stop").count() == 0  # no kernel could receive it
    notebook.page.wait_for_timeout(500)
    notebook.command("notebook:interrupt-kernel")
    notebook.wait_until_idle()
    assert_still_picture(notebook.outputs(1), "interrupted")
    assert "the cell went on" in notebook.text(1)
    notebook.run_cell(2)
    notebook.wait_for_text(2, "interrupted: step")
    assert "True" in notebook.text(2)


def test_a_plain_loop_of_updates_ends_with_its_cell(open_notebook):
    loop = 'plot = LivePlot("reward", title="A slow run")\nfor step in training(20):\n    plot.update(step.metrics)'
    notebook = open_notebook("plain", SETUP, loop, "print(plot)")
    notebook.run_all()
    notebook.wait_for_text(2, "finished: step 20")
    assert_still_picture(notebook.outputs(1), "finished")


def test_an_error_in_the_training_reaches_the_waiting_cell(open_notebook):
    failing = "def failing():\n    yield from training(3)\n    raise ValueError('the reward is nan')\n"
    start = failing + 'plot = LivePlot("reward", title="A slow run")\nrun = plot.start(failing())'
    notebook = open_notebook(
        "failing",
        SETUP,
        start,
        "await run",
    )
    notebook.run_all()
    notebook.wait_for_text(2, "ValueError: the reward is nan")
    assert_still_picture(notebook.outputs(1), "failed with ValueError")


@pytest.mark.parametrize("cell", [WATCH, START], ids=["foreground", "background"])
def test_the_cursor_reads_numbers_of_earlier_steps_during_the_run_and_after_it(open_notebook, violations, cell):
    notebook = open_notebook("cursor", SETUP.replace("seconds=0.05", "seconds=0.02"), cell)
    notebook.run_cell(0)
    notebook.run_cell(1)
    curve, place = curve_of(notebook), notebook.cell(1).locator(".kit-where")
    expect(curve).to_have_attribute("aria-valuemax", re.compile(r"\d\d"))
    expect(place).to_contain_text("the latest")
    curve.focus()
    curve.press("Home")
    curve.press("ArrowRight")
    expect(place).to_contain_text("step 2, under the cursor")
    # The line has the mean of the first two rewards, 0.0025 and 0.005, with weights 0.7 and 1.
    expect(curve).to_have_attribute("aria-valuetext", "step 2: reward 0.00397 (0.00500)")
    before = int(curve.get_attribute("aria-valuemax"))
    notebook.page.wait_for_function(
        "before => document.querySelector('svg[role=slider]').ariaValueMax > before + 10", arg=before
    )
    expect(curve).to_have_attribute("aria-valuenow", "2")  # it stays while the run goes on
    curve.press("b")  # JupyterLab's key for another cell
    assert violations(notebook.page, ".kit-live-plot") == []
    box = curve.bounding_box()
    notebook.page.mouse.click(box["x"] + 44 + (box["width"] - 56) * 0.025, box["y"] + 80)
    expect(place).to_contain_text("step 10, under the cursor")
    notebook.click(1, "Newest step")
    expect(place).to_contain_text("the latest")
    notebook.wait_for_text(1, "finished: step 400 of 400")
    curve.press("ArrowLeft")
    expect(place).to_contain_text("step 399, under the cursor")
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == 2
    assert notebook.cell(1).locator(".kit-newest tbody td").nth(1).inner_text() == "400"


def test_a_restart_of_the_kernel_during_a_run_leaves_what_was_last_seen(open_notebook):
    notebook = open_notebook("restarted", SETUP, START)
    notebook.run_cell(0)
    notebook.run_cell(1)
    expect(curve_of(notebook)).to_have_attribute("aria-valuemax", re.compile(r"\d\d"))
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    still = notebook.cell(1).locator(".kit-still")
    still.locator("svg[role=img]").wait_for()
    assert "Last seen running: step" in still.inner_text()
    assert not curve_of(notebook).is_visible()


@pytest.mark.parametrize("cell", [WATCH, START], ids=["foreground", "background"])
def test_a_page_reloaded_during_a_run_ends_with_its_curves(open_notebook, cell):
    notebook = open_notebook("reloaded_plot", SETUP.replace("seconds=0.05", "seconds=0.03"), cell)
    notebook.run_cell(0)
    notebook.run_cell(1)
    notebook.wait_for_text(1, "running: step")
    notebook.save()
    page = notebook.page
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    notebook.wait_for_text(1, "finished: step 400 of 400")
    expect(curve_of(notebook)).to_have_attribute("aria-valuetext", re.compile("step 400: reward"))
    assert not notebook.cell(1).locator(".kit-still").is_visible()
    assert not notebook.cell(1).get_by_role("button", name="Pause").is_visible()


def test_a_notebook_saved_early_in_a_run_has_its_curves_when_the_kernel_is_gone(open_notebook):
    notebook = open_notebook("saved_early", SETUP, START)
    notebook.run_cell(0)
    notebook.run_cell(1)
    notebook.wait_for_text(1, "running: step")
    notebook.page.wait_for_timeout(500)  # one frame; the next picture to stay is due seconds later
    notebook.save()
    notebook.close()
    notebook = open_notebook("saved_early")
    [picture] = [each for each in notebook.cell(1).locator("svg[role=img], img").all() if each.is_visible()]
    words = picture.get_attribute("alt") or picture.locator("title").text_content()
    assert "reward: from" in words, words
    assert "Last seen running: step" in notebook.cell(1).inner_text()
