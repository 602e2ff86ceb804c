"""One group of answers under the microscope: rewards, advantages, and every token's push, as one still picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS, FAINT, INK, NEGATIVE, POSITIVE, ZERO, shades, three_digits

ROW, CELL, MOST_CELLS = 42, 64, 9  # pixels: height of a row, width of a token; tokens that fit into a row
MINUS = "\N{MINUS SIGN}"


def draw_microscope(
    batch: Mapping[str, Any], settings: Mapping[str, Any], reading: Mapping[str, Any]
) -> tuple[Chart, str]:
    """Draw the answers to one prompt, one per row; return (chart, words). The arguments are those of `Microscope`."""
    size, group = batch["num_generations"], reading["group"]
    rows = range(group * size, (group + 1) * size)
    answers = [batch["completions"][row] for row in rows]
    rewards = [answer["reward"] for answer in answers]
    advantages = [reading["advantages"][row] for row in rows]
    mean, std = (reading[name][group] for name in ("means", "stds"))
    clipped = sum(clip != 0 for tokens in reading["tokens"] for clip in tokens["clips"])
    chart = Chart(1000, 104 + ROW * size)
    updates = f"{settings['update']} update{'' if settings['update'] == 1 else 's'}"
    told = (
        f"{settings['loss_type']}, epsilon {settings['epsilon']:g}, beta {settings['beta']:g}, after {updates}: "
        f"loss {_signed(reading['loss'])}, {clipped} tokens of this group clipped"
    )
    chart.text(14, 24, f"{size} answers to {answers[0]['prompt']}", size=15, bold=True)
    chart.text(14, 46, told, size=13, color="soft")
    for x, title in ((14, "answer"), (170, "reward"), (300, "advantage"), (420, "its tokens, and how each is pushed")):
        chart.text(x, 74, title, size=12.5, color="soft")
    least, most = min(0.0, *_known(rewards)), max(1.0, *_known(rewards))
    largest = max(1.0, *map(abs, advantages))
    color = shades(-1, 1, (NEGATIVE, ZERO, POSITIVE))
    for place, (answer, reward, advantage, tokens) in enumerate(
        zip(answers, rewards, advantages, reading["tokens"], strict=True)
    ):
        y = 84 + ROW * place
        chart.digits(14, y + 25, [(_short(answer["text"], 14), "ink")], size=14)
        if reward is not None:
            chart.bar(170, y + 12, max(1.0, 70 * (reward - least) / (most - least)), 16, COLORS[5])
        chart.text(248, y + 25, "none" if reward is None else three_digits(reward), size=12.5)
        long = 40 * abs(advantage) / largest
        chart.bar(340 - (long if advantage < 0 else 0), y + 12, long, 16, POSITIVE if advantage > 0 else NEGATIVE)
        middle, anchor = (336, "end") if advantage >= 0 else (344, "start")
        chart.text(middle, y + 25, _signed(advantage), size=12.5, anchor=anchor)
        for column, (token, push, clip) in enumerate(
            list(zip(answer["tokens"], tokens["pushes"], tokens["clips"], strict=True))[:MOST_CELLS]
        ):
            x = 420 + CELL * column
            share = push / (reading["largest"]["pushes"] or 1)
            chart.bar(x, y, CELL - 3, ROW - 4, FAINT)
            chart.bar(x + 1, y + 1, CELL - 5, ROW - 6, color(share))
            chart.text(x + 30, y + 16, _short(token, 7), size=13.5, anchor="middle", color=INK)
            said = {-1: "▼ clipped", 1: "▲ clipped"}.get(clip) if push == 0 else None
            chart.text(x + 30, y + 33, said or _signed(push), size=11, anchor="middle", color=INK)
        if len(answer["tokens"]) > MOST_CELLS:
            chart.text(422 + CELL * MOST_CELLS, y + 25, "…", size=14)
    summary = f"mean reward {_digits(mean)}, standard deviation {_digits(std)}"
    chart.text(14, 100 + ROW * size, summary, size=12.5, bold=True)
    listed = "; ".join(
        f"{answer['text']!r} reward {'none' if reward is None else f'{reward:g}'}, advantage {_signed(advantage)}, "
        f"pushes {_pushes(answer['tokens'], tokens)}"
        for answer, reward, advantage, tokens in zip(answers, rewards, advantages, reading["tokens"], strict=True)
    )
    words = (
        f"{size} answers to {answers[0]['prompt']!r} ({told}). Mean reward {_digits(mean)}, standard deviation "
        f"{_digits(std)}. {listed}."
    )
    return chart, words


def _pushes(names: Sequence[str], tokens: Mapping[str, Sequence[float]]) -> str:
    sides = {-1: " (clipped low)", 1: " (clipped high)", 0: ""}
    shown = list(zip(names, tokens["pushes"], tokens["clips"], strict=True))[:MOST_CELLS]
    return " ".join(f"{name} {_signed(push)}{sides[clip]}" for name, push, clip in shown)


def _known(rewards: Sequence[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _digits(value: float | None) -> str:
    return "unknown" if value is None else three_digits(value)


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{'+' if value > 0 else MINUS}{three_digits(abs(value))}"
