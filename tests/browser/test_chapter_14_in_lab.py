"""The editable reward of chapter 14 in JupyterLab: typed, chosen from the menu, and messages for nonsense."""


def test_a_reward_is_typed_and_the_picture_follows(open_notebook):
    notebook = open_notebook("14_tasks_and_rewards")
    notebook.run("setup", "first", "verify", "partial-look")
    panel = notebook.open_panel("panel")
    notebook.wait_for_words("your reward: mean 0.93")
    box = panel.locator("textarea").last

    def type_reward(body):
        box.fill(f"def reward(prompt, answer, completion):\n    {body}")
        box.press("Tab")  # away from the box

    type_reward("return 2.5")
    notebook.wait_for_words("your reward: mean 2.50; 64 of 64 groups have equal rewards")
    type_reward("return int(completion")
    panel.get_by_text("Line 2 is not Python yet: '(' was never closed.").wait_for()
    type_reward("return completion")
    panel.get_by_text("a reward is a finite number").wait_for()
    type_reward("return None")
    notebook.wait_for_words("your reward: nothing is scored")
    panel.locator("select").select_option("length")
    notebook.wait_for_words("your reward: mean 0.59; 43 of 64 groups have equal rewards")
    assert "len(completion)" in box.input_value()
