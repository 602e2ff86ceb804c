"""The scatter of gradient estimates: as a cloud, and against a baseline, a group's size or a word's length."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_grpo_kit.course.chapters.chapter_15.pictures.bandit import number, signed
from mlx_grpo_kit.viz.chart import Chart, Plane
from mlx_grpo_kit.viz.style import COLORS, LINE_STYLES, MARKERS, POSITIVE

LINE_COLORS = (COLORS[0], COLORS[1], COLORS[3], COLORS[2], COLORS[4])
BASE_COLORS = (COLORS[1], COLORS[3], COLORS[2], COLORS[0])


def draw_parabola(
    baselines: Sequence[float],
    exact: Sequence[float],
    measured: Mapping[float, float],
    *,
    mean: float,
    best: float,
    title: str = "",
) -> tuple[Chart, str]:
    """(chart, words): the variance of an estimate against the constant that is subtracted from each reward.

    Args:
        exact: the variance at each of the baselines
        measured: {baseline: variance of drawn estimates}
        mean: the expected reward
        best: the baseline with the smallest variance
    """
    chart = Chart(820, 330)
    plane = chart.plane(
        *(62, 36, 730, 238),
        x=(baselines[0], baselines[-1]),
        y=(0, 1.05 * max(*exact, *measured.values())),
        title=title,
        xlabel="baseline",
        ylabel="variance",
    )
    plane.line(baselines, exact, COLORS[0], label="exact, by enumeration", width=2.4)
    plane.dots(measured, measured.values(), COLORS[1], marker="s", size=8, label="measured", cut=False)
    for value, words, style, other in ((mean, "mean reward", "--", best), (best, "best", ":", mean)):
        plane.upright(value, "ink", style=style)
        anchor, dx = ("start", 6) if value >= other else ("end", -6)
        plane.text(value, 0.72 * plane.y[1], f"{words} {number(value)}", dx=dx, size=13, anchor=anchor)
    plane.legend("lower left")
    at = {baseline: variance for baseline, variance in zip(baselines, exact, strict=True)}
    least = min(at, key=at.get)
    words = (
        f"{title}: a parabola with the value {_short(exact[0])} at {number(baselines[0])}, the smallest value "
        f"{_short(at[least])} near {number(least)}, and {_short(exact[-1])} at {number(baselines[-1])}. The mean "
        f"reward is {number(mean)}, the best baseline {number(best)}."
    )
    return chart, words


def draw_groups(
    estimates: Any,
    exact: Sequence[float],
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    measured: float,
    *,
    size: int,
    chosen: str,
    axes: tuple[str, str] = ("push on arm A", "push on arm C"),
    reach: float = 2.0,
) -> tuple[Chart, str]:
    """(chart, words): a cloud of estimates from groups of one size, and the variance against the group size.

    Args:
        estimates: [M, 2], one estimate per group, in the two components of the axes
        exact: [2], the true gradient
        curves: {baseline: (group sizes, the exact variance at each)}
        measured: the variance of the groups in the cloud
        chosen: the baseline of the cloud
        reach: the limits of the cloud's axes
    """
    chart = Chart(1000, 400)
    cloud = chart.plane(
        *(58, 40, 330, 300), x=(-reach, reach), y=(-reach, reach), title=f"{len(estimates)} groups of {size}",
        xlabel=axes[0], ylabel=axes[1],
    )  # fmt: skip
    outside = int((abs(estimates) > reach).any(axis=1).sum())
    cloud.across(0), cloud.upright(0, style=":")
    for count, places in _by_frequency(estimates):
        cloud.dots(*zip(*places, strict=True), POSITIVE, size=4 + 1.6 * count**0.5)
    cloud.labels.append(("a group's estimate", POSITIVE, "", "o"))
    cloud.dots([exact[0]], [exact[1]], "ink", marker="D", size=11, label="the true gradient")
    cloud.legend("upper right")
    if outside:
        cloud.text(-reach, reach, f"{outside} are outside", dx=8, dy=18, size=12, color="soft")
    sizes = [n for ns, _ in curves.values() for n in ns]
    plane = chart.plane(
        *(470, 40, 500, 300), x=(min(sizes), max(sizes)), y=(1e-3, 1e2), log_x=True, log_y=True, numbers=False,
        title="variance", right=f"{chosen}: {_short(measured)} measured", xlabel="group size",
    )  # fmt: skip
    _names_below(plane, sorted(set(sizes)))
    for (name, (ns, variances)), color, style in zip(curves.items(), BASE_COLORS, LINE_STYLES, strict=False):
        wide = 3.2 if name == chosen else 1.8
        plane.line(ns, [max(v, 1e-9) for v in variances], color, style=style, width=wide, label=name)
        if name == chosen:
            plane.dots([size], [max(measured, 1e-9)], color, size=10, cut=False)
    plane.upright(size, "soft", style=":")
    plane.legend("upper right")
    told = ", ".join(
        f"{name} {_short(variances[ns.index(size)])}" for name, (ns, variances) in curves.items() if size in ns
    )
    words = (
        f"Groups of {size}. Exact variance: {told}. Measured, {chosen}: {_short(measured)}, with {outside} groups "
        f"outside the picture. The true gradient is {signed(exact[0])} and {signed(exact[1])}."
    )
    return chart, words


def draw_lines(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    dots: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    log_x: bool = False,
    log_y: bool = False,
    y: tuple[float, float] | None = None,
    corner: str = "upper left",
) -> tuple[Chart, str]:
    """(chart, words): computed lines, and measured dots, each set with the name of its line."""
    dots = dots or {}
    xs = [x for each, _ in lines.values() for x in each]
    few = len(set(xs)) <= 12 and all(float(x).is_integer() for x in xs)  # every value gets a label
    ys = [v for _, each in (*lines.values(), *dots.values()) for v in each]
    chart = Chart(820, 340)
    plane = chart.plane(
        *(66, 36, 726, 250),
        x=(min(xs), max(xs)),
        y=y
        or (
            (min((v for v in ys if v > 0), default=0.1) / 2 if log_y else 0),
            (max(ys) or 1.0) * (2 if log_y else 1.08),
        ),
        log_x=log_x,
        log_y=log_y,
        numbers=not few,
        title=title,
        xlabel=xlabel,
        ylabel=ylabel,
    )
    if few:
        _names_below(plane, sorted(set(xs)))
    told = []
    looks = zip(LINE_COLORS, itertools.cycle(LINE_STYLES), itertools.cycle(MARKERS), strict=False)
    for (name, (along, up)), (color, style, marker) in zip(lines.items(), looks, strict=False):
        plane.line(along, up, color, style=style, width=2.4, label=name)
        told.append(f"{name} from {_short(up[0])} at {number(along[0])} to {_short(up[-1])} at {number(along[-1])}")
        if name in dots:
            plane.dots(*dots[name], color, marker=marker, size=8, label=f"{name}, measured", cut=False)
            told.append(f"measured {', '.join(map(_short, dots[name][1]))}")
    plane.legend(corner)
    return chart, f"{title}: {'; '.join(told)}."


def _by_frequency(estimates: Any) -> list[tuple[int, list[tuple[float, float]]]]:
    """Equal estimates as one place: (count, the places with that many estimates), the largest count first."""
    counts = Counter((round(float(x), 6), round(float(y), 6)) for x, y in estimates)
    return [
        (count, [place for place, each in counts.items() if each == count])
        for count in sorted(set(counts.values()), reverse=True)
    ]


def _names_below(plane: Plane, values: Sequence[float]) -> None:
    """Label the x axis with our own numbers, as many as there is room for."""
    last = None
    for value in values:
        at = plane._along(value)
        if last is None or at - last > 26:
            plane.text(value, plane.y[0], f"{value:g}", dy=17, size=11, anchor="middle", color="soft")
            last = at


def _short(value: float) -> str:
    """The number with three digits: "0.0749", "16.9", "2,500", "3.4e+05"."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
