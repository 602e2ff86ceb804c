"""Pictures of a policy's answers to one question, and of the effect of a training step on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import COLORS, EDGE, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "///", "...", "xxx")  # so bars differ even without colour
UP, DOWN, LEVEL = COLORS[0], COLORS[1], "#777777"


def draw_answers(counts: Mapping[str, Mapping[str, int]], right: str, *, title: str = "", most: int = 8) -> Figure:
    """Bars of the share of each answer: `counts` maps a name ("before", "after") to answer -> how often it was given.

    The `most` answers with the largest shares are shown, in the order of the first entry, and the rest as "others". The
    answer `right` is always among them and has a check mark. Raises ValueError for an entry that counts nothing.
    """
    for name, answers in counts.items():
        if not sum(answers.values()):
            raise ValueError(f"draw_answers: {name!r} counts no answers; expected at least one")
    shares = [
        {answer: 100 * count / sum(answers.values()) for answer, count in answers.items()}
        for answers in counts.values()
    ]
    everything = {answer for entry in shares for answer in entry} | {right}
    by_weight = sorted(everything, key=lambda answer: (-sum(entry.get(answer, 0) for entry in shares), answer))
    shown = [answer for place, answer in enumerate(by_weight) if answer == right or place < most]
    shown.sort(key=lambda answer: -shares[0].get(answer, 0))
    labels = [(answer or "(empty)") + (" ✓" if answer == right else "") for answer in shown]
    labels += ["others"] * (len(everything) > len(shown))

    figure = new_figure(7.2, 2.9)
    axis = figure.add_axes((0.085, 0.15, 0.895, 0.66))
    width = 0.8 / len(counts)
    for place, (name, entry) in enumerate(zip(counts, shares, strict=True)):
        heights = [entry.get(answer, 0) for answer in shown]
        if len(labels) > len(shown):
            heights.append(100 - sum(heights))
        left = [column + (place - (len(counts) - 1) / 2) * width for column in range(len(labels))]
        bars = axis.bar(
            left,
            heights,
            width * 0.94,
            color=COLORS[place % len(COLORS)],
            label=name,
            edgecolor="white",
            hatch=HATCHES[place % len(HATCHES)],
        )
        axis.bar_label(bars, [f"{height:.0f}" for height in heights], size=9, color=INK, padding=1)
    axis.set_xticks(range(len(labels)), labels)
    for tick, answer in zip(axis.get_xticklabels(), shown, strict=False):
        tick.set_fontweight("bold" if answer == right else "normal")
    axis.set_ylabel("% of answers", size=9, color=INK)
    axis.margins(y=0.14)
    _tidy(axis)
    figure.text(0.02, 0.965, title, size=12, weight="bold", color=INK, va="top")
    if len(counts) > 1:
        axis.legend(fontsize=9, frameon=False, labelcolor=INK)
    return figure


def describe_answers(counts: Mapping[str, Mapping[str, int]], right: str, *, most: int = 4) -> str:
    """Describe the bars in words: each entry's most frequent answers and the right one, with their shares."""
    sentences = []
    for name, answers in counts.items():
        total = sum(answers.values())
        frequent = sorted(answers, key=lambda answer: (-answers[answer], answer))[:most]
        shares = ", ".join(
            f"{answer or '(empty)'} {answers[answer] / total:.0%}"
            for answer in frequent
            if answers[answer] / total >= 0.01
        )
        sentences.append(f"{name}: {shares}; the right answer {right} {answers.get(right, 0) / total:.0%}.")
    return "Bars of the most frequent answers. " + " ".join(sentences)


def draw_push(
    advantages: Sequence[float], before: Sequence[float], after: Sequence[float], *, title: str = ""
) -> Figure:
    """One point per completion: its probability before and after a training step, marked by its advantage's sign.

    `before` and `after` are in [0, 1]. A point above the diagonal has become more likely.
    """
    figure = new_figure(7.2, 4.0)
    axis = figure.add_axes((0.09, 0.13, 0.46, 0.73))
    end = 108 * max(*before, *after)
    axis.plot([0, end], [0, end], color=EDGE, linewidth=0.8)
    kinds = {
        "better than its group": ("^", UP, lambda advantage: advantage > 0),
        "worse than its group": ("v", DOWN, lambda advantage: advantage < 0),
        "as good as all of its group": ("o", LEVEL, lambda advantage: advantage == 0),
    }
    for name, (marker, color, belongs) in kinds.items():
        points = [
            (100 * old, 100 * new)
            for advantage, old, new in zip(advantages, before, after, strict=True)
            if belongs(advantage)
        ]
        if points:
            axis.scatter(*zip(*points, strict=True), s=34, marker=marker, color=color, linewidth=0, label=name)
    axis.set(xlim=(-0.02 * end, end), ylim=(-0.02 * end, end))
    axis.set_xlabel("probability before the step, %", size=9, color=INK, labelpad=2)
    axis.set_ylabel("probability after the step, %", size=9, color=INK)
    legend = axis.legend(
        fontsize=9,
        frameon=False,
        labelcolor=INK,
        loc="upper left",
        bbox_to_anchor=(1.03, 0.78),
        handletextpad=0.2,
        title="An answer that was rewarded",
        title_fontsize=9,
        alignment="left",
    )
    legend.get_title().set_color(INK)
    for height, words in ((0.93, "Above the line: more likely than before"), (0.86, "Below the line: less likely")):
        axis.text(1.06, height, words, transform=axis.transAxes, size=9, color=INK)
    _tidy(axis)
    figure.text(0.02, 0.975, title, size=12, weight="bold", color=INK, va="top")
    return figure


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(EDGE)
    axis.tick_params(labelsize=9, color=EDGE, labelcolor=INK, length=3)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
