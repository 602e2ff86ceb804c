"""The panels of chapter 12 in JupyterLab: a plan follows its preset and sliders, patients change, a prompt is typed."""


def test_panels_follow(open_notebook):
    notebook = open_notebook("12_qwen3")
    notebook.run_all()
    notebook.wait_until_idle(120)

    plan = notebook.place_with("plan_panel(config)")
    notebook.show(plan)
    panel = notebook.cell(plan)
    panel.locator(".widget-html svg[role=img]").wait_for()
    notebook.wait_for_words("parameters: 303,872; embedding 3%")
    panel.locator("select").first.select_option("8B")
    notebook.wait_for_words("A Qwen3 of 36 layers reads 8 rows of 256 tokens in float32. parameters: 8.19 billion")
    panel.locator(".noUi-handle").first.press("ArrowRight")
    notebook.wait_for_words("A Qwen3 of 37 layers reads")
    notebook.page.wait_for_function(
        "() => [...document.querySelectorAll('select')].some(each => each.value === 'my own')"
    )
    panel.locator("select").last.select_option("bfloat16")
    notebook.wait_for_words("256 tokens in bfloat16")

    ward = notebook.place_with("almost_right(config")
    notebook.show(ward)
    notebook.wait_for_words("Patient 1 against transformers. The first difference is in layers.0.self_attn.weights")
    notebook.cell(ward).locator("select").first.select_option("2")
    notebook.wait_for_words("first difference is in layers.0.self_attn.q_rope, at all tokens. logits: no difference")

    lens = notebook.place_with("def look(prompt)")
    notebook.show(lens)
    typed = notebook.cell(lens).locator("input[type=text]")
    typed.fill("37+45=82")
    typed.press("Enter")
    notebook.wait_for_words("Up to '=': embedding '!'")
    typed.fill("12 \N{GREEK SMALL LETTER PI}")
    typed.press("Enter")
    notebook.cell(lens).get_by_text("This tokenizer has no token for").wait_for()
