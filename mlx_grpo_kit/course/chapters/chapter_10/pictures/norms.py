"""A few numbers before and after two norms, as bars."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE, three_digits


def normed(x: Sequence[float], eps: float) -> dict[str, list[float]]:
    """RMSNorm and layer norm of a vector, both without weights."""
    mean = sum(x) / len(x)
    size = (sum(each**2 for each in x) / len(x) + eps) ** 0.5
    spread = (sum((each - mean) ** 2 for each in x) / len(x) + eps) ** 0.5
    return {
        "RMSNorm": [each / size if size else 0.0 for each in x],
        "layer norm": [(each - mean) / spread if spread else 0.0 for each in x],
    }


def draw_norms(x: Sequence[float], eps: float) -> tuple[Chart, str]:
    """(chart, words): the numbers of x, of its RMSNorm and of its layer norm, without weights, side by side.

    x has its own axis; the norms share one that is long enough for every vector of this length.
    """
    count = len(x)
    size = (sum(each**2 for each in x) / count) ** 0.5
    results = {"x": list(x), **normed(x, eps)}
    chart = Chart(1000, 300)
    for place, (name, numbers) in enumerate(results.items()):
        far = max(max(map(abs, x)), 1e-9) * 1.25 if name == "x" else count**0.5 * 1.2
        plane = chart.plane(
            *(62 + 325 * place, 40, 255, 205),
            x=(-0.6, count - 0.4),
            y=(-far, far),
            title=name,
            numbers=False,
            right="" if name != "x" else f"rms {three_digits(size)}",
        )
        plane.across(0, style="-")
        for index, number in enumerate(numbers):
            color = POSITIVE if number >= 0 else NEGATIVE
            plane.line((index, index), (0, number), color, width=46)
            above = number >= 0
            plane.text(index, number, _signed(number), dy=-5 if above else 15, anchor="middle", size=13)
    listed = {name: ", ".join(map(_signed, numbers)) for name, numbers in results.items()}
    return chart, (
        f"x is {listed['x']}; its root mean square is {three_digits(size)}. RMSNorm turns it into "
        f"{listed['RMSNorm']}, and layer norm into {listed['layer norm']}."
    )


def _signed(number: float) -> str:
    text = f"{number:.2f}" if abs(number) < 10 else f"{number:.0f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else "0"
