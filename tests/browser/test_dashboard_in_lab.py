"""The dashboard in JupyterLab while a run goes on: every control by mouse and keyboard, dragging, rewinding."""

import io
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from playwright.sync_api import expect

# A model's output is text: this one would show if it were ever taken for markup.
HOSTILE = "<img src=x onerror='window.hacked = true'> {number}"
SETUP = (
    (Path(__file__).parents[1] / "instruments" / "fake_trainer.py").read_text()
    + f"""
from mlx_grpo_kit.instruments.dashboard import Dashboard
rewards = {{"exact": exact, "format": format_reward}}
trainer = FakeTrainer(seconds=0.03, text={HOSTILE!r})
dashboard = Dashboard(trainer, max_steps=2000, title="A slow run", rewards=rewards)
"""
)
TIMES = 2  # the number of times that a page is reloaded
START = "run = dashboard.start()"
AWAIT = "await run\nprint(run)"


class Board:
    """The dashboard in the output of a cell."""

    def __init__(self, notebook, cell=1):
        self.notebook, self.page, self.cell = notebook, notebook.page, notebook.cell(cell)
        self.curves = self.cell.locator("svg[role=slider]")
        self.rows = self.cell.locator(".kit-scroll tbody tr")

    def click(self, name):
        self.cell.get_by_role("button", name=name, exact=True).click()

    def wait_for(self, words):
        self.cell.locator(".kit-dashboard .kit-row", has_text=re.compile(words)).first.wait_for()

    @property
    def step(self):
        """The step under the cursor."""
        return int(self.curves.first.get_attribute("aria-valuenow"))

    @property
    def done(self):
        return int(self.cell.get_by_role("progressbar").get_attribute("aria-valuenow"))

    def wait_until_done(self, step):
        """Wait until the page shows that this step, or a later one, is done."""
        bar = "document.querySelector('.kit-dashboard [role=progressbar]')?.ariaValueNow"
        self.page.wait_for_function(f"step => Number({bar} ?? 0) >= step", arg=step)

    def at(self, curve, share):
        """Return the point of a curve that has this share of its x axis to the left."""
        box = self.curves.nth(curve).bounding_box()
        return box["x"] + 44 + share * (box["width"] - 56), box["y"] + box["height"] / 2

    def column(self, place):
        return [text.strip() for text in self.rows.locator(f"td:nth-child({place})").all_inner_texts()]

    def wait_for_rows(self, count):
        expect(self.rows).to_have_count(count)  # the first ones are drawn at once, the others a moment later

    def wait_for_step(self, step):
        self.cell.locator(f'svg[aria-valuenow="{step}"]').first.wait_for()


@pytest.fixture
def board(open_notebook):
    """A run in progress, in a notebook whose next cell waits for it."""
    notebook = open_notebook("dashboard", SETUP, START, AWAIT, "print('ran on')")
    notebook.run_all()
    board = Board(notebook)
    board.wait_until_done(12)
    return board


