"""Generation token by token: the work a cache saves, the time per token, and the side of the padding."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, EDGE, POSITIVE

WINDOW = 9  # measurements in a median
NOTHING, KEPT, COMPUTED, CHOSEN = "#ffffff", "#d4d4d8", POSITIVE, "#fbb45c"


def draw_computed(tokens: Sequence[str], prompt_length: int) -> tuple[Chart, str]:
    """(chart, words): the positions that go through the model in each step of generation, without and with a cache.

    Args:
        tokens: prompt and completion; the last one is drawn and never read
        prompt_length: how many of them are the prompt
    """
    import numpy as np

    read = len(tokens) - 1
    steps = len(tokens) - prompt_length
    step, place = np.arange(steps)[:, None], np.arange(read)[None, :]
    seen = place < prompt_length + step
    without = np.where(seen, 2, 0)
    with_cache = np.where(seen, np.where((step == 0) | (place == prompt_length + step - 1), 2, 1), 0)
    totals = [int((each == 2).sum()) for each in (without, with_cache)]
    chart = Chart(1000, 120 + round(475 / read * steps))
    for left, numbers, name, total in ((15, without, "without", totals[0]), (515, with_cache, "with", totals[1])):
        sheet = chart.add(
            Sheet(
                *(left, 46, 470, numbers, lambda kind: (NOTHING, KEPT, COMPUTED)[int(kind)]),
                title=f"{name} a cache",
                below=f"{total} positions go through the model",
                below_color="ink",
            )
        )
        sheet.write([[tokens[at] if seen[row, at] else "" for at in range(read)] for row in range(steps)], size=15)
    chart.text(
        15, chart.height - 14, "blue: computed in this step; grey: taken from the cache", size=12.5, color="soft"
    )
    words = (
        f"{steps} steps of generation after a prompt of {prompt_length} tokens: {totals[0]} positions go through the "
        f"model without a cache, {totals[1]} with one."
    )
    return chart, words


def draw_cost(
    lengths: Sequence[int], without: Sequence[float], cached: Sequence[float], *, token: int | None = None, of: int = 0
) -> tuple[Chart, str]:
    """(chart, words): the time for one more token, with and without a cache, while the text grows.

    Args:
        lengths: positions of the text, the new one included
        without, cached: milliseconds for this token, one number per length
        token: the index of the length to show; the last one by default
        of: the longest length that is still to come
    """
    at = len(lengths) - 1 if token is None else min(token, len(lengths) - 1)
    length, longest = lengths[at], max(of, lengths[-1])
    chart = Chart(1000, 440)
    cell = 840 / longest
    for top, name, kept in ((30, "without", 0), (66, "with a cache", length - 1)):
        chart.text(14, top + 15, name, size=13)
        chart.bar(130, top + 20, cell * longest, 1.5, EDGE)
        chart.bar(130, top, cell * kept, 20, KEPT)
        chart.bar(130 + cell * kept, top, max(2.5, cell * (length - kept)), 20, COMPUTED)
    chart.text(
        *(130, 106, f"{length} positions: blue ones go through the model for this token, grey ones are looked up"),
        size=12.5,
        color="soft",
    )
    usual = {"without a cache": _medians(without), "with a cache": _medians(cached)}
    plane = chart.plane(
        *(62, 148, 905, 232),
        x=(0, longest),
        y=(0, 1.25 * max(max(each) for each in usual.values())),
        title=f"milliseconds for one more token; lines: medians of {WINDOW}",
        xlabel="positions so far",
    )
    looks = ((COLORS[1], "--", without), (COLORS[0], "-", cached))
    for (name, medians), (color, style, measured) in zip(usual.items(), looks, strict=True):
        plane.dots(lengths, measured, color, size=2.6)
        plane.line(lengths, medians, color, style=style, label=name)
    plane.upright(length, style=":")
    plane.legend("upper left")
    slow, fast = (medians[at] for medians in usual.values())
    words = (
        f"At {length} positions one more token takes about {slow:.1f} ms without a cache, where {length} positions go "
        f"through the model, and {fast:.1f} ms with one, where a single one does."
    )
    return chart, words


def _medians(times: Sequence[float]) -> list[float]:
    """The median of each number and its neighbours, so that a pause of the machine does not look like a trend."""
    from statistics import median

    half = WINDOW // 2
    return [median(times[max(0, at - half) : at + half + 1]) for at in range(len(times))]


def draw_padding(prompts: Sequence[str], completions: Sequence[str]) -> tuple[Chart, str]:
    """(chart, words): prompts of different lengths and their completions, padded on the left and on the right."""
    import numpy as np

    longest, more = max(map(len, prompts)), max(map(len, completions))
    cell = 470 / (longest + more)
    chart = Chart(1000, 104 + round(cell * len(prompts)))
    for left, side in ((15, "left"), (515, "right")):
        kinds, words = np.zeros((len(prompts), longest + more)), []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            start = longest - len(prompt) if side == "left" else 0
            kinds[row, start : start + len(prompt)] = 1
            kinds[row, longest : longest + len(completion)] = 2
            line = [" "] * (longest + more)
            line[start : start + len(prompt)] = prompt
            line[longest : longest + len(completion)] = completion
            words.append(line)
        sheet = chart.add(
            Sheet(
                *(left, 40, 470, kinds, lambda kind: (KEPT, NOTHING, CHOSEN)[int(kind)]), title=f"padding on the {side}"
            )
        )
        sheet.write(words, size=min(16, 0.5 * cell))
    chart.text(
        *(15, chart.height - 14, "grey: padding, white: prompt, orange: completion, one column per step"),
        size=12.5,
        color="soft",
    )
    gaps = sum(len(prompt) < longest for prompt in prompts)
    words = (
        f"{len(prompts)} prompts of {min(map(len, prompts))} to {longest} tokens. Padded on the left, each completion "
        f"follows its prompt; padded on the right, {gaps} of them {'has' if gaps == 1 else 'have'} a gap in between."
    )
    return chart, words
