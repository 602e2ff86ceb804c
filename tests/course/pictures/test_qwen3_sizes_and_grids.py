"""Bars of a model's parts, the plan, and the grids of chapter 12."""

import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_12.pictures.grids import draw_differences, draw_lens, draw_statistics
from mlx_grpo_kit.course.pictures.sizes import LEFT, LONGEST, PART_COLORS, amount, draw_plan, draw_shares, in_bytes
from mlx_grpo_kit.viz.style import NEGATIVE
from tests.course.pictures.drawn import bars, texts

PARTS = {"embedding": 50, "attention": 0, "mlp": 150, "norms": 1}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (303_872, "303,872"),
        (596_049_920, "596 million"),
        (999_960_000, "1 billion"),
        (1.14e13, "11.4 trillion"),
        (1.13e19, "11.3 quintillion"),
    ],
)
def test_amounts(number, words):
    assert amount(number) == words
    assert amount(number, "FLOPs") == f"{words} FLOPs"


@pytest.mark.parametrize(
    ("number", "words"), [(17, "17 bytes"), (999.9, "1 kB"), (1.19e9, "1.19 GB"), (6.18e11, "618 GB"), (2e15, "2 PB")]
)
def test_bytes(number, words):
    assert in_bytes(number) == words


def test_bars_are_proportional_to_shares():
    chart, words = draw_shares({"one": PARTS, "two": {"mlp": 3e9}}, units=["", "FLOPs"], title="Both")
    rows = [bar for bar in bars(chart) if bar[0] >= LEFT and bar[1] >= 60]
    first = {color: width for _, top, width, color in rows if top == 66}
    assert first[PART_COLORS["embedding"]] == pytest.approx(LONGEST * 50 / 201, abs=0.1)
    assert first[PART_COLORS["mlp"]] == pytest.approx(LONGEST * 150 / 201, abs=0.1)
    assert sum(first.values()) == pytest.approx(LONGEST, abs=0.3)
    assert {color: width for _, top, width, color in rows if top == 102} == {PART_COLORS["mlp"]: LONGEST}
    assert words == "Both. one: 201; embedding 25%, mlp 75%, norms 0.005. two: 3 billion FLOPs; mlp 100%."
    assert {"25%", "75%", "201", "3 billion FLOPs"} <= set(texts(chart))


def test_a_plan_says_into_which_machine_it_fits():
    needs = {"parameters": 1.2e9, "training": 40e9, "dreams": 6e14, "nothing much": 12}
    chart, words = draw_plan(PARTS, {"scores": 2e12, "mlp": 2e12}, needs, title="A plan")
    assert "operations: 4 trillion FLOPs; scores 50%, mlp 50%." in words
    assert "parameters: 1.2 GB, fits into a laptop of 16 GB." in words
    assert "training: 40 GB, fits into a GPU of 80 GB." in words
    assert "dreams: 600 TB, fits into neither machine." in words
    widths = [width for left, top, width, color in bars(chart) if color == "#5790fc" and top > 170]
    # 600 TB are more than 10 TB, the usual end of the axis, so it ends at 1 PB.
    on_the_axis = [LONGEST * np.log10(size / 1e5) / 10 for size in (1.2e9, 40e9, 6e14)]
    assert widths == pytest.approx([*on_the_axis, 1], abs=0.1)
    assert {"10 TB", "1 PB"} <= set(texts(chart))


def test_the_axis_of_a_plan_grows_only_if_it_has_to():
    def width(size):
        chart, _ = draw_plan(PARTS, PARTS, {"training": size}, title="A plan")
        return next(width for _, top, width, color in bars(chart) if color == "#5790fc" and top > 170)

    assert width(7.8e12) == pytest.approx(LONGEST * np.log10(7.8e7) / 8, abs=0.1)
    assert width(1e13) == pytest.approx(LONGEST, abs=0.1)
    assert width(1.97e14) == pytest.approx(LONGEST * np.log10(1.97e9) / 10, abs=0.1)
    assert width(2e16) == pytest.approx(LONGEST * np.log10(2e11) / 12, abs=0.1)


def test_the_lens():
    said, shares = [["a", "b"], ["<eos>", "x"], ["c", "x"]], [[0.5, 1.0], [0.25, 0.125], [0.75, 0.0]]
    chart, words = draw_lens(["1", "="], ["embedding", "layers.0", "layers.1"], said, shares, title="Lens")
    assert words == (
        "Lens. Up to '1': embedding 'a' 50%, layers.0 '<eos>' 25%, layers.1 'c' 75%. "
        "Up to '=': embedding 'b' 100%, layers.0 'x' 12%, layers.1 'x' 0%."
    )
    svg = chart.svg(words)
    bold = re.findall(r'font-weight="700">([^<]+)<', svg)
    assert bold == ["Lens", "“x”", "“c”", "“x”"]
    rows = [float(y) for y in re.findall(r'y="([-\d.]+)"[^>]*>(?:embedding|layers\.\d)<', svg)]
    assert len(rows) == 3
    assert rows == sorted(rows), "the first at the top"
    assert "“&lt;eos&gt;”" in svg
    fills = [color for *_, color in bars(chart)]
    assert (fills[1], fills[5]) == ("#5790fc", "#ffffff")


def test_differences():
    shares = {"embedding": [0, 2e-8, 0], "layers.0.q_rope": [0, 0.3, 2e-5], "logits": [1.0, np.nan, 0.01]}
    chart, words = draw_differences(shares, ["1", "+", "2"], title="Patient 9")
    assert words == (
        "Patient 9. The first difference is in layers.0.q_rope, at all tokens except number 0, 2. logits: different."
    )
    assert [each for each in texts(chart) if re.match(r"\d|nan", each)][2:] == [
        "0", "2e-8", "0", "0", "3e-1", "2e-5", "1", "nan", "1e-2"]  # fmt: skip
    fills = [color for *_, color in bars(chart)]
    assert fills[:2] == ["#ffffff"] * 2
    assert (fills[4], fills[6], fills[7]) == (NEGATIVE,) * 3
    _, words = draw_differences({"a": [1e-6]}, ["1"])
    assert words == "No difference beyond rounding."
    _, words = draw_differences({"a": [1e-2], "b": [0]}, ["1"])
    assert words == "The first difference is in a, at all tokens. b: no difference beyond rounding."


def test_statistics():
    chart, words = draw_statistics({"stream": [0.1, 10.0], "zeros": [0.0, 1.0]}, ["layer 0", "layer 1"], title="rms")
    assert words == "rms. From layer 0 to layer 1: stream from 0.100 to 10.0; zeros from 0.00 to 1.00."
    assert [color for *_, color in bars(chart)] == ["#ffffff", "#5790fc", "#ffffff", "#abc8fe"]
    many, _ = draw_statistics({"stream": np.linspace(1, 2, 40)}, [f"layer {n}" for n in range(40)])
    assert len(bars(many)) == 40
    assert "1.00" not in texts(many)
    assert draw_statistics({"only": [2.0]}, ["layer 0"])[1] == "From layer 0 to layer 0: only 2.00."
