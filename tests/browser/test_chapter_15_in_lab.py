"""The panels of chapter 15 in JupyterLab: rewards push logits, and clouds of groups shrink, by keyboard."""

import pytest

pytestmark = pytest.mark.timeout(240)


def place_of(notebook, id):
    return next(place for place, cell in enumerate(notebook.saved().cells) if cell.id == f"15-{id}")


def wait_for_words(notebook, words):
    notebook.page.wait_for_function(
        "words => [...document.querySelectorAll('.widget-html svg title')].some(title =>"
        " title.textContent.includes(words))",
        arg=words,
    )


def run(notebook, *ids):
    for id in ids:
        notebook.run_cell(place_of(notebook, id))
        notebook.wait_until_idle(120)


def test_rewards_push_and_groups_scatter(open_notebook):
    notebook = open_notebook("15_policy_gradients")
    run(notebook, "setup", "bandit")
    at = place_of(notebook, "nudge")
    notebook.show(at)
    run(notebook, "nudge")
    wait_for_words(notebook, "B 25%, reward 1, push 0; C 25%, reward 3, push +0.50. The mean reward 1.")
    panel = notebook.cell(at)

    def handle(label):
        return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")

    handle("added to all").press("ArrowRight")
    wait_for_words(notebook, "B 25%, reward 2, push 0; C 25%, reward 4, push +0.50. The mean reward 2.")
    handle("B pays").press("ArrowRight")
    wait_for_words(notebook, "B 25%, reward 2.5, push +0.09")

    run(notebook, "score", "parabola", "bias")
    at = place_of(notebook, "panel")
    notebook.show(at)
    run(notebook, "panel")
    wait_for_words(notebook, "Groups of 4. Exact variance: none 0.422, best constant 0.116")
    panel = notebook.cell(at)
    handle("group size").press("ArrowRight")
    wait_for_words(notebook, "Groups of 6. Exact variance: none 0.281,")
    handle("added to all").press("ArrowRight")
    wait_for_words(notebook, "Groups of 6. Exact variance: none 0.677,")
    panel.locator("select").select_option("none")
    wait_for_words(notebook, "Measured, none: 0.6")
