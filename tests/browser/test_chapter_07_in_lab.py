"""The sheet of chapter 07 in JupyterLab: it follows the mouse and the keyboard."""

NETWORK = """
import numpy as np
import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor import nn
from mlx_grpo_kit.course.chapters.chapter_07.pictures.digits import draw_reading
from mlx_grpo_kit.course.chapters.chapter_07.pictures.paint import PaintBox
nn.manual_seed(0)
network = nn.Linear(64, 10)

def read(image, label=None, title=""):
    pixels = T.Tensor(image.reshape(1, 64).astype(np.float32), requires_grad=True)
    T.cross_entropy(network(pixels), np.array([label or 0])).backward()
    shares = T.softmax(network(pixels)).data[0]
    return draw_reading(image, shares, label, pixels.grad.reshape(8, 8), title=title)
"""
SHEET = """
box = PaintBox(lambda image: read(image, title=f"ink {image.sum():.1f}"), start=np.zeros((8, 8)))
box
"""


def test_a_sheet_is_painted_wiped_and_cleared(open_notebook):
    notebook = open_notebook("sheet", NETWORK, SHEET, "print(box.image[2, 3], box.image.sum())")
    notebook.run_cell(0)
    notebook.run_cell(1)
    sheet = notebook.cell(1).locator(".jp-OutputArea-output")
    sheet.locator(".widget-html svg[role=img]").wait_for()

    def says(words):
        title = sheet.locator(".widget-html svg title", has_text=f"{words}. The network says")
        title.wait_for(state="attached")

    pixel = sheet.locator('button[title="row 2, column 3"]')
    box = pixel.bounding_box()
    assert (box["width"], box["height"]) == (30, 30)
    says("ink 0.0")
    pixel.click()
    says("ink 2.2")
    assert pixel.evaluate("button => getComputedStyle(button).backgroundColor") == "rgb(0, 0, 0)"
    sheet.get_by_role("button", name="eraser").click()
    pixel.click()
    says("ink 1.2")
    notebook.click(1, "Clear")
    says("ink 0.0")
    sheet.get_by_role("button", name="ink", exact=True).click()
    sheet.locator('button[title="row 7, column 0"]').click()
    says("ink 1.6")

    # Drawn over: a stroke from column 3 to 5, of three dabs.
    start, end = (sheet.locator(f'button[title="row 2, column {column}"]').bounding_box() for column in (3, 5))
    notebook.page.mouse.move(start["x"] + 15, start["y"] + 15)
    notebook.page.mouse.down()
    notebook.page.mouse.move(end["x"] + 15, end["y"] + 15, steps=8)
    notebook.page.mouse.up()
    says("ink 7.0")

    # With the keyboard alone: one stop of Tab, the arrows move, Enter paints.
    assert sheet.locator('.kit-sheet button[tabindex="0"]').count() == 1
    sheet.locator('button[title="row 2, column 5"]').focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        notebook.page.keyboard.press(key)
    says("ink 9.2")
    notebook.run_cell(2)
    notebook.wait_for_text(2, "1.0 9.2")
