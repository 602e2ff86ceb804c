"""Every control of a panel has a name, and its value is the one that a reader sees next to it."""

PANEL = """
import ipywidgets as widgets
from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.viz.chart import Chart

def draw(**values):
    return Chart(60, 30), f"The values are {values}."

panel = Panel(draw, tied=widgets.Checkbox(False, description="tied", indent=False), bare=widgets.Checkbox(True),
              rate=widgets.FloatLogSlider(0.01, min=-6, max=0, step=1, description="learning rate"),
              size=widgets.SelectionSlider(options=[8, 16, 32], value=16, description="completions"),
              model=widgets.Dropdown(options=["small", "large"], description="model"),
              x=widgets.FloatSlider(0.5, min=0, max=1, step=0.25), count=widgets.BoundedIntText(3, 0, 9),
              prompt=widgets.Text("2 + 2"))
panel
"""
ROLES = {"checkbox", "slider", "combobox", "textbox", "spinbutton", "button"}


def controls(notebook):
    """List (role, name, value) of every control of the panel, as Chromium gives them to a screen reader."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    try:
        panel = session.send("Runtime.evaluate", {"expression": "document.querySelector('.kit-live')"})["result"]
        nodes = session.send("Accessibility.queryAXTree", {"objectId": panel["objectId"]})["nodes"]
    finally:
        session.detach()
    # This protocol leaves aria-valuetext empty; screen readers prefer it to the number.
    handles = notebook.page.locator(".kit-live .noUi-handle").all()
    announced = iter([handle.get_attribute("aria-valuetext") for handle in handles])
    found = []
    for node in nodes:
        role = node["role"]["value"]
        if node["ignored"] or role not in ROLES:
            continue
        states = {each["name"]: each["value"].get("value") for each in node.get("properties", [])}
        number = str(node.get("value", {}).get("value", ""))
        value = next(announced) if role == "slider" else states["checked"] if role == "checkbox" else number
        found.append((role, node["name"]["value"], value))
    return found


def wait_for_controls(notebook, expected):
    """Wait until the panel's controls are the expected ones; after some seconds, show the differences."""
    for _ in range(30):
        if controls(notebook) == expected:
            return
        notebook.page.wait_for_timeout(100)
    assert controls(notebook) == expected


def test_names_and_values_of_controls_are_the_words_next_to_them(open_notebook):
    notebook = open_notebook("controls", PANEL, "panel.set(rate=1e-5, size=32, tied=True)")
    notebook.run_cell(0)
    notebook.cell(0).locator(".widget-html svg[role=img]").wait_for()
    expected = [
        ("checkbox", "tied", "false"), ("checkbox", "bare", "true"), ("slider", "learning rate", "0.0100"),
        ("textbox", "learning rate, typed", "0.0100"), ("slider", "completions", "16"),
        ("textbox", "completions, typed", "16"), ("combobox", "model", "small"), ("slider", "x", "0.50"),
        ("textbox", "x, typed", "0.50"), ("spinbutton", "count", "3"), ("textbox", "prompt", "2 + 2"),
    ]  # fmt: skip
    wait_for_controls(notebook, expected)
    notebook.cell(0).get_by_role("slider", name="learning rate", exact=True).press("ArrowLeft")
    notebook.cell(0).get_by_role("slider", name="completions").press("ArrowLeft")
    notebook.cell(0).get_by_role("checkbox", name="bare").press("Space")
    expected[1] = ("checkbox", "bare", "false")
    expected[2:6] = [
        ("slider", "learning rate", "0.00100"),
        ("textbox", "learning rate, typed", "0.00100"),
        ("slider", "completions", "8"),
        ("textbox", "completions, typed", "8"),
    ]
    wait_for_controls(notebook, expected)
    notebook.run_cell(1)  # the kernel moves them
    expected[0] = ("checkbox", "tied", "true")
    expected[2:6] = [
        ("slider", "learning rate", "0.0000100"),
        ("textbox", "learning rate, typed", "0.0000100"),
        ("slider", "completions", "32"),
        ("textbox", "completions, typed", "32"),
    ]
    wait_for_controls(notebook, expected)


PLANS = """
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.course.chapters.chapter_12.plan import plan_panel
from mlx_grpo_kit.course.chapters.chapter_21.plan import memory_panel
config = Qwen3Config.from_name("0.6B")
"""


def test_every_control_of_a_panel_has_its_own_name_and_a_value(open_notebook):
    notebook = open_notebook("controls_of_plans", PLANS, "# a panel")
    notebook.run_cell(0)
    for panel in ("plan_panel", "memory_panel"):
        notebook.set_source(1, f"{panel}(config)")
        notebook.run_cell(1)
        notebook.wait_until_idle()
        notebook.cell(1).locator(".widget-html svg[role=img]").wait_for()
        found = controls(notebook)
        names = [name for _, name, _ in found]
        assert len(found) >= 9
        assert all(name.strip(" \u200b") and value for _, name, value in found), found
        assert len(set(names)) == len(names), names
        readouts = notebook.cell(1).locator(".kit-live .widget-readout").all_text_contents()
        assert [value for role, _, value in found if role == "slider"] == readouts
