"""The panels of chapter 21 in JupyterLab: memory, a weight's small steps, the ring and the machines follow."""

RIGHT_OF_TEXT = """readout => {
    const range = document.createRange();
    range.selectNodeContents(readout);
    return range.getBoundingClientRect().right;
}"""


def test_panels_follow(open_notebook):
    notebook = open_notebook("21_scaling_up")
    notebook.run_cell(notebook.place_of("setup"))

    def panel(id):
        place = notebook.place_of(id)
        notebook.show(place)
        notebook.run_cell(place)
        box = notebook.cell(place)
        box.locator(".widget-html svg[role=img]").wait_for(timeout=120_000)
        return box

    memory = panel("memory")
    assert memory.locator("select").nth(1).input_value() == "all weights", "a menu that opens empty"
    notebook.wait_for_words("0.6B: 64 completions of up to 256 tokens in a step. sampling: parameters 2.38 GB")
    memory.locator("select").first.select_option("8B")
    notebook.wait_for_words("8B: 64 completions of up to 256 tokens in a step. sampling: parameters 32.8 GB")
    memory.locator("input[type=checkbox]").nth(1).check()
    notebook.wait_for_words("reference 32.8 GB")
    memory.locator("select").nth(2).select_option("adafactor")
    notebook.wait_for_words("optimizer 13.4 MB")
    memory.locator("select").nth(1).select_option("LoRA, rank 8")
    notebook.wait_for_words("gradients 87.3 MB")
    memory.locator(".noUi-handle").first.press("ArrowLeft")
    notebook.wait_for_words("8B: 32 completions of up to 256 tokens")

    steps = panel("rounding")
    notebook.wait_for_words("Kept in bfloat16 it does not move. The master ends at 0.98")
    for _ in range(15):
        steps.locator(".noUi-handle").first.press("ArrowRight")
    notebook.wait_for_words("Kept in bfloat16 it ends at")

    # The solution of 21.10 stands in for the reader's, so no other cell has to run before.
    panel("ring")
    notebook.wait_for_words("A ring of 4: first round, message 2 of 3")
    ring = notebook.cell(notebook.place_of("ring"))
    ring.locator(".noUi-handle").first.press("ArrowRight")
    notebook.wait_for_words(
        "A ring of 4: first round, message 3 of 3: the received part is added. 4 of 16 parts are complete"
    )
    for _ in range(2):  # a smaller ring needs fewer messages: the slider goes back to its new end
        ring.locator(".noUi-handle").nth(1).press("ArrowLeft")
    notebook.wait_for_words("A ring of 2: second round, message 1 of 1")

    machines = panel("budget")
    notebook.wait_for_words("400 gigabits per second: 12.5% with 8, 56.2% with 64.")
    machines.locator(".noUi-handle").first.press("ArrowRight")
    notebook.wait_for_words("400 gigabits per second: 6.6")
    machines.locator(".noUi-handle").first.press("End")
    notebook.wait_for_words("8 machines learn for 503 s")
    value, name = machines.locator(".widget-readout").first, machines.locator(".widget-label").nth(1)
    gap = name.bounding_box()["x"] - value.evaluate(RIGHT_OF_TEXT)
    assert gap > 8, "a value touches the next slider's name"
