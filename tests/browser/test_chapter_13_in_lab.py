"""The panels of chapter 13 in JupyterLab: filters reshape a distribution by keyboard, and a text grows."""


def test_filters_reshape_the_distribution_and_the_cost_follows_the_length(open_notebook):
    notebook = open_notebook("13_generation")
    notebook.run("setup", "steps", "whole", "greedy-use", "draw-use")
    panel = notebook.open_panel("panel")
    notebook.wait_for_words("after 27+38= at temperature 1.5: 2 of 64 tokens kept: '5' '6'. top-p removed 62.")

    notebook.slider(panel, "top-k").press("ArrowRight")
    notebook.wait_for_words("1 of 64 tokens kept: '5'. top-k removed 63. Drawn: '5' 100%.")
    notebook.slider(panel, "top-k").press("ArrowLeft")
    notebook.wait_for_words("at temperature 1.5: 2 of 64 tokens kept")
    notebook.slider(panel, "temperature").press("ArrowLeft")
    notebook.wait_for_words("at temperature 1.4: 2 of 64 tokens kept")
    text = panel.locator("input[type=text]").first
    text.fill("12+34=4")
    text.press("Enter")
    notebook.wait_for_words("after 12+34=4 at temperature 1.4")
    text.fill("")
    text.press("Enter")
    panel.get_by_role("status").get_by_text("The text is empty. Type at least one character").wait_for()

    panel = notebook.open_panel("cost")
    notebook.wait_for_words("At 60 positions one more token takes about")
    panel.locator(".widget-hslider .noUi-handle").press("ArrowRight")
    notebook.wait_for_words("At 61 positions one more token takes about")