def test_every_control_while_a_cell_awaits_the_run(board):
    page, notebook = board.page, board.notebook
    board.click("Pause")
    board.wait_for(r"paused.*step \d+ of 2000")
    paused_at = board.done
    page.wait_for_timeout(300)
    assert board.done == paused_at
    assert re.search(r"\d+ s, about (\d+ s|\d+ min) left", board.cell.locator(".kit-row").first.inner_text())
    board.click("Step")
    board.wait_for_step(paused_at + 1)
    board.wait_for("paused")
    board.click("Step")
    board.wait_for_step(paused_at + 2)
    board.wait_for_rows(32)
    assert board.column(2)[0] == f"{paused_at + 2}+0="
    assert board.column(3)[1] == HOSTILE.format(number=1)
    assert page.evaluate("() => window.hacked") is None

    # Dragging over one curve moves the cursor of all curves, and the completions follow; so do the keys.
    page.mouse.move(*board.at(4, 3 / 2000))
    page.mouse.down()
    page.mouse.move(*board.at(4, 6 / 2000))
    board.wait_for_step(6)
    assert [curve.get_attribute("aria-valuenow") for curve in board.curves.all()] == ["6"] * 9
    board.wait_for_rows(32)
    assert set(board.column(2)) == {f"6+{group}=" for group in range(4)}
    page.mouse.up()
    for key, step in [("ArrowLeft", 5), ("ArrowLeft", 4), ("ArrowRight", 5), ("Home", 0), ("End", paused_at + 2)]:
        page.keyboard.press(key)
        board.wait_for_step(step)
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    back_to = paused_at - 3
    board.wait_for_step(back_to)

    # The table: sorted by a click and by a key, filtered by text and by group.
    board.click("reward")
    board.wait_for_rows(32)
    assert board.cell.locator('th[aria-sort="descending"]').inner_text().startswith("reward")
    rewards = [float(text) for text in board.column(4)]
    assert rewards == sorted(rewards, reverse=True)
    board.cell.get_by_role("button", name="reward").and_(board.cell.locator("th button")).press("Enter")
    board.wait_for_rows(32)
    assert [float(text) for text in board.column(4)] == sorted(rewards)
    board.cell.get_by_role("button", name=re.compile("^group 2, ")).click()
    assert set(board.column(2)) == {f"{back_to}+1="}
    board.cell.get_by_label("filter completions").fill("> 3")
    assert board.column(3) == [HOSTILE.format(number=3)]
    board.cell.get_by_text("1 of 32 completions").wait_for()
    board.cell.get_by_label("filter completions").fill("")
    board.cell.get_by_role("button", name=re.compile("^group 2, ")).click()
    board.wait_for_rows(32)

    # Invalid input gets a message; then the run is rewound to the step under the cursor, with other settings.
    rate = board.cell.get_by_role("textbox", name="learning rate")
    rate.fill("fast")
    board.click(f"Rewind to step {back_to}")
    board.cell.get_by_role("alert").filter(has_text="The learning rate is 'fast'; expected a number").wait_for()
    assert board.done == paused_at + 2
    rate.fill("0.05")
    board.cell.get_by_role("combobox", name="reward").select_option("format")
    board.click(f"Rewind to step {back_to}")
    board.wait_for(rf"paused.*step {back_to} of 2000.*learning rate 0.05, reward format")
    expect(board.cell.locator(".kit-abandoned")).to_have_count(8)  # on each curve that has values
    assert not board.cell.get_by_role("alert").is_visible()
    board.click("Resume")
    board.wait_until_done(back_to + 4)
    assert board.cell.locator(".kit-number").count() == 0  # one branch needs no number
    rate.fill("0.02")
    board.click("Use from now on")
    board.wait_for(r"running.*learning rate 0.02, reward format")

    board.click("Stop")
    board.wait_for("stopped")
    notebook.wait_until_idle()
    assert "stopped: step" in notebook.text(2)
    assert notebook.text(3) == "ran on\n"

    # After Stop the run can still do a step, the cursor still works, and the file contains a picture.
    # Text that is typed meanwhile waits for its button.
    stopped_at, use = board.done, board.cell.get_by_role("button", name="Use from now on")
    assert use.is_disabled()
    rate.fill("0.3")
    board.click("Step")
    board.wait_for_step(stopped_at + 1)
    board.wait_for("paused.*learning rate 0.02")
    assert (rate.input_value(), use.is_enabled()) == ("0.3", True)
    board.click("Stop")
    board.wait_for("stopped")
    outputs = "JSON.stringify(jupyterapp.shell.currentWidget.content.widgets[1].model.outputs.toJSON())"
    page.wait_for_function(f"words => {outputs}.includes(words)", arg=f"stopped: step {stopped_at + 1} of")
    saved = notebook.save()
    assert "widgets" not in saved.metadata
    assert len(saved.cells[1].outputs) == 2
    still = saved.cells[1].outputs[1]["data"]
    assert f"stopped: step {stopped_at + 1} of 2000" in still["text/html"]
    assert "A slow run. Training curves over" in still["text/plain"]
    assert "1 abandoned branch in grey" in still["text/plain"]
    assert "<img src=x" not in still["text/html"]
    assert Path(notebook.path).stat().st_size < 300_000


def test_a_finger_drags_the_cursor_and_a_reloaded_page_shows_the_run(open_notebook):
    notebook = open_notebook("reloaded", SETUP, START, "dashboard")
    notebook.run_cell(0)
    notebook.run_cell(1)
    board, page = Board(notebook), notebook.page
    board.wait_until_done(12)
    board.click("Pause")
    board.wait_for("paused")
    touch = page.context.new_cdp_session(page)
    touch.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for kind, share in [("touchStart", 0.002), ("touchMove", 0.003), ("touchMove", 0.004), ("touchEnd", None)]:
        points = [] if share is None else [dict(zip("xy", board.at(0, share), strict=True))]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    board.wait_for_step(8)
    touch.detach()
    done = board.done

    # JupyterLab looks only briefly for the widgets of a running kernel; in another cell they appear at once.
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    kernel = "jupyterapp.shell.currentWidget?.sessionContext.session?.kernel?.status"
    page.wait_for_function(f"() => {kernel} === 'idle'")
    notebook.run_cell(2)
    board = Board(notebook, 2)
    board.wait_for("paused")
    notebook.wait_for_frame()
    assert (board.done, board.step) == (done, done)
    board.wait_for_rows(32)
    assert board.column(2)[0] == f"{done}+0="  # requested from the kernel

    # Rewind to the policy before training, which is left of the first step.
    board.curves.first.press("Home")
    board.wait_for_step(0)
    board.cell.get_by_text("Step 0, before training: no completions.").wait_for()
    board.click("Rewind to step 0")
    board.wait_for("paused.*no step yet")
    board.cell.get_by_text("Completions will appear here").wait_for()
    expect(board.cell.locator(".kit-abandoned")).to_have_count(8)
    board.click("Resume")
    board.wait_until_done(5)

    # Several abandoned branches are numbered, and each has its own dashes.
    board.click("Pause")
    board.wait_for("paused")
    board.curves.first.press("Home")
    board.wait_for_step(0)
    board.click("Rewind to step 0")
    board.wait_for("paused.*no step yet")
    notebook.wait_for_frame()
    assert board.curves.first.locator(".kit-number").all_text_contents() == ["1", "2"]
    dashes = "paths => paths.map(path => getComputedStyle(path).strokeDasharray)"
    assert board.curves.first.locator(".kit-abandoned").evaluate_all(dashes) == ["none", "7px, 4px"]
    board.click("Resume")
    board.wait_until_done(5)
    board.click("Stop")
    board.wait_for("stopped")


