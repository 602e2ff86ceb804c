"""The panels of chapter 15 in JupyterLab: rewards push logits, and clouds of groups shrink, by keyboard."""

import pytest

pytestmark = pytest.mark.timeout(600)


def run(notebook, *ids):
    for id in ids:
        notebook.run_cell(notebook.place_of(id))
        notebook.wait_until_idle(120)


def test_rewards_push_and_groups_scatter(open_notebook):
    notebook = open_notebook("15_policy_gradients")
    run(notebook, "setup", "bandit")
    at = notebook.place_of("nudge")
    notebook.show(at)
    run(notebook, "nudge")
    notebook.wait_for_words("B 25%, reward 1, push 0; C 25%, reward 3, push +0.50. The mean reward 1.")
    panel = notebook.cell(at)

    def handle(label):
        return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")

    handle("added to all").press("ArrowRight")
    notebook.wait_for_words("B 25%, reward 2, push 0; C 25%, reward 4, push +0.50. The mean reward 2.")
    handle("B pays").press("ArrowRight")
    notebook.wait_for_words("B 25%, reward 2.5, push +0.09")

    run(notebook, "score", "parabola", "bias")
    at = notebook.place_of("panel")
    notebook.show(at)
    run(notebook, "panel")
    notebook.wait_for_words("Groups of 4. Exact variance: none 0.422, best constant 0.116")
    panel = notebook.cell(at)
    handle("group size").press("ArrowRight")
    notebook.wait_for_words("Groups of 6. Exact variance: none 0.281,")
    handle("added to all").press("ArrowRight")
    notebook.wait_for_words("Groups of 6. Exact variance: none 0.677,")
    panel.locator("select").select_option("none")
    notebook.wait_for_words("Measured, none: 0.6")
