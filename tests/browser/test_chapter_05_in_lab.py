"""Chapter 05's panels in JupyterLab: the picture follows menu and sliders, the table of edges its own menu."""


def test_the_heatmaps_and_the_table_of_edges(open_notebook):
    notebook = open_notebook("05_operations")
    notebook.run("01", "12")
    panel = notebook.open_panel("13")

    def wait_for_picture(words):
        panel.locator(f'.widget-html img[alt*="{words}"]').wait_for()

    wait_for_picture("x * x. Starting with out[1, 2] = 2.25: only x[1, 2] gets a gradient, 3.")
    panel.locator("select").first.select_option("softmax(x)")
    wait_for_picture("softmax(x). Starting with out[1, 2] = 0.17: 5 of the 20 numbers of x get a gradient, all in row")
    panel.locator("select").first.select_option("x @ w")
    wait_for_picture("4 of the 15 numbers of w get a gradient, all in column 2; they sum to 2.")
    handle = panel.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    wait_for_picture("Heatmaps of x @ w. Starting with out[2, 2]")
    panel.locator("select").first.select_option("sum(x, axis=1)")
    wait_for_picture("Starting with out[2, 0]")  # the result has one column, and the slider knows
    assert panel.locator(".widget-readout").nth(1).inner_text() == "0"
    panel.locator("select").first.select_option("x @ w")
    wait_for_picture("Heatmaps of x @ w. Starting with out[2, 0]")
    panel.locator("select").nth(1).select_option("all of out")
    wait_for_picture("Starting with the sum of all of out: 16 of the 20 numbers of x get a gradient, all in columns 0")

    table = notebook.open_panel("39")
    rows = table.locator(".widget-html tbody tr")
    table.locator(".widget-html td", has_text="where(x > 0, sqrt(x), 0)").wait_for()
    everything = rows.count()
    assert everything > 35
    assert rows.evaluate_all("rows => Math.max(...rows.map(row => row.offsetHeight))") < 90  # no column is squeezed,
    page, right = (table.locator(".jp-OutputArea-output").first, "box => box.getBoundingClientRect().right")
    assert rows.nth(1).evaluate(right) <= page.evaluate(right)  # and none is cut off
    table.locator("select").first.select_option("kinks and ties")
    notebook.page.wait_for_function(
        "count => document.querySelectorAll('.widget-html tbody tr').length < count", arg=everything
    )
    assert "JAX 0.5\nMLX 0" in table.locator(".widget-html").last.inner_text()
