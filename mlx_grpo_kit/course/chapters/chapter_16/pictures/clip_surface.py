"""The clipped objective against the ratio, for a token of a good completion and one of a bad completion."""

from __future__ import annotations

from mlx_grpo_kit.viz.chart import Chart, Plane
from mlx_grpo_kit.viz.style import BLUE, NEGATIVE, ORANGE, POSITIVE

MOST = 2.0  # largest ratio
STEPS = 201


def objective(ratio: float, advantage: float, low: float, high: float) -> float:
    """min(r A, clip(r, low, high) A)."""
    return min(ratio * advantage, min(max(ratio, low), high) * advantage)


def slope(ratio: float, advantage: float, low: float, high: float) -> float:
    """Slope of the objective with respect to the ratio: A, or 0 where it is clipped."""
    clipped = ratio > high if advantage > 0 else ratio < low
    return 0.0 if clipped else advantage


def draw_clip(ratio: float, epsilon: float, epsilon_high: float, size: float = 1.0) -> tuple[Chart, str]:
    """(chart, words): two areas, A = size and A = -size, with a token at `ratio` and the direction of its push.

    Args:
        ratio: the ratio of the token, from 0 to 2.
        epsilon, epsilon_high: how far the ratio may fall below 1 and rise above 1.
        size: absolute value of both advantages.
    """
    low, high = 1 - epsilon, 1 + epsilon_high
    chart = Chart(1000, 400)
    words = [f"Ratio {ratio:.2f}, edges {low:.2f} and {high:.2f}."]
    for left, advantage in ((58, size), (556, -size)):
        good = advantage > 0
        plane = chart.plane(
            *(left, 44, 400, 236),
            x=(0, MOST),
            y=(-0.15 * size, 2.15 * size) if good else (-2.15 * size, 0.15 * size),
            title=f"a token of a {'good' if good else 'bad'} completion, A = {advantage:+.1f}".replace(
                "-", "\N{MINUS SIGN}"
            ),
            xlabel="ratio r: how much likelier than when it was sampled",
            ylabel="objective" if good else "",
        )
        words.append(_one(chart, plane, left, ratio, advantage, low, high))
    return chart, " ".join(words)


def _one(chart: Chart, plane: Plane, left: float, ratio: float, advantage: float, low: float, high: float) -> str:
    color, dark = (POSITIVE, BLUE) if advantage > 0 else (NEGATIVE, ORANGE)
    ratios = sorted({MOST * step / (STEPS - 1) for step in range(STEPS)} | {low, high})
    for edge, name in ((low, "1 \N{MINUS SIGN} ε"), (high, "1 + ε high")):
        plane.upright(edge, "soft", style=":")
        side, dx = ("start", 4) if edge < 0.8 * plane.x[1] else ("end", -4)
        plane.text(edge, plane.y[0], name, dx=dx, dy=-6, anchor=side, size=11, color="soft")
    plane.line(ratios, [each * advantage for each in ratios], "soft", style="--", width=1.4)
    plane.line(ratios, [objective(each, advantage, low, high) for each in ratios], color, width=3.4)
    height, steepness = objective(ratio, advantage, low, high), slope(ratio, advantage, low, high)
    plane.dots([ratio], [height], dark, size=13, cut=False)
    if steepness:
        to = ratio + (0.28 if steepness > 0 else -0.28)
        plane.line((ratio, to), (height, objective(to, advantage, low, high)), dark, width=6)
    verdict = "pushed up: r should grow" if steepness > 0 else "pushed down: r should fall"
    if not steepness:
        verdict = "clipped: far enough, no gradient"
    numbers = f"objective {height:+.2f}, slope {steepness:+.1f}" if steepness else f"objective {height:+.2f}, slope 0"
    chart.text(left, 345, numbers.replace("-", "\N{MINUS SIGN}"), size=14)
    chart.text(left, 369, verdict, size=15, bold=True)
    return f"A = {advantage:+.1f}: {numbers}, {verdict}."
