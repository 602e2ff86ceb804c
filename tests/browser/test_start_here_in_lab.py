"""Chapter 00 as a learner uses it: clicks on Pause and Stop, an edited reward, the kernel interrupted."""

import re
from html import unescape

NAME = "00_start_here"
SETTINGS = """
settings = GRPOConfig(learning_rate=4e-4, seed=0, num_generations=8, per_device_train_batch_size=128)
"""
SEVENS = """
def my_reward(problems, completions):
    return [1.0 if "7" in text else 0.0 for text in completions]
"""


def pictures(notebook, index):
    """The words of the pictures that a cell shows."""
    return [
        unescape(alt)
        for output in notebook.outputs(index)
        for alt in re.findall(r'<img[^>]* alt="([^"]+)"', output.get("data", {}).get("text/html", ""))
    ]


def steps_drawn(notebook, index):
    return int(re.search(r"over (\d+) steps", pictures(notebook, index)[0])[1])


def test_pause_and_stop_hold_and_end_the_training(open_notebook):
    notebook = open_notebook(NAME)
    training, waiting = notebook.place_with("plot.start("), notebook.place_with("await run")
    for index in (notebook.place_with("# Set-up"), notebook.place_with("def answer("), training, waiting):
        notebook.run_cell(index)
    notebook.show(training)
    notebook.wait_for_text(training, "running: step", seconds=120)

    notebook.click(training, "Pause")
    notebook.wait_for_text(training, "paused: step")
    status = notebook.cell(training).locator(".kit-live-plot .kit-row").first
    paused = status.inner_text()
    notebook.page.wait_for_timeout(1000)
    assert status.inner_text() == paused
    notebook.click(training, "Resume")
    notebook.wait_for_text(training, "running: step")
    notebook.click(training, "Stop")
    notebook.wait_until_idle()

    assert 1 < steps_drawn(notebook, training) < 400
    measured, counted = notebook.place_with("accuracy_after ="), notebook.place_with("after = Counter(")
    notebook.run_cell(measured)
    notebook.run_cell(counted)
    notebook.wait_until_idle()
    assert len(pictures(notebook, counted)) == 1
    for index in (waiting, measured, counted):  # what was stopped early need not have learned enough
        assert [output for output in notebook.outputs(index) if output["output_type"] == "error"] == []


def test_edit_the_reward_and_interrupt(open_notebook):
    notebook = open_notebook(NAME)
    reward, steered = notebook.place_with("def my_reward("), notebook.place_with("my_plot.watch(")
    answers = notebook.place_with("steered_answers =")
    for words in ("# Set-up", "def answer("):
        notebook.run_cell(notebook.place_with(words))
    training = notebook.place_with("plot.start(")
    notebook.set_source(training, SETTINGS)
    notebook.run_cell(training)

    notebook.set_source(reward, SEVENS)
    notebook.show(steered)
    notebook.run_cell(reward)
    notebook.run_cell(steered)
    notebook.wait_for_text(steered, "running: step")
    notebook.command("notebook:interrupt-kernel")
    notebook.wait_until_idle()
    assert 0 < steps_drawn(notebook, steered) < 100
    assert [output for output in notebook.outputs(steered) if output["output_type"] == "error"] == []

    notebook.run_cell(steered)
    notebook.run_cell(answers)
    notebook.wait_until_idle(seconds=120)
    assert steps_drawn(notebook, steered) == 100
    most_frequent = re.search(r"trained on my_reward: (\d+)", pictures(notebook, answers)[0])[1]
    assert "7" in most_frequent

    # Each widget has no words of its own and a still picture after it, for a page without a kernel.
    outputs = [output.get("data", {}) for cell in notebook.save().cells for output in cell.get("outputs", [])]
    live = [place for place, data in enumerate(outputs) if any("widget-view" in kind for kind in data)]
    assert len(live) == 1
    assert outputs[live[0]]["text/plain"] == ""
    assert "kit-still" in outputs[live[0] + 1]["text/html"]
