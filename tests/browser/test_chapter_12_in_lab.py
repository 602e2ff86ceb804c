"""The panels of chapter 12 in JupyterLab: a plan follows its preset and sliders, patients change, a prompt is typed."""


def test_panels_follow(open_notebook):
    notebook = open_notebook("12_qwen3")
    notebook.run("01", "03", "15", "23")

    panel = notebook.open_panel("43")
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

    panel = notebook.open_panel("34")
    notebook.wait_for_words("Patient 1 against transformers. The first difference is in layers.0.self_attn.weights")
    panel.locator("select").first.select_option("2")
    notebook.wait_for_words("first difference is in layers.0.self_attn.q_rope, at all tokens. logits: no difference")

    panel = notebook.open_panel("47")
    typed = panel.locator("input[type=text]")
    typed.fill("37+45=82")
    typed.press("Enter")
    notebook.wait_for_words("Up to '=': embedding '!'")
    typed.fill("12 \N{GREEK SMALL LETTER PI}")
    typed.press("Enter")
    panel.get_by_text("This tokenizer has no token for").wait_for()
