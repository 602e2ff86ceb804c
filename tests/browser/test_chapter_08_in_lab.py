"""The panels of chapter 08 in JupyterLab: a kernel is chosen, slid and typed, and the picture follows."""

from mlx_grpo_kit.course.digits import load_digits

SET_UP, PANEL = 1, 3


def test_a_kernel_slides_over_a_digit_by_hand_and_by_itself(open_notebook):
    notebook = open_notebook("08_convolutions")
    notebook.run_cell(SET_UP)
    notebook.show(PANEL)
    notebook.run_cell(PANEL)
    panel = notebook.cell(PANEL)
    panel.locator(".widget-html svg[role=img]").wait_for()
    notebook.wait_for_words("at stop 15 of 36 on an image of 8 x 8 with stride 1 and padding 0")
    handles = panel.locator(".noUi-handle")
    handles.first.press("ArrowRight")
    notebook.wait_for_words("at stop 16 of 36")

    # A larger stride leaves fewer stops, and the slider ends at the last of them.
    notebook.slider(panel, "stride").press("ArrowRight")
    notebook.wait_for_words("at stop 9 of 9 on an image of 8 x 8 with stride 2")
    handles.first.press("ArrowRight")
    notebook.slider(panel, "padding").press("ArrowRight")
    notebook.wait_for_words("at stop 9 of 16 on an image of 8 x 8 with stride 2 and padding 1")

    # A kernel of one's own: with a 2 in its centre the output is twice every second pixel.
    panel.locator("select").nth(1).select_option("my own")
    text = panel.locator("input[type=text]")
    text.fill("0 0 0  0 2 0  0 0 0")
    text.press("Enter")
    digits = load_digits()
    three = digits.test_images[digits.test_labels == 3][0, 0]
    notebook.wait_for_words(f"The output ranges from 0 to {2 * three[::2, ::2].max():.2f}.")

    notebook.run_cell(PANEL)
    notebook.wait_for_words("at stop 15 of 36")
    panel.locator(".widget-play button").first.click()
    notebook.wait_for_words("at stop 17 of 36")
