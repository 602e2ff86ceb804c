"""A rule with a switch: its formula, its effect on a gradient, and the verdicts of the checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.viz.error_maps import ROUNDING, draw_map, tiles
from mlx_grpo_kit.viz.picture import new_figure
from mlx_grpo_kit.viz.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOOD, BAD, GREY = "#1a7f37", "#b35900", "#59636e"
# The sign, the colour and the background of each verdict.
VERDICTS = {
    "caught": ("\N{CHECK MARK}", GOOD, "#e6f4ea"),
    "passed": ("\N{CHECK MARK}", GOOD, "#e6f4ea"),
    "missed": ("\N{BALLOT X}", BAD, "#fdebd3"),
    "false alarm": ("\N{BALLOT X}", BAD, "#fdebd3"),
    "error": ("!", GREY, "#eeeeee"),
}


def draw_switch(
    *,
    name: str,
    healthy: str,
    broken: str,
    is_broken: bool,
    analytic: np.ndarray,
    numeric: np.ndarray,
    verdicts: Mapping[str, str],
) -> tuple[Figure, str]:
    """(figure, words): the formula in use, the measured gradient and the one from backward, and each checker's verdict.

    Args:
        verdicts: checker -> a key of VERDICTS. The maps show arrays of one shape, up to four axes.
    """
    figure = new_figure(10, 4.1)
    formulas, *maps = figure.subplot_mosaic(
        [["text"] * 3, ["measured", "backward", "difference"]], height_ratios=(5, 7)
    ).values()
    figure.subplots_adjust(left=0.02, right=0.98, bottom=0.08, top=0.96, wspace=0.08, hspace=0.2)
    _write_formulas(formulas, name, healthy, broken, is_broken, verdicts)
    scale = max(float(np.abs(numeric).max()), float(np.abs(analytic).max()), ROUNDING)
    error = analytic - numeric
    off = np.abs(error) > 1e-5 * np.abs(numeric) + 1e-7
    largest = float(np.abs(error).max())
    for axis, title, array, limit in (
        (maps[0], "measured", numeric, scale),
        (maps[1], "from backward", analytic, scale),
        (maps[2], "backward \N{MINUS SIGN} measured", error, None),
    ):
        draw_map(axis, array, limit=limit)
        axis.set_title(title, loc="left", size=10, color=INK)
    what = (
        f"{off.sum()} of {off.size} wrong, by up to {largest:.2g}"
        if off.any()
        else f"only rounding: {largest:.0e} at most"
    )
    maps[2].set_xlabel(what, size=9.5, color=INK, labelpad=5)
    words = (
        f"{name}. The rule in use is {'broken: ' + broken if is_broken else 'right: ' + healthy}. Backward's "
        f"gradient has {what}. "
    )
    return figure, " ".join(words.split()) + " " + "; ".join(f"{who}: {said}" for who, said in verdicts.items()) + "."


def _write_formulas(
    axis: Axes, name: str, healthy: str, broken: str, is_broken: bool, verdicts: Mapping[str, str]
) -> None:
    axis.axis("off")
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.text(0, 0.97, name, size=13, weight="bold", color=INK, va="top")
    for y, title, formula, in_use in ((0.6, "right", healthy, not is_broken), (0.34, "broken", broken, is_broken)):
        color = (BAD if is_broken else GOOD) if in_use else GREY
        axis.text(0, y, f"{title}{'  (in use)' if in_use else ''}", size=9, color=color, va="bottom")
        axis.text(
            0,
            y - 0.02,
            formula,
            size=10.5,
            color=color,
            va="top",
            family="DejaVu Sans Mono",
            weight="bold" if in_use else "normal",
        )
    for row, (who, verdict) in enumerate(verdicts.items()):
        sign, color, tint = VERDICTS[verdict]
        y = 0.88 - 0.24 * row
        axis.text(0.8, y, who, size=10, color=INK, ha="right", va="center")
        axis.text(
            0.82,
            y,
            f"{sign} {verdict}",
            size=11,
            weight="bold",
            color=color,
            va="center",
            bbox={"boxstyle": "round,pad=0.35", "facecolor": tint, "edgecolor": color, "linewidth": 0.8},
        )


def draw_verdicts(
    broken: Mapping[str, Mapping[str, str]], healthy: Mapping[str, Mapping[str, str]]
) -> tuple[Figure, str]:
    """(figure, words): a table of each checker's verdict on each rule, broken and right.

    Args:
        broken, healthy: rule -> (checker -> a key of VERDICTS); the same rules and checkers in both
    """
    checkers = list(next(iter(broken.values())))
    figure = new_figure(10, 0.75 + 0.27 * len(broken))
    axis = figure.subplots()
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.99)
    axis.axis("off")
    axis.set(xlim=(0, 10), ylim=(len(broken) + 0.2, -2.0))
    axis.text(0.05, -0.9, "broken rule", size=10, weight="bold", color=INK, va="center")
    columns = np.linspace(4.3, 7.5, len(checkers))
    for x, checker in zip(columns, checkers, strict=True):
        axis.text(x, -0.9, checker.replace(" ", "\n", 1), size=9.5, weight="bold", color=INK, ha="center", va="center")
    axis.text(9.15, -0.9, "and with the\nright rule", size=9.5, weight="bold", color=INK, ha="center", va="center")
    for row, (name, verdicts) in enumerate(broken.items()):
        axis.axhline(row - 0.1, color="#e3e3e3", linewidth=0.7)
        axis.text(0.05, row + 0.4, name, size=10, color=INK, va="center")
        for x, checker in zip(columns, checkers, strict=True):
            _stamp(axis, x, row + 0.4, verdicts[checker])
        alarms = [checker for checker, verdict in healthy[name].items() if verdict != "passed"]
        _stamp(axis, 9.15, row + 0.4, "false alarm" if alarms else "passed")
    return figure, _count(broken, healthy, checkers)


def _stamp(axis: Axes, x: float, y: float, verdict: str) -> None:
    sign, color, tint = VERDICTS[verdict]
    axis.text(
        x,
        y,
        f"{sign} {verdict}",
        size=9,
        color=color,
        ha="center",
        va="center",
        weight="bold" if verdict in ("missed", "false alarm") else "normal",
        bbox={"boxstyle": "round,pad=0.22", "facecolor": tint, "edgecolor": "none"},
    )


def _count(
    broken: Mapping[str, Mapping[str, str]], healthy: Mapping[str, Mapping[str, str]], checkers: Sequence[str]
) -> str:
    sentences = [f"A table of {len(broken)} broken rules and {len(checkers)} checkers."]
    for checker in checkers:
        missed = [name for name, verdicts in broken.items() if verdicts[checker] != "caught"]
        alarms = [name for name, verdicts in healthy.items() if verdicts[checker] != "passed"]
        sentences.append(
            f"{checker} caught {len(broken) - len(missed)}"
            + (f" and missed {', '.join(missed)}" if missed else "")
            + f"; false alarms on right rules: {', '.join(alarms) or 'none'}."
        )
    return " ".join(sentences)


def draw_patients(patients: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Figure, str]:
    """(figure, words): the two gradients (analytic, numeric) of each patient, and their difference.

    Each difference has its own scale, which is shown below it.
    """
    figure = new_figure(10, 6.6)
    axes = figure.subplots(3, len(patients), squeeze=False)
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.06, top=0.94, wspace=0.12, hspace=0.2)
    words = [f"{len(patients)} patients, each with the measured gradient, the one from backward, and their difference."]
    for column, (analytic, numeric) in enumerate(patients):
        error = analytic - numeric
        largest = max(float(np.abs(error).max()), 1e-300)
        scale = max(float(np.abs(numeric).max()), float(np.abs(analytic).max()))
        for row, (array, limit) in enumerate(((numeric, scale), (analytic, scale), (error, largest))):
            axis = axes[row, column]
            draw_map(axis, array, limit=limit, zero=min(ROUNDING, 1e-3 * limit))
            if row == 0:
                axis.set_title(f"Patient {column + 1}", loc="left", size=11, color=INK)
            if column == 0:
                axis.set_ylabel(("measured", "from backward", "difference")[row], size=10, color=INK)
        axes[2, column].set_xlabel(f"full colour: \N{PLUS-MINUS SIGN}{largest:.2g}", size=9, color=INK, labelpad=5)
        rows = "; ".join(", ".join(f"{value:.2g}" for value in line) for line in tiles(error)[0])
        sizes = "; ".join(", ".join(f"{value:.2g}" for value in line) for line in tiles(numeric)[0])
        words.append(
            f"Patient {column + 1}: the measured gradient, row by row, is {sizes}; backward differs by {rows}."
        )
    return figure, " ".join(words)
