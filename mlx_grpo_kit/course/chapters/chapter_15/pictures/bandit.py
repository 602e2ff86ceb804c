"""A policy over a few answers: the reward, the probability and the push of each."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, NEGATIVE, POSITIVE, percent

GRAY = COLORS[5]  # probabilities
ROW = 30  # pixels of an answer's row
MINUS = "\N{MINUS SIGN}"


def draw_bandit(
    names: Sequence[str],
    probs: Sequence[float],
    rewards: Sequence[float],
    pushes: Sequence[float] | None = None,
    *,
    title: str = "",
    pushed: str = "push: the slope of the mean reward",
    most: float | None = None,
    marked: Sequence[str] = (),
) -> tuple[Chart, str]:
    """(chart, words): a row per answer with its probability, its reward and its push.

    Args:
        names: names of the answers
        probs, rewards: one per answer
        pushes: one per answer, the direction and size in which its logit or probability changes; None omits the column
        pushed: heading of that column
        most: the push that fills the column; by default the largest one
        marked: names to emphasise
    """
    expected = sum(p * r for p, r in zip(probs, rewards, strict=True))
    wide = pushes is not None
    chart = Chart(1000 if wide else 640, 66 + ROW * len(names))
    chart.text(14, 24, title, size=15)
    chart.text(110, 50, "drawn with probability", size=12, color="soft")
    chart.text(470, 50, "reward", size=12, anchor="middle", color="soft")
    if wide:
        chart.text(760, 50, pushed, size=12, anchor="middle", color="soft")
    scale = max(map(abs, pushes), default=0) if wide and most is None else most
    said = []
    for row, (name, prob, reward) in enumerate(zip(names, probs, rewards, strict=True)):
        y = 58 + ROW * row
        chart.digits(14, y + 19, [(name, BLUE if name in marked else "ink")], size=15)
        chart.bar(110, y + 5, max(0.8, 250 * prob), ROW - 11, GRAY)
        chart.text(118 + 250 * prob, y + 19, percent(prob), size=13)
        chart.text(470, y + 19, number(reward), size=14, anchor="middle", bold=name in marked)
        if wide:
            push = 0.0 if signed(pushes[row]) == "0" else pushes[row]
            long = min(1.0, abs(push) / scale) * 150 if scale else 0.0
            fill = POSITIVE if push > 0 else NEGATIVE if push else GRAY
            chart.bar(760 - long if push < 0 else 760, y + 5, max(long, 0.8), ROW - 11, fill)
            at, anchor = (752 - long, "end") if push < 0 else (768 + long, "start")
            chart.text(at, y + 19, signed(push), size=13, anchor=anchor)
            said.append(f"{name} {percent(prob)}, reward {number(reward)}, push {signed(push)}")
        else:
            said.append(f"{name} {percent(prob)}, reward {number(reward)}")
    heading = f"mean reward {number(expected)}"
    chart.text(1000 - 14 if wide else 626, 24, heading, size=15, anchor="end", bold=True)
    return chart, f"{title}: {'; '.join(said)}. The {heading}."


def number(value: float) -> str:
    """Two decimals at most: "1", "0.25"."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return text.replace("-", MINUS) if text != "-0" else "0"


def signed(value: float) -> str:
    """ "+0.50", "-0.036", "+0.0046", and "0" for anything that rounds to 0."""
    if abs(value) < 5e-5:
        return "0"
    return f"{value:+.{2 if abs(value) >= 0.095 else 3 if abs(value) >= 0.0095 else 4}f}".replace("-", MINUS)