def sides_of_the_ring(page, node):
    """The sides of an element at whose middle its focus ring is visible."""
    box = node.bounding_box()
    clip = {"x": box["x"] - 4, "y": box["y"] - 4, "width": box["width"] + 8, "height": box["height"] + 8}
    pixels = matplotlib.image.imread(io.BytesIO(page.screenshot(clip=clip)))[:, :, :3]
    high, wide, _ = pixels.shape
    strips = {
        "top": pixels[:8, wide // 2],
        "bottom": pixels[-8:, wide // 2],
        "left": pixels[high // 2, :8],
        "right": pixels[high // 2, -8:],
    }
    color = node.evaluate("node => getComputedStyle(node).outlineColor")  # JupyterLab has its own for buttons
    ring = np.array([int(part) for part in re.findall(r"\d+", color)[:3]]) / 255
    return {side for side, strip in strips.items() if (np.abs(strip - ring).max(axis=1) < 0.02).any()}


def test_the_focus_ring_is_visible_on_all_sides(board):
    board.click("Pause")
    board.wait_for("paused")
    board.wait_for_rows(32)
    group = board.cell.locator(".kit-groups button").first
    head = board.cell.locator(".kit-scroll th button").first
    for node, key in ((board.curves.first, "ArrowLeft"), (group, "ArrowRight"), (head, "ArrowRight")):
        node.press(key)  # a key makes the ring visible
        node.scroll_into_view_if_needed()
        assert sides_of_the_ring(board.page, node) == {"top", "bottom", "left", "right"}


@pytest.mark.parametrize("awaited", [False, True])
def test_a_page_reloaded_during_a_run_shows_it_in_its_cell(open_notebook, awaited):
    notebook = open_notebook(f"reloaded_running_{awaited}", SETUP, START, AWAIT)
    if awaited:
        notebook.run_all()
    else:
        notebook.run_cell(0)
        notebook.run_cell(1)
    board, page = Board(notebook), notebook.page
    board.wait_until_done(12)
    notebook.save()
    for _ in range(TIMES):
        done = board.done
        page.reload()
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        board.wait_until_done(done + 5)
        expect(board.curves).to_have_count(9)
        assert not board.cell.locator(".kit-still").is_visible()
        board.click("Pause")
        board.wait_for("paused")
        board.wait_for_rows(32)
        board.click("Resume")
        board.wait_for("running")
    board.click("Stop")
    board.wait_for("stopped")


# As at a reload: JupyterLab asks for a subshell for the page's widgets, and its setting for none arrives before the
# answer. The last request is answered after those of the widgets.
SWITCH = """async () => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const kernels = jupyterapp.serviceManager.kernels;
  kernels.commsOverSubshells = "perCommTarget";
  await new Promise(done => setTimeout(done));
  kernels.commsOverSubshells = "disabled";
  await kernel.requestCreateSubshell({}).done;
  await new Promise(done => setTimeout(done));
  return [...kernel._comms.values()].map(comm => comm.subshellId);
}"""


def test_no_widget_sends_to_a_subshell_that_jupyterlab_has_deleted(board):
    found = board.page.evaluate(SWITCH)
    assert len(found) > 2
    assert set(found) == {None}
    board.click("Pause")
    board.wait_for("paused")


def test_interrupting_the_kernel_ends_the_run_and_a_restart_leaves_the_picture(board):
    board.notebook.command("notebook:interrupt-kernel")
    board.notebook.wait_until_idle()
    assert "stopped: step" in board.notebook.text(2)
    board.wait_for("stopped")
    board.click("Continue")
    board.wait_for("running")
    board.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    board.cell.locator(".kit-still svg[role=img]").wait_for()
    assert board.curves.count() == 0 or not board.curves.first.is_visible()
