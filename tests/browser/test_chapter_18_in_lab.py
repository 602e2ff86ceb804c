"""Chapter 18 in JupyterLab: the dashboard rewinds the real trainer, and the microscope opens on its last step."""

import re


def test_a_run_is_rewound_to_another_reward_and_inspected(open_notebook):
    notebook = open_notebook("18_grpo_training")
    notebook.run("setup", "look", "dashboard")
    at = notebook.place_of("dashboard")
    notebook.show(at)
    cell = notebook.cell(at)

    def click(name):
        cell.get_by_role("button", name=name, exact=True).click()

    def wait_for(words):
        cell.locator(".kit-dashboard .kit-row", has_text=re.compile(words)).first.wait_for()

    wait_for("finished.*step 60 of 60")
    curve = cell.locator("svg[role=slider]").first
    curve.focus()
    for _ in range(40):
        curve.press("ArrowLeft")
    cell.locator('svg[aria-valuenow="20"]').first.wait_for()
    cell.locator(".kit-scroll tbody tr").first.wait_for()
    cell.get_by_role("combobox", name="reward").select_option("short")
    click("Rewind to step 20")
    wait_for("reward short")
    for name in ("Resume", "Continue"):
        button = cell.get_by_role("button", name=name, exact=True)
        if button.count() and button.is_visible() and button.is_enabled():
            button.click()
            break
    wait_for("finished.*step 60 of 60.*reward short")
    assert cell.locator(".kit-abandoned").count()
    short = [text.strip() for text in cell.locator(".kit-scroll tbody tr td:nth-child(3)").all_inner_texts()]
    assert sum(text == "(empty)" or len(text) < 2 for text in short) > len(short) / 2, "it has learned to be short"

    notebook.run("futures", "microscope")
    microscope = notebook.cell(notebook.place_of("microscope")).locator(".kit-widget")
    microscope.wait_for()
    microscope.get_by_text("advantage").first.wait_for()
