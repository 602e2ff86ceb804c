"""The panels of chapter 17 in JupyterLab: another token's surprise, another direction, and the words follow."""

SET_UP, TOKENS, NORM = 1, 3, 12


def test_another_surprise_and_another_direction(open_notebook):
    notebook = open_notebook("17_whole_model_gradients")
    notebook.run_cell(SET_UP)
    notebook.show(TOKENS)
    notebook.run_cell(TOKENS)
    panel = notebook.cell(TOKENS)
    panel.locator(".widget-html svg[role=img]").wait_for(timeout=120_000)
    notebook.wait_for_words("the surprise at '6'. At the embedding, the gradient reaches 6 of 7 tokens")
    panel.locator("select").select_option("1: '7'")
    notebook.wait_for_words("the surprise at '7'. At the embedding, the gradient reaches 1 of 7 tokens")
    panel.locator("select").select_option("all of them")
    notebook.wait_for_words("the gradient reaches 7 of 7 tokens, up to token 7")

    # What arrives along x is taken out, whole.
    notebook.show(NORM)
    notebook.run_cell(NORM)
    panel = notebook.cell(NORM)
    notebook.wait_for_words("x is (1.35, 0.66). What arrives, divided by r, has length 0.94")
    panel.locator(".noUi-handle").nth(1).press("ArrowLeft")
    notebook.wait_for_words("x is (1.26, 0.62).")
    for _ in range(10):
        panel.locator(".noUi-handle").first.press("ArrowLeft")
    notebook.wait_for_words("The gradient of x has length 0.07")
