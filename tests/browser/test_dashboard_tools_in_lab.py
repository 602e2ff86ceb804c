"""The dashboard as a tool, in JupyterLab: saved and other runs, zoom, settings, more steps, the microscope."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from mlx_grpo_kit.runs.record import RunRecord

FAKE = (Path(__file__).parents[1] / "instruments" / "fake_trainer.py").read_text()
SETUP = f"""{FAKE}
from mlx_grpo_kit.instruments.dashboard import Dashboard

def make(seconds=0.02, max_steps=2000, **settings):
    rewards = {{"exact": exact, "format": format_reward}}
    return Dashboard(FakeTrainer(seconds), max_steps, title="A run", rewards=rewards, **settings)
"""
START = "dashboard = make()\nrun = dashboard.start()"
OPEN = "from mlx_grpo_kit.instruments.dashboard import Dashboard\nDashboard.open()"


class Board:
    """A dashboard in the output of a cell."""

    def __init__(self, notebook, cell):
        self.page, self.cell, self.index = notebook.page, notebook.cell(cell), cell
        self.wait_for_frame = notebook.wait_for_frame
        self.curves = self.cell.locator("svg[role=slider]")
        self.reward = self.curves.first

    def click(self, name):
        self.cell.get_by_role("button", name=name, exact=True).click()

    def wait_for(self, words):
        self.cell.locator(".kit-dashboard .kit-row", has_text=re.compile(words)).first.wait_for()

    def wait_until_done(self, step):
        selector = f'[data-windowed-list-index="{self.index}"] .kit-dashboard [role=progressbar]'
        done = f"Number(document.querySelector('{selector}')?.ariaValueNow ?? 0)"
        self.page.wait_for_function(f"step => {done} >= step", arg=step)

    def words_of(self, curve):
        """The numbers at the axes of a curve."""
        return self.curves.nth(curve).locator("text").all_text_contents()

    def heights(self, line):
        """The heights of the points of a line of the first curve."""
        return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", self.reward.locator(line).get_attribute("d"))]


@pytest.fixture
def begin(open_notebook):
    def begin(name, *cells):
        notebook = open_notebook(name, SETUP, *cells)
        notebook.run_cell(0)
        notebook.run_cell(1)
        return notebook, Board(notebook, 1)

    return begin


def test_one_line_reopens_a_run_that_a_restart_ended(begin, lab):
    runs = lab[1] / "outputs" / "dashboard" / "restarted"
    before = {*runs.glob("*")}  # a test that is tried again has left one
    notebook, board = begin("restarted", START, OPEN)
    board.wait_until_done(25)
    board.cell.get_by_text("This run is saved. Dashboard.open() shows it again").wait_for()
    notebook.save()
    notebook.page.reload()  # during the run
    notebook.page.wait_for_selector(".jp-Notebook .jp-Cell")
    board.wait_until_done(40)
    [folder] = {*runs.glob("*")} - before
    shown = board.cell.get_by_role("progressbar").get_attribute("aria-valuenow")
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    board.cell.locator(".kit-still svg[role=img]").wait_for()
    words = board.cell.locator(".kit-still").inner_text()
    assert re.search(r"Last seen running: step \d+ of 2000", words)
    assert "If the kernel was restarted or shut down, the run ended with it. Dashboard.open() shows it again" in words
    notebook.run_cell(2)
    again = Board(notebook, 2)
    again.wait_for(r"a saved run.*step \d+ of 2000")
    done = int(again.cell.get_by_role("progressbar").get_attribute("aria-valuenow"))
    assert done >= int(shown)
    record = RunRecord.load(folder)
    assert [step.step for step in record.steps] == [*range(1, done + 1)]
    assert record.damaged == []
    assert not again.cell.get_by_role("button", name="Continue").is_visible()
    again.reward.press("Home")
    again.cell.locator('svg[aria-valuenow="1"]').first.wait_for()
    expect(again.cell.locator(".kit-scroll tbody tr")).to_have_count(32)
    expect(again.cell.locator(".kit-scroll tbody tr td:nth-child(2)").first).to_have_text("1+0=")


def test_a_restart_before_the_first_step_leaves_words_and_no_empty_axes(begin):
    notebook, board = begin("restarted_early", "run = make(seconds=600).start()")
    board.wait_for("running")
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    board.cell.get_by_text("the run ended with it. Run the cell to train again.").wait_for()
    pictures = board.cell.locator(".jp-OutputArea-output").locator("svg, img").all()
    assert [picture for picture in pictures if picture.is_visible()] == []


def test_zoom_smoothing_and_a_logarithmic_axis_by_mouse_and_keys(begin):
    cell = (
        "dashboard = make(0, 200, measure=lambda step: {'small': 10.0 ** (-step.step / 40)})\nrun = dashboard.start()"
    )
    _, board = begin("zoomed", cell)
    board.wait_for("finished")
    board.wait_for_frame()
    assert board.words_of(0)[-2:] == ["100", "200"]
    small = board.curves.count() - 1
    assert "1e-4" not in board.words_of(small)
    board.cell.get_by_label("log axis").check()
    expect(board.curves.nth(small).get_by_text("1e-4", exact=True)).to_be_visible()

    slider = board.cell.get_by_role("slider", name="smoothing")
    assert slider.get_attribute("aria-valuetext") == "0.80"
    smooth = board.heights(".kit-line")
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "none")
    raw = board.reward.locator(".kit-raw").get_attribute("d")
    expect(board.reward.locator(".kit-line")).to_have_attribute("d", raw)
    assert board.heights(".kit-line") != smooth

    # By keys around the cursor, by the buttons, and by a drag with Shift.
    for _ in range(5):
        board.reward.press("PageDown")
    expect(board.reward).to_have_attribute("aria-valuenow", "150")
    board.reward.press("+")
    status = board.cell.locator(".kit-view [role=status]")
    expect(status).to_have_text("steps 100 to 200 of 200")
    board.click("Zoom in")
    expect(status).to_have_text("steps 125 to 175 of 200")
    board.wait_for_frame()
    assert {"140", "160"} <= {*board.words_of(0)}
    for _ in range(3):
        board.reward.press("PageDown")
    expect(status).to_have_text("steps 120 to 170 of 200")  # the range follows the cursor
    board.reward.press("-")
    board.click("All steps")
    expect(status).to_have_text("")
    box = board.reward.bounding_box()
    points = [box["x"] + 44 + share * (box["width"] - 56) for share in (0.25, 0.5)]
    board.page.keyboard.down("Shift")
    board.page.mouse.move(points[0], box["y"] + 40)
    board.page.mouse.down()
    board.page.mouse.move(points[1], box["y"] + 40, steps=3)
    board.page.mouse.up()
    board.page.keyboard.up("Shift")
    expect(status).to_have_text("steps 50 to 100 of 200")
    board.reward.press("0")
    expect(status).to_have_text("")


def test_settings_held_out_problems_and_other_runs(begin):
    first = "first = make(0.005, 40, eval_every=10)\nrun = first.start()\nawait run"
    second = "second = make(0.02, eval_every=20)\nrun = second.start()"
    notebook, board = begin("compared", first, second)
    notebook.wait_until_idle()
    notebook.run_cell(2)
    board = Board(notebook, 2)
    board.wait_until_done(45)
    board.click("Pause")
    board.wait_for("paused")
    board.wait_for_frame()
    assert board.curves.count() == 10
    held_out = board.curves.nth(1)
    assert held_out.get_attribute("aria-label") == "step on the curve of held-out problems"
    done = int(held_out.get_attribute("aria-valuenow"))
    assert held_out.locator("circle.kit-color0").count() == 2 + done // 20  # one before training, and the cursor
    right = 0.01 * (done // 20 * 20)
    words = "1.00" if right >= 1 else f"{right:.3f}"
    assert held_out.get_attribute("aria-valuetext") == f"step {done}: held-out problems {words}"

    rate = board.cell.get_by_role("textbox", name="learning rate")
    rate.fill("0.05")
    board.click("Use from now on")
    board.wait_for("learning rate 0.05")
    board.click("Resume")
    board.wait_until_done(done + 5)
    board.click("Stop")
    board.wait_for("stopped")
    board.cell.locator("summary", has_text="Settings, 1 changed during the run").click()
    board.wait_for_frame()
    row = board.cell.locator(".kit-settings tbody tr").first
    assert re.match(rf"learning_rate\s+0.01, then 0.05 from step {done + 1}\s+changed", row.inner_text())

    board.cell.locator("summary", has_text="Other runs").click()
    box = board.cell.locator(".kit-others").get_by_role("checkbox")
    expect(box).to_have_count(1)
    assert not board.reward.locator(".kit-over").count()
    box.check()
    board.reward.locator(".kit-over").wait_for(state="attached")
    assert board.reward.locator(".kit-number").all_text_contents() == ["A"]
    box.uncheck()
    expect(board.reward.locator(".kit-over")).to_have_count(0)

    more = board.cell.locator("summary", has_text="More curves")
    more.click()
    expect(board.curves).to_have_count(12)
    labels = [curve.get_attribute("aria-label") for curve in board.curves.all()]
    assert labels[10:] == ["step on the curve of held-out reward", "step on the curve of seconds per step"]


def test_a_finished_run_continues_to_the_typed_number_of_steps(begin):
    _, board = begin("longer", "dashboard = make(0.001, 20)\nrun = dashboard.start()")
    board.wait_for("finished.*step 20 of 20")
    go_on = board.cell.get_by_role("button", name="Continue")
    assert go_on.is_disabled()
    steps = board.cell.get_by_role("textbox", name="number of steps")
    steps.fill("30")
    go_on.click()
    board.wait_for("finished.*step 30 of 30")
    assert steps.input_value() == "30"
    steps.fill("a few")
    board.click("Use from now on")
    words = "The number of steps is 'a few'; expected a whole number, at least 30"
    board.cell.get_by_role("alert").filter(has_text=words).wait_for()


def test_one_click_opens_a_completion_of_any_step_in_the_microscope(open_notebook):
    setup = """from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.instruments.dashboard import Dashboard
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition
args = GRPOConfig(learning_rate=1e-3, num_generations=4, per_device_train_batch_size=16)
trainer = GRPOTrainer(*load_pretrained(TINY), load_tokenizer(TINY), Addition(), args)
dashboard = Dashboard(trainer, max_steps=8)"""
    notebook = open_notebook("opened", setup, "run = dashboard.start()", "await run")
    notebook.run_all()
    notebook.wait_until_idle(120)
    board = Board(notebook, 1)
    board.wait_for("finished.*step 8 of 8")
    for _ in range(3):
        board.reward.press("ArrowLeft")
    board.cell.get_by_text("Step 5", exact=True).wait_for()
    prompt = board.cell.locator(".kit-scroll tbody tr").nth(4).locator("td").nth(1).inner_text()
    board.cell.get_by_role("button", name="open group 2 in the microscope").first.click()
    microscope = board.cell.locator(".kit-microscope")
    microscope.wait_for()
    assert microscope.get_by_role("combobox").first.locator("option:checked").inner_text() == f"2: {prompt}"
    board.wait_for("finished.*step 8 of 8")
    assert not board.cell.get_by_role("alert").is_visible()
