"""Chapter 23 in JupyterLab: a question is typed, the thinking switched on, and the tokens of the chat follow."""


def test_a_chat_follows_its_switch_and_its_question(open_notebook):
    notebook = open_notebook("23_a_real_language_model")
    notebook.run("setup", "model", "marks", "render")
    panel = notebook.open_panel("panel-code")
    panel.locator("select").first.select_option("tiny-chat, in Qwen3's form")
    notebook.wait_for_words("21 tokens, 5 of them marks")
    panel.locator("input[type=checkbox]").last.check()
    notebook.wait_for_words("17 tokens, 3 of them marks")
    panel.locator("select").last.select_option("be brief")
    notebook.wait_for_words("['<|im_start|>'] 'system'")
    box = panel.locator("input[type=text]").last
    box.fill("7+8?")
    box.press("Enter")
    notebook.wait_for_words("'7' '+' '8' '?' ['<|im_end|>']")
