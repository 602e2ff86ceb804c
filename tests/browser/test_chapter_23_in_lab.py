"""Chapter 23 in JupyterLab: a question is typed, the thinking switched on, and the tokens of the chat follow."""


def test_a_chat_follows_its_switch_and_its_question(open_notebook):
    notebook = open_notebook("23_a_real_qwen3")
    notebook.run("setup", "added")
    panel = notebook.open_panel("panel")
    notebook.wait_for_words("21 tokens, 5 of them marks")
    panel.locator("input[type=checkbox]").last.check()
    notebook.wait_for_words("17 tokens, 3 of them marks")
    panel.locator("select").select_option("be brief")
    notebook.wait_for_words("['<|im_start|>'] 'system'")
    box = panel.locator("input[type=text]").last
    box.fill("7+8?")
    box.press("Enter")
    notebook.wait_for_words("'7' '+' '8' '?' ['<|im_end|>']")
