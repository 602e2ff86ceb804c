"""The panels of chapter 16 in JupyterLab: rewards, the clip and token weights follow the keyboard."""

import pytest

pytestmark = pytest.mark.timeout(240)


def place_of(notebook, id):
    return next(place for place, cell in enumerate(notebook.saved().cells) if cell.id == f"16-{id}")


def wait_for_words(notebook, words):
    notebook.page.wait_for_function(
        "words => [...document.querySelectorAll('.widget-html svg title')].some(title =>"
        " title.textContent.includes(words))",
        arg=words,
    )


def open_panel(notebook, id):
    at = place_of(notebook, id)
    notebook.show(at)
    notebook.run_cell(at)
    notebook.wait_until_idle(120)
    return notebook.cell(at)


def handle(panel, label):
    return panel.locator(".widget-hslider", has_text=label).locator(".noUi-handle")


def test_rewards_ratios_and_lengths_move_their_pictures(open_notebook):
    notebook = open_notebook("16_grpo_loss")
    notebook.run_cell(place_of(notebook, "setup"))
    notebook.wait_until_idle(120)

    panel = open_panel(notebook, "adv-panel")
    wait_for_words(notebook, "Mean 0.57, deviation 0.51.")
    handle(panel, "'55'").press("End")  # to 2, the largest
    wait_for_words(notebook, "'55': reward 2, advantage")
    wait_for_words(notebook, "Mean 1.07")
    panel.locator("select").select_option("no")
    wait_for_words(notebook, "'55': reward 2, advantage +0.9")  # 2 - 1.075, not divided

    panel = open_panel(notebook, "clip-panel")
    wait_for_words(notebook, "A = +1.0: objective +1.20, slope 0, clipped: far enough, no gradient.")
    handle(panel, "ratio r").press("Home")
    wait_for_words(notebook, "Ratio 0.00, edges 0.80 and 1.20.")
    wait_for_words(notebook, "A = -1.0: objective -0.80, slope 0, clipped")
    handle(panel, "ε (below)").press("ArrowRight")
    wait_for_words(notebook, "edges 0.78 and 1.20")

    panel = open_panel(notebook, "weigh-panel")
    wait_for_words(notebook, "shares of the grpo loss. good, 2: a token 12.5%")
    handle(panel, "good a").press("ArrowRight")
    wait_for_words(notebook, "good, 3: a token 8.3%, the completion 25.0%.")
    panel.locator("select").select_option("dapo")
    wait_for_words(notebook, "shares of the dapo loss. good, 3: a token 2.2%")  # 1 of 22 here and 24 elsewhere
