"""Rotary position embeddings: a query and a key that rotate with their positions, and the speed of each pair."""

from __future__ import annotations

import math
from typing import Any

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import Chart, Plane
from mlx_grpo_kit.viz.style import COLORS, NEGATIVE, POSITIVE, ZERO, shades, three_digits

QUERY, KEY = COLORS[0], COLORS[1]
MOST_PAIRS = 32  # rows of the picture of wavelengths


def speeds_of(head_dim: int, theta: float) -> list[float]:
    """The radians by which each of the head_dim / 2 pairs rotates per position."""
    return [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]


def draw_rotation(
    query: Any, key: Any, query_position: int, key_position: int, pair: int, theta: float, *, far: int = 40
) -> tuple[Chart, str]:
    """(chart, words): one pair of a query and of a key, rotated by their positions; their product against the distance.

    Args:
        query, key: [D], before the rotation; number i and number i + D/2 are pair i
        pair: the pair that is drawn as arrows
        theta: pair i rotates by theta^(-2i/D) radians per position
        far: distances from -far to far are drawn
    """
    import numpy as np

    query, key = np.asarray(query, dtype=float), np.asarray(key, dtype=float)
    half = len(query) // 2
    speeds = np.array(speeds_of(len(query), theta))
    # A pair as a complex number is rotated by multiplying it by e^(i angle).
    queries, keys = query[:half] + 1j * query[half:], key[:half] + 1j * key[half:]
    distance = query_position - key_position
    distances = np.arange(-far, far + 1)
    products = np.real(queries * np.conj(keys) * np.exp(1j * distances[:, None] * speeds))
    now = np.real(queries * np.conj(keys) * np.exp(1j * distance * speeds))
    round_in = 2 * math.pi / speeds[pair]

    chart = Chart(1000, 400)
    longest = 1.2 * max(abs(queries[pair]), abs(keys[pair]), 1e-9)
    circle = chart.plane(
        *(50, 40, 310, 310),
        x=(-longest, longest),
        y=(-longest, longest),
        title=f"pair {pair}, rotated (dashed: before)",
        grid=False,
    )
    circle.across(0)
    circle.upright(0, style=":")
    for vector, position, color, name in (
        (queries[pair], query_position, QUERY, "query"),
        (keys[pair], key_position, KEY, "key"),
    ):
        around = [abs(vector) * np.exp(1j * angle) for angle in np.linspace(0, 2 * math.pi, 73)]
        circle.line([z.real for z in around], [z.imag for z in around], color, width=0.5)
        _arrow(circle, vector, color, longest, style="--")
        turned = vector * np.exp(1j * position * speeds[pair])
        _arrow(circle, turned, color, longest, label=f"{name} at {position}")
    circle.legend("lower right")

    sums = products.sum(axis=1)
    for top, curve, value, title in (
        (40, products[:, pair], now[pair], f"pair {pair}: a full turn every {_short(round_in)} positions"),
        (236, sums, now.sum(), f"all {half} pairs added up"),
    ):
        room = 1.15 * max(float(np.abs(curve).max()), abs(float(value)), 1e-9)
        plane = chart.plane(
            *(440, top, 540, 118),
            x=(-far, far),
            y=(-room, room),
            title=title,
            right=f"product {_signed(value)}",
            xlabel="" if top == 40 else "distance: position of the query \N{MINUS SIGN} position of the key",
        )
        plane.across(0)
        plane.upright(distance, style=":")
        if top == 40:  # the product is defined between the whole numbers too, and fast pairs need that to look smooth
            fine = np.linspace(-far, far, 12 * far + 1)
            smooth = np.real(queries[pair] * np.conj(keys[pair]) * np.exp(1j * fine * speeds[pair]))
            plane.line(fine, smooth, "soft", width=1.2)
        else:
            plane.line(distances, curve, "soft", width=1.2)
        plane.dots(distances, curve, "soft", size=4)
        plane.dots([distance], [value], COLORS[2], size=11)
    apart = f"{distance}".replace("-", "\N{MINUS SIGN}")
    return chart, (
        f"Pair {pair} of a query at position {query_position} and a key at position {key_position}, {apart} apart: "
        f"rotated by {_signed(query_position * speeds[pair])} and {_signed(key_position * speeds[pair])} radians. "
        f"Their product is {_signed(now[pair])}; all {half} pairs give {_signed(now.sum())}. Pair {pair} makes "
        f"a full turn every {_short(round_in)} positions."
    )


