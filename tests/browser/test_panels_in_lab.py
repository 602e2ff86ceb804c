"""Panels of chapters in JupyterLab: controls are moved as by a reader, and the words of the picture follow.

A chapter with more to look at has a file of its own, test_chapter_NN_in_lab.py.
"""

import pytest

from mlx_grpo_kit.course.digits import load_digits

RIGHT_OF_TEXT = """readout => {
    const range = document.createRange();
    range.selectNodeContents(readout);
    return range.getBoundingClientRect().right;
}"""


# What a reader does in a panel: functions of the notebook and the panel's box.


def slide(which, key, times=1):
    """Press a key on a slider, which is named by its label or by its place in the panel."""

    def act(notebook, panel):
        handles = panel.locator(".noUi-handle")
        handle = handles.nth(which) if isinstance(which, int) else notebook.slider(panel, which)
        for _ in range(times):
            handle.press(key)

    return act


def choose(place, option):
    """Choose an option of the menu at this place."""
    return lambda notebook, panel: panel.locator("select").nth(place).select_option(option)


def write(place, text):
    """Type a text into the box at this place."""

    def act(notebook, panel):
        box = panel.locator("input[type=text]").nth(place)
        box.fill(text)
        box.press("Enter")

    return act


def check(place):
    """Check the box at this place."""
    return lambda notebook, panel: panel.locator("input[type=checkbox]").nth(place).check()


def says(message):
    """Wait for a message that is no picture."""
    return lambda notebook, panel: panel.get_by_text(message).first.wait_for()


def reward(body):
    """Type a reward function."""

    def act(notebook, panel):
        box = panel.locator("textarea").last
        box.fill(f"def reward(prompt, answer, completion):\n    {body}")
        box.press("Tab")  # away from the box

    return act


def the_menu_wrote_the_reward(notebook, panel):
    assert "len(completion)" in panel.locator("textarea").last.input_value()


def press_play(notebook, panel):
    notebook.run("03")
    notebook.wait_for_words("at stop 15 of 36")
    panel.locator(".widget-play button").first.click()


def wait_for_another_preset(notebook, panel):
    notebook.page.wait_for_function(
        "() => [...document.querySelectorAll('select')].some(each => each.value === 'my own')"
    )


def wait_for_another_group(notebook, panel):
    notebook.page.wait_for_function(
        "() => ![...document.querySelectorAll('.widget-html svg title')].some(t => t.textContent.includes('29+78='))"
    )


def no_menu_opens_empty(notebook, panel):
    assert panel.locator("select").nth(1).input_value() == "all weights"


def no_value_touches_the_next_sliders_name(notebook, panel):
    value, name = panel.locator(".widget-readout").first, panel.locator(".widget-label").nth(1)
    assert name.bounding_box()["x"] - value.evaluate(RIGHT_OF_TEXT) > 8


def first_three():
    digits = load_digits()
    return digits.test_images[digits.test_labels == 3][0, 0]


