"""Next-token distributions, what filters leave of them, and how often the answer is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, ORANGE, POSITIVE, percent

GRAY = COLORS[5]  # for probabilities of the policy, before temperature and filters
ROW = 27  # pixels of a token's row


def draw_steps(steps: Sequence[tuple[str, Mapping[str, float], str]]) -> tuple[Chart, str]:
    """(chart, words): a text that grows, with the likeliest next tokens at each step.

    Args:
        steps: the text so far, the likeliest next tokens with their probabilities, and the token taken, for each step
    """
    most = max(len(probs) for _, probs, _ in steps)
    wide = 1000 / len(steps)
    chart = Chart(1000, 74 + ROW * most)
    words = []
    for number, (text, probs, taken) in enumerate(steps):
        left = wide * number + 14
        room = wide - 120
        chart.digits(left, 24, [(text, "ink"), (taken, BLUE)], size=17)
        chart.text(left, 44, "what comes next?" if number == 0 else "and now?", size=12, color="soft")
        for row, (token, share) in enumerate(probs.items()):
            y = 58 + ROW * row
            chart.digits(left, y + 16, [(token, "ink" if token != taken else BLUE)], size=14)
            chart.bar(left + 34, y + 3, max(1.0, room * share), ROW - 9, POSITIVE if token == taken else GRAY)
            chart.text(left + 40 + room * share, y + 16, percent(share), size=12, bold=token == taken)
        listed = ", ".join(f"{token} {percent(share)}" for token, share in probs.items())
        words.append(f"After {text!r}: {listed}; taken: {taken}.")
    return chart, " ".join(words)


def draw_sampling(
    names: Sequence[str], policy: Any, final: Any, stages: Mapping[str, Any], *, rows: int = 12, title: str = ""
) -> tuple[Chart, str]:
    """(chart, words): the policy's distribution over tokens, and the one that is drawn from.

    Args:
        names: the tokens as they are shown
        policy: the probabilities of the tokens before temperature and filters
        final: the probabilities that tokens are drawn from; 0 for a removed token
        stages: the logits after each filter, by its name and in order; -inf for a removed token
        rows: the number of likeliest tokens to show
    """
    removed_by = [""] * len(names)
    for each in reversed(stages):  # the first filter that removed a token counts
        removed_by = [each if stages[each][t] == -math.inf else before for t, before in enumerate(removed_by)]
    order = sorted(range(len(names)), key=lambda token: -float(policy[token]))
    shown, rest = order[:rows], order[rows:]
    kept = [token for token in order if not removed_by[token]]
    chart = Chart(1000, 92 + ROW * len(shown))
    chart.text(14, 24, title, size=15)
    chart.bar(470, 12, 16, 12, GRAY)
    chart.text(492, 23, "the policy", size=12.5)
    chart.bar(590, 12, 16, 12, POSITIVE)
    chart.text(612, 23, "drawn from", size=12.5)
    chart.text(930, 23, "the policy", size=12.5, anchor="end", color="soft")
    for row, token in enumerate(shown):
        y, before, after = 40 + ROW * row, float(policy[token]), float(final[token])
        chart.digits(14, y + 18, [(names[token], "soft" if removed_by[token] else "ink")], size=14)
        chart.bar(110, y + 3, max(0.8, 640 * before), 8, GRAY)
        chart.bar(110, y + 12, 640 * after, 11, POSITIVE)
        verdict = f"out: {removed_by[token]}" if removed_by[token] else percent(after)
        color = ORANGE if removed_by[token] else "ink"
        chart.text(120 + 640 * max(before, after), y + 18, verdict, size=12.5, color=color, bold=not removed_by[token])
        chart.text(930, y + 18, percent(before), size=12.5, anchor="end", color="soft")
    y = 40 + ROW * len(shown)
    if rest:
        share, left = (sum(float(each[token]) for token in rest) for each in (policy, final))
        chart.text(
            *(14, y + 20, f"{len(rest)} more tokens: {percent(share)} of the policy, {percent(left)} of the draws"),
            size=12.5,
            color="soft",
        )
    chart.text(14, y + 42, f"{len(kept)} of {len(names)} tokens kept: {_some(names, kept)}", size=13.5, bold=True)
    out = "".join(f" {each} removed {removed_by.count(each)}." for each in stages if each in removed_by)
    drawn = ", ".join(f"{names[token]} {percent(float(final[token]))}" for token in kept[:6])
    words = f"{title}: {len(kept)} of {len(names)} tokens kept: {_some(names, kept)}.{out} Drawn: {drawn}."
    return chart, words


def draw_accuracy(
    temperatures: Sequence[float], exact: Sequence[float], sampled: Mapping[str, Sequence[float]], *, title: str = ""
) -> tuple[Chart, str]:
    """(chart, words): the share of right answers against temperature, computed and, as markers, by drawing.

    Args:
        exact: the probability of the right answer, averaged over questions
        sampled: the share of right answers, by name of the seed
    """
    highest = 1.15 * max(max(exact), *(max(each) for each in sampled.values()))
    chart = Chart(820, 330)
    plane = chart.plane(
        *(62, 36, 730, 238),
        x=(0, max(temperatures)),
        y=(0, 100 * highest),
        title=title,
        xlabel="temperature (0: always the likeliest)",
        ylabel="% right",
    )
    plane.line(temperatures, [100 * share for share in exact], COLORS[0], label="its exact value", width=2.4)
    for (name, shares), color, marker in zip(sampled.items(), (COLORS[1], COLORS[3], COLORS[2]), "sD^", strict=False):
        plane.dots(temperatures, [100 * share for share in shares], color, marker=marker, size=7, label=name, cut=False)
    plane.legend("upper right")
    best = max(range(len(temperatures)), key=lambda place: exact[place])
    far = 100 * max(abs(a - b) for each in sampled.values() for a, b in zip(each, exact, strict=True))
    words = (
        f"{title}: {percent(exact[0])} at temperature {temperatures[0]:g}, at most {percent(exact[best])} (at "
        f"{temperatures[best]:g}), and {percent(exact[-1])} at {temperatures[-1]:g}. Draws with {len(sampled)} "
        f"seed{'s' * (len(sampled) > 1)} are off by up to {far:.0f} points."
    )
    return chart, words


def _some(names: Sequence[str], tokens: Sequence[int], most: int = 10) -> str:
    """The first tokens by name, and how many more there are."""
    text = " ".join(names[token] for token in tokens[:most])
    return text + (f" and {len(tokens) - most} more" if len(tokens) > most else "")
