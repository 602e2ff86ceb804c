"""Chapter 11's panels in JupyterLab: sliders move the query and the map, every cell can be pointed at and focused."""

NAME = "11_attention"


def code_cells(notebook):
    """(index, source) of every code cell."""
    cells = notebook.page.evaluate(
        "() => jupyterapp.shell.currentWidget.content.widgets.map(cell =>"
        " [cell.model.type, cell.model.sharedModel.getSource()])"
    )
    return [(index, source) for index, (kind, source) in enumerate(cells) if kind == "code"]


def test_the_query_and_the_maps_follow(open_notebook):
    notebook = open_notebook(NAME)
    cells = code_cells(notebook)
    place = {words: next(i for i, source in cells if words in source)
             for words in ("draw_one_query(\n", "def who_sees_whom", "heads = Panel(")}  # fmt: skip
    maps = place["heads = Panel("]
    for index, _ in cells:
        if index <= maps:
            notebook.run_cell(index)
    notebook.wait_until_idle(120)

    def picture(index, words):
        return notebook.cell(index).locator(".widget-html svg title", has_text=words)

    query = place["draw_one_query(\n"]
    notebook.show(query)
    picture(query, "Query (2, 0), scores times 1").wait_for(state="attached")
    handle = notebook.cell(query).locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    picture(query, "Query (1.9, 0), scores times 1").wait_for(state="attached")

    masks = place["def who_sees_whom"]
    notebook.show(masks)
    picture(masks, '"5+6=": 10 of 36; the last token sees 5 + 6 =').wait_for(state="attached")
    notebook.cell(masks).locator("select").first.select_option("right")
    picture(masks, '"5+6=": 18 of 36; the last token sees 5 + 6 =').wait_for(state="attached")

    notebook.show(maps)
    picture(maps, '"4" at position 4 looks most at "2" at position 1').wait_for(state="attached")
    says = notebook.cell(maps).locator('.widget-html .kit-cell[aria-label^=\'"4" looks at "2", position 1\'] text')
    assert not says.first.is_visible()
    notebook.cell(maps).locator(".widget-html .kit-cell").nth(4 * 8 + 1).focus()
    says.first.wait_for(state="visible")
    assert says.first.text_content().startswith('"4" looks at "2", position 1: 0.9')
    handle = notebook.cell(maps).locator(".noUi-handle").first  # the layer
    handle.focus()
    handle.press("ArrowRight")
    picture(maps, "Attention map, layer 1, head 3.").wait_for(state="attached")
    text = notebook.cell(maps).locator("input[type=text]").first
    text.fill("9+9=18")
    text.press("Enter")
    picture(maps, '"1" at position 4 looks most at').wait_for(state="attached")
    text.fill("")
    text.press("Enter")
    notebook.cell(maps).get_by_role("status").get_by_text("Type a text of 1 to 20 characters.").wait_for()
