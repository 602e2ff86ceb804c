"""The editable reward of chapter 14 in JupyterLab: typed, chosen from the menu, and nonsense answered in words."""

import pytest

pytestmark = pytest.mark.timeout(240)


def place_of(notebook, id):
    return next(place for place, cell in enumerate(notebook.saved().cells) if cell.id == f"14-{id}")


def wait_for_words(notebook, words):
    notebook.page.wait_for_function(
        "words => [...document.querySelectorAll('.widget-html svg title')].some(title =>"
        " title.textContent.includes(words))",
        arg=words,
    )


def test_a_reward_is_typed_and_the_picture_follows(open_notebook):
    notebook = open_notebook("14_tasks_and_rewards")
    for id in ("setup", "first", "verify", "partial-look"):
        notebook.run_cell(place_of(notebook, id))
        notebook.wait_until_idle(120)
    at = place_of(notebook, "panel")
    notebook.show(at)
    notebook.run_cell(at)
    notebook.wait_until_idle(120)
    wait_for_words(notebook, "your reward: mean 0.93")
    panel = notebook.cell(at)
    box = panel.locator("textarea").last

    def type_reward(body):
        box.fill(f"def reward(prompt, answer, completion):\n    {body}")
        box.press("Tab")  # away from the box

    type_reward("return 2.5")
    wait_for_words(notebook, "your reward: mean 2.50; 64 of 64 groups all equal")
    type_reward("return int(completion")
    panel.get_by_text("Line 2 is not Python yet: '(' was never closed.").wait_for()
    type_reward("return completion")
    panel.get_by_text("a reward is a finite number").wait_for()
    type_reward("return None")
    wait_for_words(notebook, "your reward: nothing is scored")
    panel.locator("select").select_option("length")
    wait_for_words(notebook, "your reward: mean 0.59; 43 of 64 groups all equal")
    assert "len(completion)" in box.input_value()
