"""PPO's clip on one number: the objective of a token against its ratio."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import COLORS


def draw_clip(ratios: Sequence[float], clipped: dict[float, Sequence[float]], *, epsilon: float) -> tuple[Chart, str]:
    """(chart, words): ratio times advantage, before and after the clip.

    Args:
        ratios: the values of the x axis
        clipped: {advantage: the clipped objective at each ratio}
    """
    chart = Chart(1000, 340)
    words = []
    for place, (advantage, heights) in enumerate(clipped.items()):
        plain = [ratio * advantage for ratio in ratios]
        plane = chart.plane(
            *(60 + 490 * place, 40, 420, 240),
            x=(ratios[0], ratios[-1]),
            y=(min(*plain, 0) * 1.05, max(*plain, 0) * 1.05),
            title=f"advantage {advantage:+g}".replace("-", "\N{MINUS SIGN}"),
            xlabel="ratio: probability now / probability when drawn",
        )
        plane.line(ratios, plain, COLORS[5], style="--", label="ratio \N{MULTIPLICATION SIGN} advantage")
        plane.line(ratios, heights, COLORS[0], width=3, label="with the clip")
        plane.upright(1.0, "ink", style=":")
        for edge in (1 - epsilon, 1 + epsilon):
            plane.upright(edge, "soft", style=":")
        plane.legend("lower right" if advantage > 0 else "upper right")
        flat = f"above {1 + epsilon:g}" if advantage > 0 else f"below {1 - epsilon:g}"
        words.append(f"With {plane.title} the objective is flat {flat}, and follows the ratio elsewhere.")
    return chart, " ".join(words)
