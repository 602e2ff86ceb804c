"""A healthy run and a sick run side by side in small curves: the effect of a bug on the usual metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.live.curves import smooth
from mlx_grpo_kit.viz.style import BLUE, COLORS, ORANGE

PANELS = {  # metric -> its title, the smallest range of the axis, True for a logarithmic axis
    "reward": ("mean reward", (0.0, 1.0), False),
    "accuracy": ("right answers", (0.0, 1.0), False),
    "frac_reward_zero_std": ("tied groups", (0.0, 1.0), False),
    "entropy": ("entropy", (0.0, 0.7), False),
    "kl": ("KL to the reference", (0.0, 0.2), False),
    "grad_norm": ("gradient norm", (0.0, 2.0), False),
    "completions/mean_length": ("tokens per completion", (1.0, 4.0), False),
    "completions/clipped_ratio": ("cut off", (0.0, 1.0), False),
    "sampling/sampling_logp_difference/mean": ("scored minus sampled", (0.0, 0.2), False),
}
COLUMNS, WIDTH, HEIGHT = 3, 860, 184
LINE = 18  # height of a line of text in pixels
Curves = Mapping[str, Sequence[float | None]]


def draw_symptoms(
    healthy: Curves,
    sick: Curves,
    *,
    title: str,
    name: str = "this run",
    changed: Sequence[str] = (),
    said: Sequence[str] = (),
) -> tuple[Chart, str]:
    """(chart, words): nine metrics of two runs, step by step, and below them the changed lines and the diagnosis.

    Args:
        healthy, sick: metric -> values, one per step; None or NaN for a missing value. The sick run may be shorter.
        title: the title of the picture.
        name: the name of the second run.
        changed: lines that begin with "-" (as it should be) or "+" (as it is in the second run).
        said: the messages of a diagnosis of the second run.
    """
    wrapped = [line for words in said for line in _wrapped(words, 132)]
    rows = math.ceil(len(PANELS) / COLUMNS)
    top = 62
    below = LINE * (len(changed) + len(wrapped) + bool(changed) + bool(wrapped)) + 14 * (bool(changed) + bool(wrapped))
    chart = Chart(WIDTH, top + HEIGHT * rows + below)
    chart.text(14, 24, title, size=16, bold=True)
    chart.digits(14, 46, [("●", COLORS[0]), (" healthy    ", "ink"), ("◆", COLORS[1]), (f" {name}", "ink")], size=13)
    words = []
    steps = max(len(healthy["reward"]), 2)
    for place, (metric, (label, scale, log)) in enumerate(PANELS.items()):
        row, column = divmod(place, COLUMNS)
        lines = [_numbers(curves.get(metric, ())) for curves in (healthy, sick)]
        known = [value for line in lines for value in line if math.isfinite(value)]
        low, high = min([*known, scale[0]]), max([*known, scale[1]])
        margin = 0.06 * (high - low)
        plane = chart.plane(
            *(WIDTH / COLUMNS * column + 46, top + HEIGHT * row + 26, WIDTH / COLUMNS - 62, HEIGHT - 62),
            x=(0, steps + 1),
            y=(low - margin, high + margin),
            log_y=log,
            title=label,
        )
        for values, color, style, marker in zip(lines, COLORS, ("-", "--"), "oD", strict=False):
            xs = range(1, len(values) + 1)
            plane.line(xs, values, color, width=0.8)
            plane.line(xs, smooth(values, 0.7), color, style=style, width=2.2, halo=True)
            if len(values) == 1:
                plane.dots(xs, values, color, marker=marker, size=9)
        if metric != "reward" and lines[1] and not any(map(math.isfinite, lines[1])):
            plane.text(
                steps / 2, low + 0.12 * (high - low), "not a number", size=12, anchor="middle", color=ORANGE, bold=True
            )
        words.append(f"{label} {_ends(lines[1])} ({_ends(lines[0])})")
    y = top + HEIGHT * rows + LINE
    if changed:
        chart.text(14, y, "Changed lines", size=13, bold=True)
        for number, line in enumerate(changed, start=1):
            chart.digits(14, y + LINE * number, [(line.replace("-", "\N{MINUS SIGN}", 1), _color(line))], size=13)
        y += LINE * (len(changed) + 1) + 14
    if wrapped:
        chart.text(14, y, "Messages of diagnose", size=13, bold=True)
        for number, line in enumerate(wrapped, start=1):
            chart.text(14, y + LINE * number, line, size=12)
    alt = f"{title}. At the start and at the end, with the healthy run in brackets: {'; '.join(words)}."
    if changed:
        alt += f" Changed: {' '.join(line.strip() for line in changed)}"
    return chart, " ".join([alt, *said])


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _ends(values: Sequence[float]) -> str:
    """The means of the first and of the last five steps."""
    if not values or not any(map(math.isfinite, values)):
        return "is not a number"
    first, last = (_mean(part) for part in (values[:5], values[-5:]))
    return f"{first:.2f} to {last:.2f}"


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _color(line: str) -> str:
    return {"-": BLUE, "+": ORANGE}.get(line[:1], "ink")


def _wrapped(words: str, width: int) -> list[str]:
    """Wrap words into lines of at most `width` characters; the first has a bullet."""
    lines, line = [], "•"
    for word in words.split():
        if len(line) + len(word) + 1 > width:
            lines.append(line)
            line = "  "
        line += f" {word}"
    return [*lines, line]


def draw_rewards(runs: Mapping[str, Sequence[float | None]], *, title: str = "") -> tuple[Chart, str]:
    """(chart, words): one metric of several runs in one chart, smoothed.

    Args:
        runs: name -> values, one per step.
        title: the title of the picture.
    """
    chart = Chart(760, 330)
    steps = max(map(len, runs.values()))
    plane = chart.plane(56, 36, 684, 250, x=(0, steps + 1), y=(0, 1), title=title, xlabel="step")
    for (name, values), color, style in zip(runs.items(), COLORS, ("-", "--", "-.", ":"), strict=False):
        plane.line(range(1, len(values) + 1), smooth(_numbers(values), 0.8), color, style=style, width=2.4, label=name)
    plane.legend("upper right")
    words = "; ".join(f"{name} {_ends(_numbers(values))}" for name, values in runs.items())
    return chart, f"{title}. At the start and at the end: {words}."
