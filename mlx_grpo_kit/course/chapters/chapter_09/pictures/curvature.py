"""The bend of a loss around a point: contour lines, the directions of most and least curvature, and the Hessian."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.sheet import Sheet, shades
from mlx_grpo_kit.viz.style import COLORS, NEGATIVE, POSITIVE, ZERO, three_digits

if TYPE_CHECKING:
    import numpy as np

LEVELS = 14


def draw_curvature(
    ground: tuple[np.ndarray, np.ndarray, np.ndarray],
    point: tuple[float, float],
    hessian: Any,
    direction: tuple[float, float],
    product: tuple[float, float],
) -> tuple[Chart, str]:
    """(chart, words): where a point stands in a landscape, a direction v from there, H v, and the Hessian's numbers.

    Args:
        ground: a [A], b [B] and the height [B, A] above each point
        point: (a, b)
        hessian: [2, 2]
        direction: v, of length 1
        product: H v
    """
    import numpy as np

    a, b, heights = ground
    chart = Chart(860, 400)
    plane = chart.plane(
        62, 36, 468, 312, x=(a[0], a[-1]), y=(b[0], b[-1]), xlabel="a", ylabel="b",
        title="the loss from above", grid=False,
    )  # fmt: skip
    levels = heights.min() + (heights.max() - heights.min()) * np.linspace(0.04, 0.98, LEVELS) ** 2.2
    for level in levels:
        xs, ys = contour(a, b, heights, level)
        plane.line(xs, ys, "soft", width=0.8, opacity=0.55)
    values, axes = np.linalg.eigh(np.asarray(hessian, float))
    reach = 0.16 * min(a[-1] - a[0], b[-1] - b[0])
    for value, axis, style in ((values[1], axes[:, 1], "-"), (values[0], axes[:, 0], "--")):
        ends = [(point[0] + side * reach * axis[0], point[1] + side * reach * axis[1]) for side in (-1, 1)]
        label = f"{'most' if style == '-' else 'least'}: {three_digits(value)}"
        plane.line(*zip(*ends, strict=True), "ink", style=style, width=1.6, label=label)
    length = np.hypot(*product)
    for vector, color, name in ((direction, COLORS[1], "v"), (product, COLORS[0], "H v")):
        scale = 1.6 * reach * (1.0 if name == "v" else min(1.0, length / 10))
        size = np.hypot(*vector) or 1.0
        tip = [point[i] + scale * vector[i] / size for i in (0, 1)]
        plane.line([point[0], tip[0]], [point[1], tip[1]], color, width=3, label=name)
        plane.dots([tip[0]], [tip[1]], color, size=8)
    plane.dots([point[0]], [point[1]], "ink", size=7)
    plane.legend("lower left")

    numbers = np.asarray(hessian, float)
    far = float(np.abs(numbers).max()) or 1.0
    sheet = chart.add(Sheet(590, 70, 190, numbers, shades(-far, far, (NEGATIVE, ZERO, POSITIVE)), title="the Hessian"))
    sheet.write([[three_digits(number) for number in row] for row in numbers], 18)
    for row, name in enumerate(("v", "H v")):
        vector = (direction, product)[row]
        chart.text(590, 300 + 24 * row, f"{name} = ({three_digits(vector[0])}, {three_digits(vector[1])})", size=14)
    bend = float(np.dot(direction, product))
    chart.text(590, 300 + 48, f"along v the slope changes by {three_digits(bend)}", size=14)
    return chart, (
        f"A loss of a and b from above, at ({point[0]:.2f}, {point[1]:.2f}). Its Hessian is "
        f"({three_digits(numbers[0, 0])}, {three_digits(numbers[0, 1])}; {three_digits(numbers[1, 0])}, "
        f"{three_digits(numbers[1, 1])}), with most curvature {three_digits(values[1])} and least "
        f"{three_digits(values[0])}. v = ({three_digits(direction[0])}, {three_digits(direction[1])}) gives H v = "
        f"({three_digits(product[0])}, {three_digits(product[1])})."
    )


def contour(a: np.ndarray, b: np.ndarray, heights: np.ndarray, level: float) -> tuple[list[float], list[float]]:
    """The line at a height, as pieces with gaps of nan between them, cell by cell (marching squares)."""
    xs, ys = [], []
    above = heights > level
    mixed = above[:-1, :-1] + 0 + above[1:, :-1] + above[:-1, 1:] + above[1:, 1:]
    for row, column in zip(*((mixed > 0) & (mixed < 4)).nonzero(), strict=True):
        corners = [(row, column), (row, column + 1), (row + 1, column + 1), (row + 1, column)]
        cuts = []
        for (r1, c1), (r2, c2) in zip(corners, corners[1:] + corners[:1], strict=True):
            low, high = heights[r1, c1], heights[r2, c2]
            if (low > level) != (high > level):
                share = (level - low) / (high - low)
                cuts.append((a[c1] + share * (a[c2] - a[c1]), b[r1] + share * (b[r2] - b[r1])))
        for first, second in zip(cuts[::2], cuts[1::2], strict=True):
            xs += [first[0], second[0], float("nan")]
            ys += [first[1], second[1], float("nan")]
    return xs, ys
