"""Chapter 20 in JupyterLab: the museum follows its menu, and a live run is told what is wrong with it."""


def test_the_exhibits_a_sick_run_and_a_mystery(open_notebook):
    notebook = open_notebook("20_failure_museum")
    notebook.run("setup")

    # An exhibit is chosen by keyboard, and the picture and its words follow.
    panel = notebook.open_panel("museum")
    panel.locator(".widget-html svg title", has_text="L: a reward that is too easy to get").wait_for(state="attached")
    menu = panel.locator("select")
    menu.focus()
    menu.select_option("E: masked too late")
    title = panel.locator(".widget-html svg title", has_text="E: masked too late")
    title.wait_for(state="attached")
    words = title.text_content()
    assert "gradient norm is not a number" in words
    assert "grad_norm has not been finite since step 1" in words
    picture = panel.locator(".widget-html svg[role=img]")
    assert picture.get_by_text("Changed lines").is_visible()
    assert picture.bounding_box()["width"] <= panel.bounding_box()["width"]

    # A sick run is told so under its status, and the words stay.
    at = notebook.place_of("live-run")
    notebook.show(at)
    notebook.run("live-run")
    words = notebook.cell(at).get_by_text("The gradient has been exactly 0 since step 1, although rewards differ")
    words.first.wait_for()
    saved = "".join(str(output.get("data", {}).get("text/html", "")) for output in notebook.saved().cells[at].outputs)
    assert "finished: step 25 of 25" in saved
    assert "The gradient has been exactly 0 since step 1" in saved

    # A mystery opens in the dashboard, and its table shows the step under the cursor.
    notebook.run("mystery")
    board = notebook.open_panel("mystery-4")
    curve = board.locator("svg[role=slider]").first
    curve.focus()
    notebook.page.keyboard.press("Home")
    for _ in range(29):
        notebook.page.keyboard.press("ArrowRight")
    board.locator('svg[aria-valuenow="30"]').first.wait_for()
    rows = board.locator(".kit-scroll tbody tr", has_text="16+66=")
    rows.first.wait_for()
    advantages = rows.locator("td:nth-child(5)").all_inner_texts()
    numbers = [float(text.split()[0].replace("\N{MINUS SIGN}", "-")) for text in advantages]
    assert numbers == [-0.72, -0.94, 0.72, 0.72, -0.72, -0.72, -1.21, -0.72]