# Chapter -> cells to run first, and its panels by the names of their cells, perhaps after those of others that they
# need: what is done, and which words follow.
LEFT, RIGHT, HOME, END = "ArrowLeft", "ArrowRight", "Home", "End"
PANELS = {
    "08_convolutions": ("01", {"03": [
        "at stop 15 of 36 on an image of 8 x 8 with stride 1 and padding 0",
        (slide(0, RIGHT), "at stop 16 of 36"),
        # A larger stride leaves fewer stops, and the slider ends at the last of them.
        (slide("stride", RIGHT), "at stop 9 of 9 on an image of 8 x 8 with stride 2"),
        (slide(0, RIGHT), slide("padding", RIGHT), "at stop 9 of 16 on an image of 8 x 8 with stride 2 and padding 1"),
        # A kernel of one's own: with a 2 in its centre the output is twice every second pixel.
        (choose(1, "my own"), write(0, "0 0 0  0 2 0  0 0 0")),
        f"The output ranges from 0 to {2 * first_three()[::2, ::2].max():.2f}.",
        (press_play, "at stop 17 of 36"),
    ]}),
    "09_mlx": ("01", {"08": [
        "evaluated after every 8. Up to 144 operations wait",
        (slide(0, RIGHT), "evaluated after every 9. Up to 162 operations wait"),
        (slide(0, HOME), "evaluated after every one. Up to 18 operations wait"),
        (slide(0, END), "evaluated after every 40. Up to 720 operations wait"),
    ]}),
    "10_transformer_parts": ("01", {
        "28": [
            "a query at position 10 and a key at position 3, 7 apart",
            "Their product is 3.69; all 16 pairs give 6.01",
            (slide("both further by", RIGHT, 2), "a query at position 12 and a key at position 5, 7 apart"),
            "Their product is 3.69; all 16 pairs give 6.01",
            (slide("of the key", RIGHT), "a query at position 12 and a key at position 6, 6 apart"),
            (slide("pair", LEFT), "Pair 0 makes a full turn every 6.28 positions"),
        ],
        "18": ["A gate of 2.00: silu is 1.76", (slide("gate", RIGHT), "A gate of 2.10: silu is 1.87")],
        "14": [
            "RMSNorm turns it into 0.33, \N{MINUS SIGN}0.33, 1.67",
            (slide("eps", END), "RMSNorm turns it into 0.10, \N{MINUS SIGN}0.10, 0.48"),
        ],
    }),
    "12_qwen3": ("01 03 15 23", {
        "43": [
            "parameters: 303,872; embedding 3%",
            (choose(0, "8B"), "A Qwen3 of 36 layers reads 8 rows of 256 tokens in float32. parameters: 8.19 billion"),
            (slide(0, RIGHT), "A Qwen3 of 37 layers reads", wait_for_another_preset),
            (choose(-1, "bfloat16"), "256 tokens in bfloat16"),
        ],
        "34": [
            "Patient 1 against transformers. The first difference is in layers.0.self_attn.weights",
            (choose(0, "2"), "difference is in layers.0.self_attn.q_rope, at all tokens. logits: no difference"),
        ],
        "47": [
            (write(0, "37+45=82"), "Up to '=': embedding '!'"),
            (write(0, "12 \N{GREEK SMALL LETTER PI}"), says("This tokenizer has no token for")),
        ],
    }),
    "13_generation": ("setup steps whole greedy-use draw-use", {
        "panel": [
            "after 27+38= at temperature 1.5: 2 of 64 tokens kept: '5' '6'. top-p removed 62.",
            (slide("top-k", RIGHT), "1 of 64 tokens kept: '5'. top-k removed 63. Drawn: '5' 100%."),
            (slide("top-k", LEFT), "at temperature 1.5: 2 of 64 tokens kept"),
            (slide("temperature", LEFT), "at temperature 1.4: 2 of 64 tokens kept"),
            (write(0, "12+34=4"), "after 12+34=4 at temperature 1.4"),
            (write(0, ""), says("The text is empty. Type at least one character")),
        ],
        "cost": [
            "At 60 positions one more token takes about",
            (slide(0, RIGHT), "At 61 positions one more token takes about"),
        ],
    }),
    "14_tasks_and_rewards": ("setup first verify partial-look", {"panel": [
        "your reward: mean 0.93",
        (reward("return 2.5"), "your reward: mean 2.50; 64 of 64 groups have equal rewards"),
        (reward("return int(completion"), says("Line 2 is not Python yet: '(' was never closed.")),
        (reward("return completion"), says("a reward is a finite number")),
        (reward("return None"), "your reward: nothing is scored"),
        (choose(0, "length"), "your reward: mean 0.59; 43 of 64 groups have equal rewards", the_menu_wrote_the_reward),
    ]}),
    "15_policy_gradients": ("setup bandit", {
        "nudge": [
            "B 25%, reward 1, push 0; C 25%, reward 3, push +0.50. The mean reward 1.",
            (slide("added to all", RIGHT), "B 25%, reward 2, push 0; C 25%, reward 4, push +0.50. The mean reward 2."),
            (slide("B pays", RIGHT), "B 25%, reward 2.5, push +0.09"),
        ],
        "score parabola bias panel": [
            "Groups of 4. Exact variance: none 0.422, best constant 0.116",
            (slide("group size", RIGHT), "Groups of 6. Exact variance: none 0.281,"),
            (slide("added to all", RIGHT), "Groups of 6. Exact variance: none 0.677,"),
            (choose(0, "none"), "Measured, none: 0.6"),
        ],
    }),
    "16_grpo_loss": ("setup", {
        "adv-panel": [
            "Mean 0.57, deviation 0.51.",
            (slide("'55'", END), "'55': reward 2, advantage", "Mean 1.07"),  # 2 is the largest
            (choose(0, "no"), "'55': reward 2, advantage +0.9"),  # 2 - 1.075, not divided
        ],
        "clip-panel": [
            "A = +1.0: objective +1.20, slope 0, clipped: far enough, no gradient.",
            (slide("ratio r", HOME), "Ratio 0.00, edges 0.80 and 1.20.", "A = -1.0: objective -0.80, slope 0, clipped"),
            (slide("ε (below)", RIGHT), "edges 0.78 and 1.20"),
        ],
        "weigh-panel": [
            "shares of the grpo loss. good, 2: a token 12.5%",
            (slide("good a", RIGHT), "good, 3: a token 8.3%, the completion 25.0%."),
            (choose(0, "dapo"), "shares of the dapo loss. good, 3: a token 2.2%"),  # 1 of 22 here and 24 elsewhere
        ],
    }),
    "17_whole_model_gradients": ("01", {
        "03": [
            "the surprise at '6'. At the embedding, the gradient reaches 6 of 7 tokens",
            (choose(0, "1: '7'"), "the surprise at '7'. At the embedding, the gradient reaches 1 of 7 tokens"),
            (choose(0, "all of them"), "the gradient reaches 7 of 7 tokens, up to token 7"),
        ],
        "15": [  # what arrives along x is taken out, whole
            "x is (1.35, 0.66). What arrives, divided by r, has length 0.94",
            (slide(1, LEFT), "x is (1.26, 0.62)."),
            (slide(0, LEFT, 10), "The gradient of x has length 0.07"),
        ],
    }),
    "19_variant_lab": ("setup", {"panel": [
        "29+78= after 0 updates.",
        (slide("updates", RIGHT), "29+78= after 1 update."),
        (choose(-1, "cispo"), "cispo: "),
        (slide("group", RIGHT), wait_for_another_group),
    ]}),
    "21_scaling_up": ("setup", {
        "memory": [
            no_menu_opens_empty,
            "0.6B: 64 completions of up to 256 tokens in a step. sampling: parameters 2.38 GB",
            (choose(0, "8B"), "8B: 64 completions of up to 256 tokens in a step. sampling: parameters 32.8 GB"),
            (check(1), "reference 32.8 GB"),
            (choose(2, "adafactor"), "optimizer 13.4 MB"),
            (choose(1, "LoRA, rank 8"), "gradients 87.3 MB"),
            (slide(0, LEFT), "8B: 32 completions of up to 256 tokens"),
        ],
        "rounding": [
            "Kept in bfloat16 it does not move. The master ends at 0.98",
            (slide(0, RIGHT, 15), "Kept in bfloat16 it ends at"),
        ],
        # The solution of 21.10 stands in for the reader's, so no other cell has to run before.
        "ring": [
            "A ring of 4: first round, message 2 of 3",
            (slide(0, RIGHT), "message 3 of 3: the received part is added. 4 of 16 parts are complete"),
            # A smaller ring needs fewer messages: the slider goes back to its new end.
            (slide(1, LEFT, 2), "A ring of 2: second round, message 1 of 1"),
        ],
        "budget": [
            "400 gigabits per second: 12.5% with 8, 56.2% with 64.",
            (slide(0, RIGHT), "400 gigabits per second: 6.6"),
            (slide(0, END), "8 machines learn for 503 s", no_value_touches_the_next_sliders_name),
        ],
    }),
    "22_training_backends": ("setup wait ex3-use", {
        "pipe-panel": [
            "1 ahead: 520 ms, loop busy 62%, backend's thread busy 92%",
            (slide("ahead", LEFT), "0 ahead: 800 ms, loop busy 40%, backend's thread busy 60%"),
            (slide("ahead", RIGHT), "1 ahead: 520 ms, loop busy 62%, backend's thread busy 92%"),
            (slide("learn (ms)", HOME), "1 ahead: 325 ms"),
            (slide("fetch (ms)", HOME), "1 ahead: 40.0 ms, loop busy 0%, backend's thread busy 100%"),
        ],
        "lag-panel": [
            "at most 1: lags 0, 1, 1, 1, 1, 1, 1: 11.5 s, engine busy 61%, backend busy 91%",
            (slide("largest lag", LEFT), "at most 0: lags 0, 0, 0, 0, 0, 0, 0: 17.5 s"),
            (slide("largest lag", RIGHT), "at most 1: lags 0, 1, 1, 1, 1, 1, 1: 11.5 s, engine busy 61%"),
            (slide("largest lag", END), "at most 4: lags 0, 1, 2, 2, 2, 3, 3: 11.5 s"),
            (slide("write (s)", END), "backend busy 47%"),
        ],
    }),
    "23_a_real_language_model": ("setup model marks render", {"panel-code": [
        (choose(0, "tiny-chat, in Qwen3's form"), "21 tokens, 5 of them marks"),
        (check(-1), "17 tokens, 3 of them marks"),
        (choose(-1, "be brief"), "['<|im_start|>'] 'system'"),
        (write(-1, "7+8?"), "'7' '+' '8' '?' ['<|im_end|>']"),
    ]}),
}  # fmt: skip


@pytest.mark.parametrize("chapter", PANELS)
def test_the_words_of_panels_follow_their_controls(open_notebook, chapter):
    first, panels = PANELS[chapter]
    notebook = open_notebook(chapter)
    notebook.run(*first.split())
    for ids, steps in panels.items():
        *needed, id = ids.split()
        notebook.run(*needed)
        panel = notebook.open_panel(id)
        for step in steps:
            for each in step if isinstance(step, tuple) else (step,):
                if isinstance(each, str):
                    notebook.wait_for_words(each)
                else:
                    each(notebook, panel)
