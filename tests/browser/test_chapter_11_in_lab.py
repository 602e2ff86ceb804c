"""Chapter 11's panels in JupyterLab: sliders move the query and the map, every cell can be pointed at and focused."""


def test_the_query_and_the_maps_follow(open_notebook):
    notebook = open_notebook("11_attention")
    notebook.run("setup", "maps", "e05")

    def picture(panel, words):
        return panel.locator(".widget-html svg title", has_text=words)

    query = notebook.open_panel("panel-query")
    picture(query, "Query (2, 0), scores times 1").wait_for(state="attached")
    handle = query.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    picture(query, "Query (1.9, 0), scores times 1").wait_for(state="attached")

    masks = notebook.open_panel("panel-masks")
    picture(masks, '"5+6=": 10 of 36; the last token sees 5 + 6 =').wait_for(state="attached")
    masks.locator("select").first.select_option("right")
    picture(masks, '"5+6=": 18 of 36; the last token sees 5 + 6 =').wait_for(state="attached")

    maps = notebook.open_panel("panel-maps")
    picture(maps, '"4" at position 4 looks most at "2" at position 1').wait_for(state="attached")
    says = maps.locator('.widget-html .kit-cell[aria-label^=\'"4" looks at "2", position 1\'] text')
    assert not says.first.is_visible()
    maps.locator(".widget-html .kit-cell").nth(4 * 8 + 1).focus()
    says.first.wait_for(state="visible")
    assert says.first.text_content().startswith('"4" looks at "2", position 1: 0.9')
    handle = maps.locator(".noUi-handle").first  # the layer
    handle.focus()
    handle.press("ArrowRight")
    picture(maps, "Attention map, layer 1, head 3.").wait_for(state="attached")
    text = maps.locator("input[type=text]").first
    text.fill("9+9=18")
    text.press("Enter")
    picture(maps, '"1" at position 4 looks most at').wait_for(state="attached")
    text.fill("")
    text.press("Enter")
    maps.get_by_role("status").get_by_text("Type a text of 1 to 20 characters.").wait_for()
