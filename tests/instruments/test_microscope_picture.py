"""The microscope's still picture of made-up numbers: clips on both sides, a missing reward, many tokens, markup."""

from mlx_grpo_kit.instruments.microscope.microscope_picture import MOST_CELLS, draw_microscope
from mlx_grpo_kit.viz.style import NEGATIVE, ZERO, shades

SETTINGS = {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.0, "update": 3}


def tokens(pushes, clips):
    return {"pushes": pushes, "clips": clips}


def test_every_answer_is_drawn_and_described():
    long = MOST_CELLS + 2
    batch = {
        "num_generations": 3,
        "completions": [
            {"prompt": "1+1=", "text": "<b>2", "tokens": ["'<b>'", "'2'"], "reward": 1.0},
            {"prompt": "1+1=", "text": "3", "tokens": ["'3'", "end"], "reward": -0.5},
            {"prompt": "1+1=", "text": "1" * long, "tokens": ["'1'"] * long, "reward": None},
        ],
    }
    reading = {
        "group": 0,
        "loss": -0.25,
        "advantages": [0.75, -0.75, 0.0],
        "means": [0.25],
        "stds": [1.06],
        "largest": {"pushes": 0.2},
        "tokens": [tokens([0, 0.2], [1, 0]), tokens([0, -0.1], [-1, 0]), tokens([0.0] * long, [0] * long)],
    }
    ones = " ".join(["'1' 0"] * MOST_CELLS)
    chart, words = draw_microscope(batch, SETTINGS, reading)
    svg = chart.svg(words)
    assert words == (
        "3 answers to '1+1=' (dapo, epsilon 0.2, beta 0, after 3 updates: loss \N{MINUS SIGN}0.250, 2 tokens of this "
        "group clipped). Mean reward 0.250, standard deviation 1.06. '<b>2' reward 1, advantage +0.750, pushes '<b>' 0 "
        "(clipped high) '2' +0.200; '3' reward -0.5, advantage \N{MINUS SIGN}0.750, pushes '3' 0 (clipped low) end "
        "\N{MINUS SIGN}0.100; "
        f"'{'1' * long}' reward none, advantage 0, pushes {ones}."
    )
    assert svg.count("\u25b2 clipped<") == svg.count("\u25bc clipped<") == 1
    assert svg.count(">&#x27;1&#x27;<") == MOST_CELLS
    assert "<b>" not in svg
    assert ">none<" in svg
    assert 'fill="#5790fc"' in svg  # the strongest push has the full blue
    assert f'fill="{shades(0, 1, (ZERO, NEGATIVE))(0.5)}"' in svg  # and half of it, downwards, has half the orange
