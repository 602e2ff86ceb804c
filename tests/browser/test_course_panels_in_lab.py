"""The stepper, a slider and an exercise in JupyterLab, clicked and typed as a learner would."""

GRAPH = """
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.course.chapters.chapter_02.pictures.stepper import Stepper
from mlx_grpo_kit.viz import draw_graph
a, b = Value(2.0, label="a"), Value(-3.0, label="b")
c = a * b
c.label = "c"
"""
PANEL = """
import math
from ipywidgets import FloatSlider, FloatLogSlider
from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.course.chapters.chapter_01.pictures.slopes import draw_slope
panel = Panel(lambda x, h: draw_slope(math.sin, math.cos, x, h),
              x=FloatSlider(1.0, min=-1.5, max=1.5, step=0.5), h=FloatLogSlider(0.1, min=-12, max=0, step=1))
panel
"""


def test_the_stepper_walks_by_click_and_by_itself(open_notebook):
    notebook = open_notebook("stepper", GRAPH, "Stepper(c)")
    notebook.run_all()
    notebook.wait_for_text(1, "Before the first step")
    notebook.click(1, "Next")
    notebook.wait_for_text(1, "c = a × b = 2 × −3 = −6")  # noqa: RUF001
    notebook.click(1, "Next")
    notebook.click(1, "Next")
    notebook.wait_for_text(1, "the local derivative dc/da is −3")  # noqa: RUF001
    assert "grad −3" in notebook.cell(1).locator(".kit-live svg.kit-graph").text_content()  # noqa: RUF001
    notebook.click(1, "Previous")
    notebook.wait_for_text(1, "Backward begins")
    notebook.click(1, "Previous")
    notebook.click(1, "Previous")
    notebook.wait_for_text(1, "Before the first step")

    play = notebook.cell(1).locator(".widget-play")
    play.get_by_role("button", name="Play").click()
    notebook.wait_for_text(1, "Forward, 1 of 1")
    play.get_by_role("button", name="Stop").click()  # it keeps its place
    play.get_by_role("button", name="Play").click()
    notebook.wait_for_text(1, "Backward begins")
    play.get_by_role("button", name="Stop").click()
    notebook.page.wait_for_timeout(500)
    assert "Backward begins" in notebook.cell(1).inner_text()
    play.get_by_role("button", name="Play").click()
    notebook.wait_for_text(1, "Backward, 1 of 1")


def test_a_slider_moves_the_picture_and_the_kernel_agrees(open_notebook):
    notebook = open_notebook("slider", PANEL, "print(panel.picture.alt)")
    notebook.run_cell(0)
    words = notebook.cell(0).locator(".widget-html svg[role=img] title")
    words.wait_for(state="attached")
    assert "x = 1 and x + h = 1.1" in words.text_content()
    handle = notebook.cell(0).get_by_role("slider", name="x", exact=True)
    handle.focus()
    handle.press("ArrowLeft")
    notebook.page.wait_for_function(
        "() => document.querySelector('.widget-html svg[role=img] title').textContent"
        ".includes('x = 0.5 and x + h = 0.6')"
    )
    notebook.run_cell(1)
    notebook.wait_for_text(1, "x = 0.5 and x + h = 0.6")


def test_the_arrow_keys_belong_to_the_panel(open_notebook):
    menu = PANEL.replace("h=FloatLogSlider(0.1, min=-12, max=0, step=1))", "h=Dropdown(options=[0.1, 0.2, 0.3]))")
    notebook = open_notebook("keys", menu.replace("FloatLogSlider", "Dropdown"), "'the next cell'")
    notebook.run_cell(0)
    words = notebook.cell(0).locator(".widget-html svg[role=img] title")
    words.filter(has_text="x + h = 1.1").wait_for(state="attached")
    notebook.cell(0).locator("select").press("ArrowDown")
    words.filter(has_text="x + h = 1.2").wait_for(state="attached")
    notebook.cell(0).get_by_role("slider", name="x", exact=True).press("ArrowUp")
    words.filter(has_text="x = 1.5 and").wait_for(state="attached")
    assert notebook.page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCellIndex") == 0


def test_a_graph_is_an_image_that_unfolds_and_follows_the_theme(open_notebook):
    notebook = open_notebook("graph", GRAPH, "draw_graph(c)")
    notebook.run_all()
    svg = notebook.cell(1).locator("svg.kit-graph")
    svg.wait_for()
    assert notebook.cell(1).locator("img").count() == 0

    def color_of_text():
        return svg.locator("text").first.evaluate("text => getComputedStyle(text).fill")

    light = color_of_text()

    def change_theme(name, is_light):
        notebook.page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        notebook.page.wait_for_function("is => document.body.dataset.jpThemeLight === is", arg=is_light)

    change_theme("JupyterLab Dark", "false")
    dark = color_of_text()
    change_theme("JupyterLab Light", "true")
    assert dark != light == color_of_text()


def test_an_exercise_from_stub_to_passed(open_notebook):
    stub = (
        'import os\nos.environ["MLX_GRPO_KIT_PROGRESS"] = "progress.json"\n'
        "from mlx_grpo_kit.course import check, hint\ndef forward_slope(f, x, h):\n    ...\n"
    )
    notebook = open_notebook("exercise", f'{stub}\ncheck("01.1", forward_slope)', 'hint("01.1")')
    notebook.run_cell(0)
    notebook.wait_for_text(0, "Not attempted")
    notebook.set_source(0, f'{stub.replace("...", "return f(x + h) - f(x)")}\ncheck("01.1", forward_slope)')
    notebook.run_cell(0)
    notebook.wait_for_text(0, "That is the rise itself.")
    notebook.run_cell(1)
    notebook.wait_for_text(1, "Hint 1 of 3")
    notebook.set_source(0, f'{stub.replace("...", "return (f(x + h) - f(x)) / h")}\ncheck("01.1", forward_slope)')
    notebook.run_cell(0)
    notebook.wait_for_text(0, "Passed")


WIDE = """
from ipywidgets import FloatSlider
from mlx_grpo_kit.viz import Panel, show_picture
from mlx_grpo_kit.viz.chart import Chart
def draw(x=1.0):
    chart = Chart(1000, 200)
    chart.plane(60, 30, 900, 120, x=(0, x), y=(0, 1), title="wide").line((0, 1), (0, 1), "ink")
    return chart, f"A wide chart of {x}."
"""


def test_in_a_narrow_window_words_of_pictures_can_be_read_and_the_pictures_scroll_in_their_boxes(open_notebook):
    notebook = open_notebook("narrow", WIDE, "show_picture(*draw())", "Panel(draw, x=FloatSlider(1.0))")
    notebook.page.set_viewport_size({"width": 700, "height": 700})
    notebook.run_all()
    notebook.wait_until_idle()
    for index, place in ((1, ".jp-OutputArea-output"), (2, ".kit-live")):
        svg = notebook.cell(index).locator(f"{place} svg.kit-chart")
        svg.wait_for()
        smallest, shown, box, room = svg.evaluate(
            """svg => {
              const sizes = [...svg.querySelectorAll("text")].map(node => parseFloat(getComputedStyle(node).fontSize));
              const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
              let box = svg.parentElement;
              while (!["auto", "scroll"].includes(getComputedStyle(box).overflowX)) box = box.parentElement;
              const area = svg.closest(".jp-OutputArea-output");
              return [scale * Math.min(...sizes), box.scrollWidth, box.clientWidth, area.clientWidth];
            }"""
        )
        assert smallest >= 9 - 1e-3
        assert shown > box  # there is something to scroll to
        assert box <= room