def draw_wavelengths(head_dim: int, theta: float, *, positions: int = 64) -> tuple[Chart, str]:
    """(chart, words): a row per pair with the cosine of its angle at every position, as a colour.

    With more than 32 pairs only every second pair is drawn, or every fourth, and so on.
    """
    import numpy as np

    speeds = np.array(speeds_of(head_dim, theta))
    step = math.ceil(len(speeds) / MOST_PAIRS)
    pairs = range(0, len(speeds), step)
    angles = speeds[::step, None] * np.arange(positions)
    cell = 780 / positions
    chart = Chart(1000, 70 + cell * len(pairs) + 26)
    chart.add(
        Sheet(
            *(80, 52, cell * max(angles.shape), np.cos(angles), shades(-1, 1, (NEGATIVE, ZERO, POSITIVE))),
            title=f"cosine of the angle, positions 0 to {positions - 1}",
            below=f"theta {theta:,.0f}, head_dim {head_dim}. Blue 1, white 0, orange \N{MINUS SIGN}1",
        )
    )
    chart.text(80 + 780 + 12, 43, "positions per turn", size=13)
    for row, pair in enumerate(pairs):
        middle = 52 + cell * (row + 0.5) + 4
        chart.text(74, middle, f"pair {pair}", size=11, anchor="end", color="soft")
        chart.text(872, middle, _short(2 * math.pi / speeds[pair]), size=11, color="soft")
    first, last = (_short(2 * math.pi / speed) for speed in (speeds[0], speeds[-1]))
    return chart, (
        f"The cosine of every pair's angle at positions 0 to {positions - 1}, for theta {theta:,.0f} and head_dim "
        f"{head_dim}. Pair 0 makes a full turn every {first} positions, pair {len(speeds) - 1} every {last}."
    )


def draw_diagonals(scores: Any) -> tuple[Chart, str]:
    """(chart, words): the product of one query and one key at every pair of positions, as colours.

    Args:
        scores: [T, T], one row per position of the query, one column per position of the key
    """
    import numpy as np

    scores = np.asarray(scores, dtype=float)
    length = len(scores)
    far = max(float(np.abs(scores).max()), 1e-9)
    chart = Chart(1000, 440)
    sheet = chart.add(
        Sheet(
            *(300, 52, 350, scores, shades(-far, far, (NEGATIVE, ZERO, POSITIVE))),
            title=f"position of the key, 0 to {length - 1}",
            below=f"orange {_signed(-far)}, white 0, blue {_signed(far)}",
        )
    )
    sheet.write([[_signed(number, 1) for number in row] for row in scores], size=max(0.3 * sheet.cell, 9.9))
    chart.text(285, 52 + 175, "position of the query", anchor="end")
    spread = max(float(np.ptp(np.diagonal(scores, shift))) for shift in range(1 - length, length))
    return chart, (
        f"Products of one query and one key at {length} x {length} pairs of positions, from {_signed(scores.min())} to "
        f"{_signed(scores.max())}. Along every diagonal, where the distance is the same, they differ by at most "
        f"{spread:.0e}."
    )


def _arrow(plane: Plane, tip: complex, color: str, size: float, *, label: str = "", **look: Any) -> None:
    plane.line((0, tip.real), (0, tip.imag), color, width=3.0 if label else 1.5, label=label, **look)
    if abs(tip) > 0:
        back = -0.09 * size * tip / abs(tip)
        sides = [tip + back * complex(math.cos(turn), math.sin(turn)) for turn in (0.5, -0.5)]
        xs, ys = [sides[0].real, tip.real, sides[1].real], [sides[0].imag, tip.imag, sides[1].imag]
        plane.line(xs, ys, color, width=3.0 if label else 1.5)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else three_digits(number)


def _signed(number: float, digits: int = 2) -> str:
    text = f"{float(number):.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("-")
