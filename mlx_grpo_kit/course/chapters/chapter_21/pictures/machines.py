"""The share of communication in a training step, by the number of machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_grpo_kit.viz.chart import CHARACTER, Chart
from mlx_grpo_kit.viz.style import BLUE, COLORS, GREY, LINE_STYLES, MARKERS, ORANGE

LINE_COLORS = (ORANGE, BLUE, COLORS[3], GREY)


def draw_machines(
    machines: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    marked: Sequence[int],
    *,
    title: str,
    below: str,
) -> tuple[Chart, str]:
    """(chart, words): one line per network: the share of a step's time in which machines wait for gradients.

    Args:
        machines: the numbers of machines that share a step, from 1 on.
        shares: the share of waiting, between 0 and 1, by the name of the network.
        marked: the numbers among `machines` that the alt text mentions.
        title, below: the text above and below the axes.
    """
    chart = Chart(708 + max(172, CHARACTER * 14 * max(map(len, shares))), 376)  # names are bold, and wide
    plane = chart.plane(
        58, 38, 640, 250, x=(machines[0], machines[-1]), y=(0, 1), log_x=True, title=title,
        xlabel="number of machines", numbers=False,
    )  # fmt: skip
    for count in machines:
        if count & (count - 1) == 0:
            plane.text(count, 0, str(count), dy=17, size=11, anchor="middle", color="soft")
    for count in marked:
        plane.upright(count, style=":")
    ends, words = [], []
    for number, (name, values) in enumerate(shares.items()):
        color, style = LINE_COLORS[number % 4], LINE_STYLES[number % 4]
        plane.line(machines, values, color, style=style, width=2.2, label=name)
        places = [machines.index(count) for count in marked]
        plane.dots(marked, [values[place] for place in places], color, marker=MARKERS[number % 4], size=8, cut=False)
        ends.append((38 + 250 * (1 - values[-1]), name, color))
        told = ", ".join(f"{values[place]:.1%} with {count}" for place, count in zip(places, marked, strict=True))
        words.append(f"{name}: {told}.")
    y = 0.0
    for place, (end, name, color) in enumerate(sorted(ends)):
        y = min(max(end + 5, y + 18), 38 + 250 + 5 - 18 * (len(ends) - 1 - place))
        chart.text(708, y, name, size=13, color=color, bold=True)
    chart.text(58, 358, below, size=13)
    return chart, f"{title}. {' '.join(words)} {below}"
