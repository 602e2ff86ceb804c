"""The panel of chapter 19 in JupyterLab: two variants side by side follow their menus and sliders."""


def test_two_variants_side_by_side(open_notebook):
    notebook = open_notebook("19_variant_lab")
    notebook.run("setup")
    panel = notebook.open_panel("panel")
    notebook.wait_for_words("29+78= after 0 updates.")
    notebook.slider(panel, "updates").press("ArrowRight")
    notebook.wait_for_words("29+78= after 1 update.")
    panel.locator("select").last.select_option("cispo")
    notebook.wait_for_words("cispo: ")
    notebook.slider(panel, "group").press("ArrowRight")
    notebook.page.wait_for_function(
        "words => ![...document.querySelectorAll('.widget-html svg title')].some(t => t.textContent.includes(words))",
        arg="29+78=",
    )
