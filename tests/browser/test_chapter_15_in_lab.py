"""The panels of chapter 15 in JupyterLab: rewards push logits, and clouds of groups shrink, by keyboard."""


def test_rewards_push_and_groups_scatter(open_notebook):
    notebook = open_notebook("15_policy_gradients")
    notebook.run("setup", "bandit")
    panel = notebook.open_panel("nudge")
    notebook.wait_for_words("B 25%, reward 1, push 0; C 25%, reward 3, push +0.50. The mean reward 1.")

    notebook.slider(panel, "added to all").press("ArrowRight")
    notebook.wait_for_words("B 25%, reward 2, push 0; C 25%, reward 4, push +0.50. The mean reward 2.")
    notebook.slider(panel, "B pays").press("ArrowRight")
    notebook.wait_for_words("B 25%, reward 2.5, push +0.09")

    notebook.run("score", "parabola", "bias")
    panel = notebook.open_panel("panel")
    notebook.wait_for_words("Groups of 4. Exact variance: none 0.422, best constant 0.116")
    notebook.slider(panel, "group size").press("ArrowRight")
    notebook.wait_for_words("Groups of 6. Exact variance: none 0.281,")
    notebook.slider(panel, "added to all").press("ArrowRight")
    notebook.wait_for_words("Groups of 6. Exact variance: none 0.677,")
    panel.locator("select").select_option("none")
    notebook.wait_for_words("Measured, none: 0.6")
