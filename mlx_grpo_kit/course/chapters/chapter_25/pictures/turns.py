"""Completions of several turns, token by token: who wrote each token, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, GREY, INK, ORANGE

WIDTH, CHARACTER, ROW = 720, 8.6, 44  # pixels: of the picture, of a character, of a line of tokens
IN_BOX = (  # boxes are light in both themes, so their words are dark in both
    f'<text x="{{:.1f}}" y="{{:.1f}}" font-size="14" xml:space="preserve" fill="{INK}" '
    'font-family="DejaVu Sans Mono, ui-monospace, monospace">{}</text>'
)
TALLEST = 17  # pixels: of a bar under a token
LIGHT = {BLUE: "#d7e4fb", ORANGE: "#fde3c4", GREY: "#ececee"}
SHADES = ("#f3f6fd", "#d7e4fb", "#b4cdf8", "#8db2f5")  # shades of blue, from 0 to the largest value


def draw_turns(
    prompt: Sequence[str],
    tokens: Sequence[str],
    mask: Sequence[bool],
    *,
    values: Sequence[float] | None = None,
    bars: Sequence[float] | None = None,
    title: str = "",
) -> tuple[Chart, str]:
    """(chart, words): the tokens of a prompt and of a completion, with numbers or bars under them.

    Args:
        prompt: the prompt's tokens as texts
        tokens: [T], the completion's tokens as texts
        mask: [T], True for the tokens that the policy drew
        values: [T], the numbers to show, once per run of equal values; by default the mask
        bars: [length of the prompt + T], the heights of bars to show instead of numbers
    """
    numbers = [*map(int, mask)] if values is None else values
    most = max(map(abs, numbers), default=0) or 1
    places = _places([*prompt, *tokens], [None] * len(prompt) + [*mask])
    chart = Chart(WIDTH, 66 + ROW * (places[-1][1] + 1))
    chart.text(14, 22, title, size=15)
    x = 14.0
    for words, color in (("the prompt", GREY), ("drawn by the policy", BLUE), ("a tool's result", ORANGE)):
        chart.bar(x, 34, 14, 12, LIGHT[color])
        chart.text(x + 20, 45, words, size=12.5)
        x += 40 + 7.2 * len(words)
    pieces = [(text, GREY, None) for text in prompt]
    pieces += [
        (text, BLUE if drawn else ORANGE, number) for text, drawn, number in zip(tokens, mask, numbers, strict=True)
    ]
    said = None  # the value under the previous token: equal values are written once
    for index, ((left, line), (text, color, number)) in enumerate(zip(places, pieces, strict=True)):
        top, shown = 58 + ROW * line, visible(text)
        fill = LIGHT[color]
        if values is not None and color == BLUE:
            fill = SHADES[round(3 * min(abs(number) / most, 1))]
        chart.bar(left, top, CHARACTER * len(shown) + 3, 22, fill)
        chart.draw([IN_BOX.format(left + 1.5, top + 16, escape(shown))])
        if bars is not None:
            high = TALLEST * bars[index] / max(bars)
            chart.bar(left, top + 24, CHARACTER * len(shown) + 3, high, color)
        elif values is None and number is not None:
            chart.text(left + 1.5, top + 34, f"{number:g}", size=10.5, color="soft")
        elif values is not None:
            value = number if color == BLUE else None
            if value is not None and value != said:
                chart.text(left + 1.5, top + 34, f"{value:.2g}", size=10.5, color="soft")
            said = value
    told = _told(tokens, mask, numbers, values is not None)
    if bars is not None:
        tallest = sorted(range(len(bars)), key=bars.__getitem__)[-3:][::-1]
        told += " The tallest bars: " + ", ".join(f"{bars[i]:.2g} under {pieces[i][0]!r}" for i in tallest) + "."
    return chart, f"{title}. {told}"


def visible(text: str) -> str:
    """A token's text with visible signs for blanks, line breaks and an empty text."""
    return text.replace("\n", "⏎").replace(" ", "·") or "∅"


def draw_runs(
    runs: Mapping[str, Sequence[float] | Sequence[Sequence[float]]],
    *,
    title: str,
    name: str,
    highest: float,
    level: tuple[float, str] | None = None,
    smoothing: int = 3,
) -> tuple[Chart, str]:
    """(chart, words): one metric of several runs, step by step. Runs of several seeds are thin lines around their mean.

    Args:
        runs: by name, the metric at each step, or such a list for each seed
        name: the name of the metric
        highest: end of the y axis
        level: a height to compare with, and its name
        smoothing: the number of steps that each point averages
    """
    chart = Chart(820, 330)
    of_seeds = {
        run: [_smoothed(each, smoothing) for each in (values if isinstance(values[0], Sequence) else [values])]
        for run, values in runs.items()
    }
    steps = max(len(each[0]) for each in of_seeds.values())
    plane = chart.plane(*(58, 36, 730, 236), x=(0, steps), y=(0, highest), title=title, xlabel="step", ylabel=name)
    words = []
    for (run, seeds), color, style in zip(
        of_seeds.items(), (COLORS[0], COLORS[1], COLORS[3]), ("-", "--", "-."), strict=False
    ):
        mean = [sum(at_step) / len(seeds) for at_step in zip(*seeds, strict=True)]
        for values in seeds if len(seeds) > 1 else ():
            plane.line(range(1, len(values) + 1), values, color, width=0.8)
        plane.line(range(1, len(mean) + 1), mean, color, style=style, label=run, width=2.4)
        words.append(f"{run}: from {mean[0]:.2f} to {mean[-1]:.2f}")
    if level is not None:
        plane.across(level[0], label=level[1])
        words.append(f"{level[1]}: {level[0]:.2f}")
    plane.legend("free")
    return chart, f"{title}, {name} over {steps} steps. {'; '.join(words)}."


def _smoothed(values: Sequence[float], count: int) -> list[float]:
    """The mean of each value and of up to count - 1 values before it."""
    return [sum(values[max(0, i - count + 1) : i + 1]) / min(i + 1, count) for i in range(len(values))]


def _places(texts: Sequence[str], authors: Sequence[bool | None]) -> list[tuple[float, int]]:
    """(left edge, line) of each token: a new line where the author changes, and where a line is full."""
    places, x, line = [], 14.0, 0
    for index, text in enumerate(texts):
        wide = CHARACTER * len(visible(text)) + 7
        if index and (x + wide > WIDTH - 10 or authors[index] != authors[index - 1]):
            x, line = 14.0, line + 1
        places.append((x, line))
        x += wide
    return places


def _told(tokens: Sequence[str], mask: Sequence[bool], numbers: Sequence[float], with_values: bool) -> str:
    sentences, place = [], 0
    for drawn, run in groupby(zip(mask, tokens, strict=True), key=lambda pair: pair[0]):
        texts = [text for _, text in run]
        who = "The policy drew" if drawn else "A tool returned"
        worth = f", each worth {numbers[place]:.2g}" if with_values and drawn else ""
        sentences.append(f"{who} {len(texts)} token{'s' * (len(texts) != 1)}, {''.join(texts)!r}{worth}.")
        place += len(texts)
    return " ".join(sentences)
