"""A group of rewards: its mean and deviation, its advantages, and how hard it is pushed as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, LINE_STYLES, MARKERS, NEGATIVE, ORANGE, POSITIVE

WIDE, TOP, HIGH = 370, 46, 230  # of each of two areas


def draw_advantages(
    answers: Sequence[str], rewards: Sequence[float], advantages: Sequence[float], *, scaled: bool = True
) -> tuple[Chart, str]:
    """(chart, words): rewards with their mean and a band of one deviation on the left, advantages on the right.

    Args:
        answers: the completions, as text to show.
        rewards: the reward of each answer, from -1 to 2.
        advantages: the advantage of each answer.
        scaled: True if the advantages were divided by the deviation; it changes the title.
    """
    count = len(rewards)
    mean = math.fsum(rewards) / count
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / max(count - 1, 1))
    chart = Chart(1000, TOP + HIGH + 60)
    places, edges = range(1, count + 1), (0.4, count + 0.6)
    left = chart.plane(
        *(60, TOP, WIDE, HIGH),
        x=edges,
        y=(min(-0.1, *rewards, mean - std) - 0.1, max(1.1, *rewards, mean + std) + 0.15),
        title="rewards",
        right=f"mean {_number(mean)}, deviation {_number(std)}",
        numbers=False,
    )
    reach = max(2.0, *map(abs, advantages)) * 1.2
    right = chart.plane(
        *(560, TOP, WIDE, HIGH),
        x=edges,
        y=(-reach, reach),
        title="advantages" if scaled else "advantages, not divided",
        right="no push at all" if not any(advantages) else "",
        numbers=False,
    )
    left.across(mean, "ink", style="-", width=2)
    for height in (mean - std, mean + std):
        left.across(height, "soft", style="--")
    right.across(0, "ink", style="-", width=1)
    for place, answer, reward, advantage in zip(places, answers, rewards, advantages, strict=True):
        left.line((place, place), (mean, reward), POSITIVE if reward >= mean else NEGATIVE, width=5)
        left.dots([place], [reward], BLUE if reward >= mean else ORANGE, size=11)
        near = 9 * (left.y[1] - left.y[0]) / HIGH  # so many pixels: a line would cross the number
        crossed = any(abs(reward - height) < near for height in (mean, mean - std, mean + std))
        left.text(place, reward, _number(reward), dx=10, dy=-6 if crossed else 4, size=12)
        color = POSITIVE if advantage > 0 else NEGATIVE
        if advantage:
            right.line((place, place), (0, advantage), color, width=26)
        right.text(
            *(place, advantage, f"{advantage:+.2f}".replace("-", "\N{MINUS SIGN}") if advantage else "0"),
            dy=-7 if advantage >= 0 else 17,
            anchor="middle",
            bold=True,
        )
        for left_edge in (60, 560):
            at = left_edge + WIDE * (place - edges[0]) / (edges[1] - edges[0])
            chart.text(at, TOP + HIGH + 22, answer, anchor="middle", size=14)
    chart.text(60, TOP + HIGH + 48, "line: the mean; dashed: one deviation above and below", size=12, color="soft")
    chart.text(560, TOP + HIGH + 48, "blue: more of this; orange: less of this", size=12, color="soft")
    each = ", ".join(
        f"{answer}: reward {_number(reward)}, advantage {advantage:+.2f}"
        for answer, reward, advantage in zip(answers, rewards, advantages, strict=True)
    )
    return chart, f"Mean {_number(mean)}, deviation {_number(std)}. {each}."


def draw_pushes(shares: Sequence[float], pushes: Mapping[str, Sequence[float]], *, title: str) -> tuple[Chart, str]:
    """(chart, words): how hard a group is pushed as a whole, against the share of right answers in it.

    Args:
        shares: from 0 to 1.
        pushes: by name, the mean absolute advantage of the group for each share.
    """
    highest = max(max(values) for values in pushes.values())
    chart = Chart(820, 330)
    plane = chart.plane(
        *(62, 36, 730, 238),
        x=(0, 1),
        y=(0, 1.25 * highest),
        title=title,
        xlabel="share of right answers in the group",
    )
    looks = zip(COLORS, LINE_STYLES, MARKERS, strict=False)
    words = []
    for (name, values), (color, style, marker) in zip(pushes.items(), looks, strict=False):
        plane.line(shares, values, color, style=style, label=name, marker=marker)
        plane.dots(shares, values, color, marker=marker, size=8, cut=False)
        each = ", ".join(f"{value:.2f} at {share:.0%}" for share, value in zip(shares, values, strict=True))
        words.append(f"{name}: {each}.")
    plane.legend("upper right")
    return chart, f"{title}. {' '.join(words)}"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if round(value, 2) else "0"
