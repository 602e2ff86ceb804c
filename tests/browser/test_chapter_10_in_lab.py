"""The panels of chapter 10 in JupyterLab: positions, gates and numbers are moved, and picture and words follow."""


def open_panel(notebook, words):
    number = notebook.place_with(words)
    notebook.show(number)
    notebook.run_cell(number)
    panel = notebook.cell(number)
    panel.locator(".widget-html svg[role=img]").wait_for()

    def press(slider, key, times=1):
        for _ in range(times):
            notebook.slider(panel, slider).press(key)

    return press


def test_only_the_distance_moves_the_product_and_gates_and_norms_follow(open_notebook):
    notebook = open_notebook("10_transformer_parts")
    notebook.run_cell(notebook.place_with("# Set-up"))

    press = open_panel(notebook, "def turn(query_at")
    notebook.wait_for_words("a query at position 10 and a key at position 3, 7 apart")
    notebook.wait_for_words("Their product is 3.69; all 16 pairs give 6.01")
    press("both further by", "ArrowRight", 2)
    notebook.wait_for_words("a query at position 12 and a key at position 5, 7 apart")
    notebook.wait_for_words("Their product is 3.69; all 16 pairs give 6.01")
    press("of the key", "ArrowRight")
    notebook.wait_for_words("a query at position 12 and a key at position 6, 6 apart")
    press("pair", "ArrowLeft")
    notebook.wait_for_words("Pair 0 makes a full turn every 6.28 positions")

    press = open_panel(notebook, "Panel(draw_gate")
    notebook.wait_for_words("A gate of 2.00: silu is 1.76")
    press("gate", "ArrowRight")
    notebook.wait_for_words("A gate of 2.10: silu is 1.87")

    press = open_panel(notebook, "draw_norms([a, b, c]")
    notebook.wait_for_words("RMSNorm turns it into 0.33, \N{MINUS SIGN}0.33, 1.67")
    press("eps", "End")
    notebook.wait_for_words("RMSNorm turns it into 0.10, \N{MINUS SIGN}0.10, 0.48")
