"""How a policy's answers to one question are spread, and what a training step did to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_grpo_kit.viz.curves import COLORS, FAINT, INK
from mlx_grpo_kit.viz.picture import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "///", "...", "xxx")  # bars differ without colour too
UP, DOWN, LEVEL = COLORS[0], COLORS[1], "#777777"


def draw_answers(counts: Mapping[str, Mapping[str, int]], right: str, *, title: str = "", most: int = 8) -> Figure:
    """Bars of the share of each answer: `counts` maps a name ("before", "after") to answer -> how often it was given.

    The `most` answers with the largest shares are shown, in the order of the first entry, and the rest as "others". The
    answer `right` is always among them and has a check mark. Raises ValueError for an entry that counts nothing.
    """
    for name, answers in counts.items():
        if not sum(answers.values()):
            raise ValueError(f"draw_answers: {name!r} counts no answers; expected at least one")
    shares = [{answer: 100 * count / sum(answers.values()) for answer, count in answers.items()}
              for answers in counts.values()]
    everything = {answer for entry in shares for answer in entry} | {right}
    by_weight = sorted(everything, key=lambda answer: (-sum(entry.get(answer, 0) for entry in shares), answer))
    shown = [answer for place, answer in enumerate(by_weight) if answer == right or place < most]
    shown.sort(key=lambda answer: -shares[0].get(answer, 0))
    labels = [(answer or "(empty)") + (" ✓" if answer == right else "") for answer in shown]
    labels += ["others"] * (len(everything) > len(shown))

    figure = new_figure(7.6, 2.9)
    axis = figure.add_axes((0.085, 0.15, 0.895, 0.66))
    width = 0.8 / len(counts)
    for place, (name, entry) in enumerate(zip(counts, shares, strict=True)):
        heights = [entry.get(answer, 0) for answer in shown]
        if len(labels) > len(shown):
            heights.append(100 - sum(heights))
        left = [column + (place - (len(counts) - 1) / 2) * width for column in range(len(labels))]
        bars = axis.bar(left, heights, width * 0.94, color=COLORS[place % len(COLORS)], label=name, edgecolor="white",
                        hatch=HATCHES[place % len(HATCHES)])
        axis.bar_label(bars, [f"{height:.0f}" for height in heights], size=8, color=INK, padding=1)
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


def draw_push(advantages: Sequence[float], before: Sequence[float], after: Sequence[float], *,
              title: str = "") -> Figure:
    """One point a completion: its advantage, and how the step changed its log-probability, `after` - `before`."""
    figure = new_figure(7.6, 3.3)
    axis = figure.add_axes((0.1, 0.15, 0.88, 0.68))
    axis.axhline(0, color="#999999", linewidth=0.8)
    axis.axvline(0, color="#999999", linewidth=0.8)
    kinds = {"rewarded more than its group": ("^", UP, lambda a: a > 0),
             "rewarded less than its group": ("v", DOWN, lambda a: a < 0),
             "rewarded like all of its group": ("o", LEVEL, lambda a: a == 0)}
    for name, (marker, color, belongs) in kinds.items():
        points = [(a, new - old) for a, old, new in zip(advantages, before, after, strict=True) if belongs(a)]
        if points:
            axis.scatter(*zip(*points, strict=True), s=30, marker=marker, color=color, alpha=0.75, linewidth=0,
                         label=name)
    axis.set_xlabel("advantage", size=9, color=INK, labelpad=2)
    axis.set_ylabel("change of log-probability", size=9, color=INK)
    axis.legend(fontsize=8.5, frameon=False, labelcolor=INK, loc="upper left")
    _tidy(axis)
    figure.text(0.02, 0.97, title, size=12, weight="bold", color=INK, va="top")
    return figure


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(labelsize=9, color="#999999", labelcolor=INK, length=3)
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
