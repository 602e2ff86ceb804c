"""Chapter 23 in JupyterLab: a question is typed, the thinking switched on, and the tokens of the chat follow."""

import pytest

pytestmark = pytest.mark.timeout(600)


def test_a_chat_follows_its_switch_and_its_question(open_notebook):
    notebook = open_notebook("23_a_real_qwen3")
    for id in ("setup", "added"):
        notebook.run_cell(notebook.place_of(id))
        notebook.wait_until_idle(120)
    at = notebook.place_of("panel")
    notebook.show(at)
    notebook.run_cell(at)
    notebook.wait_until_idle(120)
    notebook.wait_for_words("21 tokens, 5 of them marks")
    panel = notebook.cell(at)
    panel.locator("input[type=checkbox]").last.check()
    notebook.wait_for_words("17 tokens, 3 of them marks")
    panel.locator("select").select_option("be brief")
    notebook.wait_for_words("['<|im_start|>'] 'system'")
    box = panel.locator("input[type=text]").last
    box.fill("7+8?")
    box.press("Enter")
    notebook.wait_for_words("'7' '+' '8' '?' ['<|im_end|>']")
