"""The panels of chapter 16 in JupyterLab: rewards, the clip and token weights follow the keyboard."""

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


def test_rewards_ratios_and_lengths_move_their_pictures(open_notebook):
    notebook = open_notebook("16_grpo_loss")
    notebook.run_cell(notebook.place_of("setup"))
    notebook.wait_until_idle(120)

    panel = open_panel(notebook, "adv-panel")
    notebook.wait_for_words("Mean 0.57, deviation 0.51.")
    handle(panel, "'55'").press("End")  # to 2, the largest
    notebook.wait_for_words("'55': reward 2, advantage")
    notebook.wait_for_words("Mean 1.07")
    panel.locator("select").select_option("no")
    notebook.wait_for_words("'55': reward 2, advantage +0.9")  # 2 - 1.075, not divided

    panel = open_panel(notebook, "clip-panel")
    notebook.wait_for_words("A = +1.0: objective +1.20, slope 0, clipped: far enough, no gradient.")
    handle(panel, "ratio r").press("Home")
    notebook.wait_for_words("Ratio 0.00, edges 0.80 and 1.20.")
    notebook.wait_for_words("A = -1.0: objective -0.80, slope 0, clipped")
    handle(panel, "ε (below)").press("ArrowRight")
    notebook.wait_for_words("edges 0.78 and 1.20")

    panel = open_panel(notebook, "weigh-panel")
    notebook.wait_for_words("shares of the grpo loss. good, 2: a token 12.5%")
    handle(panel, "good a").press("ArrowRight")
    notebook.wait_for_words("good, 3: a token 8.3%, the completion 25.0%.")
    panel.locator("select").select_option("dapo")
    notebook.wait_for_words("shares of the dapo loss. good, 3: a token 2.2%")  # 1 of 22 here and 24 elsewhere
