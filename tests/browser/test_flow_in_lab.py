"""The model as boxes in JupyterLab: opened by keyboard, steered by panel and click, and opened in a stored notebook."""

import re

SET_UP = """from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.instruments.flow import show_flow
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
config, params = load_pretrained(TINY)
tokenizer = load_tokenizer(TINY)"""
SHOW = 'show_flow(config, params, tokenizer, "12+34=", answer="46")'
QUERY = 'details[data-box="layers.0.self_attn.q_proj"]'


def test_boxes_open_follow_the_controls_and_stay_open(open_notebook, lab, browser):
    notebook = open_notebook("flow", SET_UP, SHOW)
    notebook.run_all()
    live = notebook.page.locator(".kit-live")
    live.locator(".kit-flow").wait_for()
    query = live.locator(QUERY)
    query.locator("summary").first.focus()
    query.locator("summary").first.press("Enter")
    query.locator("h5", has_text="q_proj[0] =").wait_for()

    query.locator(".all td").nth(11).click()  # a click on a number chooses it,
    query.locator("h5", has_text="q_proj[11] =").wait_for()  # and open boxes stay open
    query.locator("summary", has_text="All 128 products").click()
    head = live.locator('.noUi-handle[aria-label="head"]')
    head.focus()
    head.press("ArrowRight")
    query.locator(".words", has_text="query of head 1").wait_for()
    assert len(query.locator("pre").inner_text().splitlines()) == 128

    live.locator("select").first.select_option("backward")
    query.locator("h5", has_text="Its gradient: grad q_proj[11] =").wait_for()
    assert "Gradients flow up" in live.locator(".kit-flow").inner_text()
    prompt = live.locator("input[type=text]").first
    prompt.fill("12\u00e9")
    prompt.press("Enter")
    live.get_by_text("This tokenizer has no token for '\u00e9'").wait_for()
    prompt.fill("7*8=")
    prompt.press("Enter")
    live.locator(".kit-flow p", has_text="Token 4 '4' of '7*8=4'").wait_for()

    for width in (1000, 1400):  # nothing is cut off at the right
        notebook.page.set_viewport_size({"width": width, "height": 800})
        wide = "box => box.scrollWidth <= box.clientWidth + 1"
        assert live.locator(".kit-flow").evaluate(wide)
        right = "box => box.getBoundingClientRect().right"
        assert live.locator(".numbers").first.evaluate(right) <= live.evaluate(right) + 1

    stored = notebook.save().cells[1].outputs[1]
    assert stored["data"]["text/plain"].startswith("Token 6 '4' of '12+34=4' on its way through a Qwen3 with 2 layers")
    assert len(stored["data"]["text/html"]) < 300_000
    notebook.close()

    # Opened without running a cell: without scripts and style sheets, boxes still open by the keyboard.
    url, root = lab
    downloaded = root / "flow_downloaded.ipynb"
    downloaded.write_text(re.sub(r'"id": "', '"id": "x', notebook.path.read_text(encoding="utf-8")), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto(f"{url}/lab/workspaces/downloaded/tree/{downloaded.name}?reset")
    still = page.locator(".kit-still .kit-flow > details").first
    still.wait_for()
    assert page.locator(".kit-still style, .kit-still script").count() == 0
    still.locator("summary").first.focus()
    still.locator("summary").first.press("Enter")
    page.get_by_text("looked up, nothing is computed").first.wait_for()
    assert still.locator(".numbers").first.bounding_box()["x"] > still.locator(".what").first.bounding_box()["x"] + 200
    page.close()
