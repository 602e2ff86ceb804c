"""The switchboard and the step panel of chapter 06 in JupyterLab: pictures follow the controls."""

IMPORTS = """
import numpy as np
from ipywidgets import Checkbox, Dropdown, FloatLogSlider
import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_06.broken_rules import BROKEN_RULES, try_out
from mlx_grpo_kit.gradcheck import gradcheck
from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.course.chapters.chapter_06.pictures.step_sizes import draw_step_sizes
from mlx_grpo_kit.course.chapters.chapter_06.pictures.switchboard import draw_switch
rules = {rule.name: rule for rule in BROKEN_RULES}
checkers = {"kit": lambda fn, x: gradcheck(fn, T.Tensor(x)).passed}
"""
SWITCHBOARD = """
Panel(lambda switch, broken: draw_switch(**vars(try_out(rules[switch], broken, checkers))),
      switch=Dropdown(options=list(rules)), broken=Checkbox(True))
"""
STEPS = """
Panel(lambda method, h: draw_step_sizes(np.sin, np.cos, 1.0, h, method=method),
      method=Dropdown(options=["both sides", "complex step"]), h=FloatLogSlider(1e-5, min=-12, max=0, step=1))
"""


def wait_for_picture(notebook, index, words):
    notebook.page.wait_for_function(
        "([cell, words]) => [...document.querySelectorAll(`${cell} img, ${cell} svg[role=img]`)].some(picture =>"
        " (picture.alt ?? picture.querySelector('title').textContent).includes(words)"
        " && picture.getBoundingClientRect().width > 500)",
        arg=[f'.jp-Cell[data-windowed-list-index="{index}"] .widget-html', words],
    )


def test_the_switchboard_and_the_steps(open_notebook):
    notebook = open_notebook("clinic", IMPORTS, SWITCHBOARD, STEPS)
    notebook.run_all()
    notebook.cell(1).locator(".widget-html img").wait_for()
    wait_for_picture(notebook, 1, "The rule in use is broken: b: g")
    notebook.cell(1).locator(".widget-checkbox input").uncheck()
    wait_for_picture(notebook, 1, "The rule in use is right: b: -g")
    notebook.cell(1).locator("select").select_option("softmax: 1% too much")
    wait_for_picture(notebook, 1, "softmax: 1% too much. The rule in use is right")
    notebook.cell(1).locator(".widget-checkbox input").check()
    wait_for_picture(notebook, 1, "kit: caught")

    wait_for_picture(notebook, 2, "by both sides. With h = 1.0e-05")
    handle = notebook.cell(2).locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    wait_for_picture(notebook, 2, "With h = 1.0e-06")
    notebook.cell(2).locator("select").select_option("complex step")
    wait_for_picture(notebook, 2, "by complex step. With h = 1.0e-06")


def test_a_report_is_text_and_a_picture_with_words(open_notebook):
    notebook = open_notebook("report", IMPORTS, "gradcheck(T.tanh, T.Tensor(np.ones((2, 3)), label='x'))")
    notebook.run_all()
    notebook.wait_for_text(1, "gradcheck passed: 6 derivatives")
    image = notebook.cell(1).locator(".jp-OutputArea-output img")
    image.wait_for()
    assert image.get_attribute("alt").startswith("Maps of analytic minus numeric, one for each input. 'x', 2 by 3")
    assert image.evaluate("image => image.naturalWidth") > 500
