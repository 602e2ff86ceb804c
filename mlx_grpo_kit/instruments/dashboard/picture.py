"""A whole run as a still picture: the small curves of the dashboard, few enough points for a notebook of any run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_grpo_kit.runs.symptoms_of_sampling import SCORED_MINUS_SAMPLED
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.live.curves import describe_curves, smooth
from mlx_grpo_kit.viz.style import COLORS, LINE_STYLES, three_digits

SMOOTHING = 0.8
MOST_POINTS = 240  # of a line; of a longer run each point is the mean of a few steps
COLUMNS = 3
WIDTH, HEIGHT = 330, 190  # of a panel
THROUGHPUT, EITHER = "tokens_per_second", "clip_ratio/region_mean"


@dataclass(frozen=True)
class RunPanel:
    """One small curve of a run.

    Attributes:
        title: above it.
        lines: words -> metric, each a line.
        spread: the metric of a standard deviation around the first line, or "".
        between: two metrics, the lower and upper edge of a band.
        smoothing: weight of the past in the line over the values; 0 where they are no measurements.
        empty: what stands there while no value has come.
        help: what it is, for who points at the title.
    """

    title: str
    lines: Mapping[str, str]
    spread: str = ""
    between: tuple[str, str] | None = None
    smoothing: float = SMOOTHING
    empty: str = "no values yet"
    help: str = ""


def run_panels(metrics: Sequence[str]) -> list[RunPanel]:
    """The panels of a run whose steps have these metrics."""
    parts = [name.split("/")[1] for name in metrics if name.startswith("rewards/") and name.endswith("/mean")]
    rewards = {name: f"rewards/{name}/mean" for name in sorted(parts)} if len(parts) > 1 else {}
    return [
        RunPanel(
            "reward",
            {"mean": "reward"} | rewards,
            spread="reward_std",
            help="of all completions of a step; the band is one standard deviation to both sides",
        ),
        RunPanel("entropy", {"mean": "entropy"}, help="of the next token's distribution; near 0 nothing new is tried"),
        RunPanel(
            "KL to the reference",
            {"mean": "kl"},
            empty="none: beta is 0",
            help="how far the policy has gone from the one it is pulled to",
        ),
        RunPanel(
            "clipped",
            {"low or high": EITHER}
            if EITHER in metrics and "clip_ratio/low_mean" not in metrics
            else {"low": "clip_ratio/low_mean", "high": "clip_ratio/high_mean"},
            help="share of the tokens whose ratio left the clip range, below or above, and which push no further",
        ),
        RunPanel(
            "share",
            {"tied": "frac_reward_zero_std", "cut off": "completions/clipped_ratio"},
            help="tied: groups whose rewards are all alike, which teach nothing; cut off: completions without an end",
        ),
        RunPanel(
            "length, tokens",
            {"mean": "completions/mean_length"},
            between=("completions/min_length", "completions/max_length"),
            help="of the completions; the band reaches from the shortest to the longest",
        ),
        RunPanel("gradient norm", {"norm": "grad_norm"}, help="before it is clipped"),
        RunPanel("learning rate", {"rate": "learning_rate"}, smoothing=0.0, help="as the step used it"),
        _last_panel(metrics),
    ]


def _last_panel(metrics: Sequence[str]) -> RunPanel:
    """The speed of the run; if it was not measured, the difference between learner and sampler, if that was kept."""
    apart = next((name for name in SCORED_MINUS_SAMPLED if name in metrics), None)
    if THROUGHPUT in metrics:
        return RunPanel("tokens a second", {"speed": THROUGHPUT}, help="of completions, by the time of the whole step")
    if apart and "step_time" not in metrics:
        return RunPanel("scored minus sampled", {"mean": apart}, help="of the tokens' log-probabilities; should be 0")
    return RunPanel("seconds a step", {"time": "step_time"})


def names_of(panels: Sequence[RunPanel]) -> list[str]:
    """The metrics that panels show, each once."""
    names = [name for panel in panels for name in (*panel.lines.values(), panel.spread, *(panel.between or ()))]
    return [name for name in dict.fromkeys(names) if name]


def chart_run(steps: Sequence[Any], abandoned: Sequence[Sequence[Any]] = (), title: str = "") -> tuple[Chart, str]:
    """A picture of a run and its words.

    Args:
        steps: with `.step` and `.metrics`.
        abandoned: steps that a rewind took back, for each rewind; drawn in grey, and numbered if there are several.
    """
    metrics = dict.fromkeys(name for run in (steps, *abandoned) for step in run for name in step.metrics)
    panels = run_panels(list(metrics))
    header = 34 if title else 6
    rows = math.ceil(len(panels) / COLUMNS)
    chart = Chart(WIDTH * COLUMNS, header + HEIGHT * rows)
    if title:
        chart.text(14, 24, title, size=16, bold=True)
    last = max((run[-1].step for run in (steps, *abandoned) if run), default=1)
    for place, panel in enumerate(panels):
        row, column = divmod(place, COLUMNS)
        _draw(chart, (WIDTH * column + 58, header + HEIGHT * row + 28), panel, steps, abandoned, last)
    history = {name: _column(steps, name) for name in names_of(panels)}
    shown = {panel.title: [name for name in panel.lines.values() if _finite(history[name])] for panel in panels}
    words = describe_curves([step.step for step in steps], history, shown, title=title, smoothing=SMOOTHING)
    if abandoned:
        words += f" {len(abandoned)} abandoned {'branch' if len(abandoned) == 1 else 'branches'} in grey"
        words += ", numbered." if len(abandoned) > 1 else "."
    return chart, words


def _draw(
    chart: Chart,
    corner: tuple[float, float],
    panel: RunPanel,
    steps: Sequence[Any],
    abandoned: Sequence[Sequence[Any]],
    last: int,
) -> None:
    lines = {words: _thinned(steps, name, panel.smoothing) for words, name in panel.lines.items()}
    lines = {words: line for words, line in lines.items() if _finite(line[1])}
    greys = [_thinned(branch, next(iter(panel.lines.values())), panel.smoothing) for branch in abandoned]
    band = _band(panel, steps)
    heights = [y for _, ys in [*lines.values(), *greys, *band] for y in _finite(ys)]
    low, high = (min(heights), max(heights)) if heights else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.05
    legend = (
        (17 * len(lines) + 8) / (HEIGHT - 64) if len(lines) > 1 else 0.0
    )  # its share of the height, above the lines
    room = (high - low + 2 * margin) * legend / (1 - min(legend, 0.7))
    now = _finite(_column(steps, next(iter(panel.lines.values()))))
    plane = chart.plane(
        *corner,
        *(WIDTH - 82, HEIGHT - 64),
        x=(0, max(last, 5)),
        y=(low - margin, high + margin + room),
        title=panel.title,
        right=_words(now[-1]) if now else "",
    )
    for number, (xs, ys) in enumerate(greys):
        plane.line(xs, ys, COLORS[5], style=LINE_STYLES[number % 4], width=1.5)
        ends = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
        if len(greys) > 1 and ends:
            plane.text(*ends[-1], str(number + 1), dx=3, dy=4, size=11, color="soft")
    for xs, ys in band:
        plane.line(xs, ys, COLORS[0], width=0.8)
    for place, (words, (xs, ys)) in enumerate(lines.items()):
        plane.line(xs, ys, COLORS[place % 5], style=LINE_STYLES[place % 4], label=words)
    if len(lines) > 1:
        plane.legend("upper right", size=11)
    if not heights:
        words = panel.empty if steps else "no values yet"
        plane.text(max(last, 5) / 2, (low + high) / 2, words, size=11, anchor="middle", color="soft")


def _band(panel: RunPanel, steps: Sequence[Any]) -> list[tuple[list[float], list[float]]]:
    if panel.between:
        return [_thinned(steps, name) for name in panel.between]
    if panel.spread:
        xs, middle = _thinned(steps, next(iter(panel.lines.values())))
        _, spread = _thinned(steps, panel.spread)
        return [(xs, [a + sign * b for a, b in zip(middle, spread, strict=True)]) for sign in (-1, 1)]
    return []


def _thinned(steps: Sequence[Any], name: str, smoothing: float = SMOOTHING) -> tuple[list[float], list[float]]:
    """(steps, smoothed values), at most MOST_POINTS of them."""
    values = smooth(_column(steps, name), smoothing)
    size = math.ceil(len(steps) / MOST_POINTS) or 1
    pieces = range(0, len(steps), size)
    xs = [steps[min(at + size, len(steps)) - 1].step for at in pieces]
    return xs, [_mean(values[at : at + size]) for at in pieces]


def _mean(values: Sequence[float]) -> float:
    """To six digits, so that what does not change is one number."""
    values = _finite(values)
    return float(f"{sum(values) / len(values):.6g}") if values else math.nan


def _words(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else three_digits(value)


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _column(steps: Sequence[Any], name: str) -> list[float]:
    return [step.metrics.get(name, math.nan) for step in steps]
