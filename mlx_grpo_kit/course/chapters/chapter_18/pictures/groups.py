"""The batch that one step of GRPO learns from: each group's answers, marked better or worse than the group's mean."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE

ROW, PLAIN, ON_COLOR = 27, "#c9c9cf", "#1b1b1b"
LONGEST = 9  # characters of an answer


def draw_groups(
    questions: Sequence[str], answers: Sequence[str], rewards: Sequence[float], group_size: int, *, title: str = ""
) -> tuple[Chart, str]:
    """(chart, words): a row for each group with its answers, blue where the reward is above the group's mean.

    Args:
        questions, answers, rewards: one per completion, group after group. Answers are cut to nine characters.
    """
    starts = range(0, len(answers), group_size)
    cell = min(92.0, 640 / group_size)
    chart = Chart(1000, 66 + ROW * len(starts))
    chart.text(14, 24, title, size=15, bold=True)
    along = max(0.0, 8.6 * len(title) - 262)  # after a long title
    for place, (color, words) in enumerate(
        ((POSITIVE, "better than its group"), (NEGATIVE, "worse"), (PLAIN, "like all the others"))
    ):
        left = (300, 490, 590)[place] + along
        chart.bar(left, 12, 16, 13, color)
        chart.text(left + 22, 24, words, size=12.5)
    chart.text(140 + cell * group_size, 40, "mean reward", size=12.5, color="soft")
    said, teaching = [], 0
    for row, start in enumerate(starts):
        y, group = 52 + ROW * row, range(start, start + group_size)
        values = [rewards[each] for each in group]
        spread = max(values) > min(values)
        mean = sum(values) / group_size
        teaching += spread
        chart.digits(14, y + 17, [(_short(questions[start], 11), "ink")], size=14)
        for place, each in enumerate(group):
            left = 130 + cell * place
            color = PLAIN if not spread else POSITIVE if rewards[each] > mean else NEGATIVE
            chart.bar(left, y, cell - 4, ROW - 5, color)
            chart.digits(left + 6, y + 16, [(_short(answers[each], LONGEST), ON_COLOR)], size=13)
        verdict = f"{mean:.2f}" if spread else f"{mean:.2f}: nothing to learn"
        chart.text(140 + cell * group_size, y + 16, verdict, size=12.5)
        said.append(f"{questions[start]} {mean:.2f}")
    words = (
        f"{title}: {len(starts)} groups of {group_size} answers; {teaching} of them have answers with "
        f"different rewards. Mean rewards: {', '.join(said)}."
    )
    return chart, words


def _short(text: str, length: int) -> str:
    text = text.replace("\n", "\N{RETURN SYMBOL}")
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"
