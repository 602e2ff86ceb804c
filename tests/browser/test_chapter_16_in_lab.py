"""The panels of chapter 16 in JupyterLab: rewards, the clip and token weights follow the keyboard."""


def test_rewards_ratios_and_lengths_move_their_pictures(open_notebook):
    notebook = open_notebook("16_grpo_loss")
    notebook.run("setup")

    panel = notebook.open_panel("adv-panel")
    notebook.wait_for_words("Mean 0.57, deviation 0.51.")
    notebook.slider(panel, "'55'").press("End")  # to 2, the largest
    notebook.wait_for_words("'55': reward 2, advantage")
    notebook.wait_for_words("Mean 1.07")
    panel.locator("select").select_option("no")
    notebook.wait_for_words("'55': reward 2, advantage +0.9")  # 2 - 1.075, not divided

    panel = notebook.open_panel("clip-panel")
    notebook.wait_for_words("A = +1.0: objective +1.20, slope 0, clipped: far enough, no gradient.")
    notebook.slider(panel, "ratio r").press("Home")
    notebook.wait_for_words("Ratio 0.00, edges 0.80 and 1.20.")
    notebook.wait_for_words("A = -1.0: objective -0.80, slope 0, clipped")
    notebook.slider(panel, "ε (below)").press("ArrowRight")
    notebook.wait_for_words("edges 0.78 and 1.20")

    panel = notebook.open_panel("weigh-panel")
    notebook.wait_for_words("shares of the grpo loss. good, 2: a token 12.5%")
    notebook.slider(panel, "good a").press("ArrowRight")
    notebook.wait_for_words("good, 3: a token 8.3%, the completion 25.0%.")
    panel.locator("select").select_option("dapo")
    notebook.wait_for_words("shares of the dapo loss. good, 3: a token 2.2%")  # 1 of 22 here and 24 elsewhere
