"""The rewards of completions, and the policies that learned from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, NEGATIVE, ORANGE, POSITIVE

FEW = 12  # up to this many different rewards, each has a bar of its own
LISTED = 5  # completions to show of each kind


def draw_rewards(
    rewards: Sequence[float | None],
    right: Sequence[bool],
    prompts: Sequence[str],
    completions: Sequence[str],
    num_generations: int,
    *,
    title: str = "",
) -> tuple[Chart, str]:
    """(chart, words): a histogram of the rewards, with right completions in blue and wrong ones in orange.

    Args:
        rewards: [B], None for a completion without one; the `num_generations` completions of a prompt are adjacent
        right: [B], True for a completion that the task accepts
        prompts, completions: [B], their texts
        title: the name of the reward
    """
    scored = [place for place, reward in enumerate(rewards) if reward is not None]
    chart = Chart(1000, 372)
    values = [float(rewards[place]) for place in scored]
    bars = _bars(values, [right[place] for place in scored])
    most = max([good + bad for _, good, bad in bars], default=1)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.08 * (high - low) or 0.5
    low, high = low - margin, high + margin
    plane = chart.plane(*(58, 40, 500, 222), x=(low, high), y=(0, 1.1 * most), title=title, xlabel="reward")
    gap = min((b[0] - a[0] for a, b in pairwise(bars)), default=high - low)
    wide = min(40.0, max(2.0, 0.85 * plane.width * gap / (high - low)))
    for value, good, bad in bars:
        x, tall = plane.left + plane.width * (value - low) / (high - low) - wide / 2, plane.height / (1.1 * most)
        bottom = plane.top + plane.height
        chart.bar(x, bottom - tall * good, wide, tall * good, POSITIVE)
        chart.bar(x, bottom - tall * (good + bad), wide, tall * bad, NEGATIVE)
        if wide > 14:
            chart.text(x + wide / 2, bottom - tall * (good + bad) - 4, str(good + bad), size=11, anchor="middle")
    chart.bar(430, 12, 14, 12, POSITIVE)
    chart.text(449, 23, "right", size=12.5)
    chart.bar(500, 12, 14, 12, NEGATIVE)
    chart.text(519, 23, "wrong", size=12.5)

    wrong_first = _listed([p for p in scored if not right[p]], rewards, prompts, completions, highest=True)
    right_last = _listed([p for p in scored if right[p]], rewards, prompts, completions, highest=False)
    _list(chart, 36, "wrong, and paid most", wrong_first, ORANGE)
    _list(chart, 186, "right, and paid least", right_last, BLUE)
    summary = summarize(rewards, right, num_generations)
    for line, part in enumerate(summary.rsplit("; ", 1)):
        chart.text(14, 334 + 20 * line, part, size=13.5, bold=True)
    return chart, f"{title}: {summary} {_told('Wrong, and paid most', wrong_first)}"


def summarize(rewards: Sequence[float | None], right: Sequence[bool], num_generations: int) -> str:
    """The mean reward, and the numbers of groups with equal rewards and of groups that pay a wrong answer best."""
    scored = [float(reward) for reward in rewards if reward is not None]
    mean = f"mean {sum(scored) / len(scored):.2f}" if scored else "nothing is scored"
    starts = range(0, len(rewards), num_generations)
    tied = upside_down = 0
    for start in starts:
        group = [(rewards[p], right[p]) for p in range(start, start + num_generations) if rewards[p] is not None]
        paid = [reward for reward, _ in group]
        tied += not paid or max(paid) == min(paid)
        good, bad = ([reward for reward, is_right in group if is_right is kind] for kind in (True, False))
        upside_down += bool(good and bad) and max(bad) >= max(good)
    ties = "has equal rewards and teaches" if tied == 1 else "have equal rewards and teach"
    where = f"in {upside_down} group{'s' * (upside_down > 1)} a" if upside_down else "no"
    return (
        f"{mean}; {tied} of {len(starts)} groups {ties} nothing; {where} wrong answer is paid as much as the best "
        "right answer of its group."
    )


def draw_hack(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str = "", smoothing: int = 5
) -> tuple[Chart, str]:
    """(chart, words): reward and accuracy of several runs, step by step.

    Args:
        runs: {name: (rewards, shares of right answers)}, one number per step
        smoothing: the number of steps that each point averages
    """
    chart = Chart(860, 330)
    steps = max(len(rewards) for rewards, _ in runs.values())
    plane = chart.plane(*(58, 36, 770, 236), x=(0, steps), y=(0, 1.02), title=title, xlabel="step")
    words = []
    for number, (name, pair) in enumerate(runs.items()):
        for values, color, style, what in zip(
            pair, (COLORS[0], COLORS[1]), "-:", ("reward", "right answers"), strict=True
        ):
            smooth = [
                sum(values[max(0, i - smoothing + 1) : i + 1]) / min(i + 1, smoothing) for i in range(len(values))
            ]
            label = what if number == 0 else ""
            plane.line(range(1, len(smooth) + 1), smooth, color, style=style, label=label, width=2.2)
            words.append((name, what, smooth))
    plane.legend("lower left")
    told = "; ".join(f"{name}, {what}: from {smooth[0]:.2f} to {smooth[-1]:.2f}" for name, what, smooth in words)
    return chart, f"{title}. {told}."


def _bars(values: Sequence[float], right: Sequence[bool]) -> list[tuple[float, int, int]]:
    """(reward, right ones, wrong ones), as counts: for each reward, or in `2 * FEW` equal bins if there are many."""
    places = [round(value, 6) for value in values]
    if len(set(places)) > FEW:
        low, step = min(values), (max(values) - min(values)) / (2 * FEW)
        places = [low + (min(int((value - low) / step), 2 * FEW - 1) + 0.5) * step for value in values]
    good = Counter(place for place, is_right in zip(places, right, strict=True) if is_right)
    bad = Counter(place for place, is_right in zip(places, right, strict=True) if not is_right)
    return [(place, good[place], bad[place]) for place in sorted(set(places))]


def _listed(
    places: Sequence[int],
    rewards: Sequence[float | None],
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    highest: bool,
) -> list[tuple[str, str, float]]:
    """The best or worst paid of these completions, each text once."""
    found: dict[tuple[str, str], float] = {}
    for place in sorted(places, key=lambda p: float(rewards[p]), reverse=highest):
        found.setdefault((prompts[place], completions[place]), float(rewards[place]))
    return [(prompt, text, reward) for (prompt, text), reward in list(found.items())[:LISTED]]


def _list(chart: Chart, top: float, heading: str, rows: Sequence[tuple[str, str, float]], color: str) -> None:
    chart.text(610, top, heading, size=14)
    for number, (prompt, text, reward) in enumerate(rows):
        y = top + 23 * (number + 1)
        chart.digits(610, y, [(_short(prompt, 12), "soft"), (_short(text, 16) or '""', color)], size=14.5)
        chart.text(980, y, f"{reward:.3g}" if math.isfinite(reward) else str(reward), size=13.5, anchor="end")
    if not rows:
        chart.text(610, top + 23, "none", size=13, color="soft")


def _told(heading: str, rows: Sequence[tuple[str, str, float]]) -> str:
    listed = ", ".join(f"{_short(prompt, 12)}{_short(text, 16)} {reward:.3g}" for prompt, text, reward in rows)
    return f"{heading}: {listed or 'none'}."


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
