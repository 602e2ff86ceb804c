"""Gradients of a whole model: by token, by parameter, through a norm, and their cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mlx_grpo_kit.course.pictures.sheet import Sheet
from mlx_grpo_kit.viz.chart import CHARACTER, Chart, Plane
from mlx_grpo_kit.viz.style import BLUE, COLORS, GREY, LINE_STYLES, ORANGE, POSITIVE, shades, three_digits

LOOKS = ((BLUE, "o"), (COLORS[1], "s"), (COLORS[3], "^"), (GREY, "D"))  # one per state
FEW = 20  # the largest number of points that get markers
DEEP = "#1b4fa8"  # for the largest numbers


def draw_token_gradients(
    tokens: Sequence[str],
    targets: Sequence[str],
    lengths: Mapping[str, Sequence[float]],
    counted: Collection[int],
    loss: float,
) -> tuple[Chart, str]:
    """(chart, words): the length of the gradient at every token, a row per place, from the loss down to the embedding.

    Args:
        tokens: the T tokens that the model reads, as texts.
        targets: the token that it should predict after each.
        lengths: by the name of the place, the length of the gradient at each token, T numbers; the place next to the
            loss comes first.
        counted: the positions whose surprise is in the loss.
        loss: the loss over these positions.
    """
    table = np.array(list(lengths.values()), dtype=float)
    left, top, cell = 190, 112, min(62, 760 / len(tokens))
    chart = Chart(left + max(cell * len(tokens), 300) + 20, top + cell * len(table) + 46)
    sheet = chart.add(
        Sheet(left, top, cell * max(table.shape), table, shades(0, table.max() or 1.0, ("#ffffff", POSITIVE, DEEP)))
    )
    sheet.write([["0" if each == 0 else _short(each) for each in row] for row in table], cell * 0.25)
    chart.text(left - 12, top - 50, "should say", size=13, anchor="end", color="soft")
    chart.text(left - 12, top - 16, "surprise counts", size=13, anchor="end", color="soft")
    for position, (token, target) in enumerate(zip(tokens, targets, strict=True)):
        middle = left + cell * (position + 0.5)
        is_counted = position in counted
        chart.text(middle, top - 50, f"'{target}'", size=15, anchor="middle", bold=is_counted)
        chart.text(middle, top - 16, "yes" if is_counted else "\N{MIDDLE DOT}", size=13, anchor="middle")
        chart.text(middle, top + cell * len(table) + 24, f"'{token}'", size=15, anchor="middle")
    for row, name in enumerate(lengths):
        chart.text(left - 12, top + cell * (row + 0.5) + 5, name, size=13, anchor="end")
    chart.text(left - 12, top + cell * len(table) + 24, "reads", size=13, anchor="end", color="soft")
    chart.text(12, 24, f"loss {loss:.2f}, and the length of the gradient at each token", size=14)
    last = list(lengths)[-1]
    reached = [position for position, each in enumerate(table[-1]) if each > 0]
    asked = " ".join(f"'{targets[position]}'" for position in sorted(counted))
    words = f"Loss {loss:.2f}, the surprise at {asked}. " if asked else "No token's surprise counts: the loss is 0. "
    most = int(table[-1].argmax())
    words += f"At the {last}, the gradient reaches {len(reached)} of {len(tokens)} tokens" + (
        f", up to token {reached[-1] + 1}; most at token {most + 1}, '{tokens[most]}'." if reached else "."
    )
    return chart, words


def draw_lengths(
    states: Mapping[str, Mapping[str, float]], *, shown: Collection[str], title: str, ylabel: str = ""
) -> tuple[Chart, str]:
    """(chart, words): a number for every parameter of a model, in the order of the forward pass, on a logarithmic axis.

    Args:
        states: for each state of the model, by its name, the numbers by parameter name; 0 is drawn at the bottom.
        shown: the parameters that are drawn strongly; the others are faint.
        title: the title of the chart.
        ylabel: the label of the vertical axis.
    """
    names = list(next(iter(states.values())))
    every = [value for lengths in states.values() for value in lengths.values() if value > 0]
    low, high = (10.0 ** math.floor(math.log10(min(every))), max(every)) if every else (0.1, 1.0)
    chart = Chart(960, 372)
    limits = (low / 1.6, 10.0 ** math.ceil(math.log10(high) + 1e-9))
    plane = chart.plane(
        66, 46, 876, 236, x=(-0.8, len(names) - 0.2), y=limits, log_y=True, title=title, ylabel=ylabel, numbers=False
    )
    _name_the_layers(chart, plane, names)
    strong = [index for index, name in enumerate(names) if name in shown]
    for (state, lengths), (color, marker) in zip(states.items(), LOOKS, strict=False):
        values = [max(lengths[name], limits[0]) for name in names]
        rest = [index for index in range(len(names)) if index not in strong]
        plane.dots(rest, [values[index] for index in rest], color, marker=marker, size=3)
        plane.line(strong, [values[index] for index in strong], color, width=0.8)
        plane.dots(strong, [values[index] for index in strong], color, marker=marker, size=9, label=state)
    x = 74.0
    for state, (color, marker) in zip(states, LOOKS, strict=False):
        chart.text(x, 364, f"{'●■▲◆'['os^D'.index(marker)]} {state}", size=13, color=color, bold=True)
        x += CHARACTER * 13 * (len(state) + 5)
    return chart, f"{title}. {_range_in_words(states, [names[index] for index in strong])}"


def _name_the_layers(chart: Chart, plane: Plane, names: Sequence[str]) -> None:
    """Write the parameters' short names under the axis, turned, if there are few, and the layers between thin lines."""
    few = len(names) <= 40
    before = None
    for index, name in enumerate(names):
        parts = name.removesuffix(".weight").split(".")
        owner = f"layer {parts[1]}" if parts[0] == "layers" else ""
        if owner != before:
            plane.upright(index - 0.5, style=":")
            if owner and (few or int(parts[1]) % 4 == 0):
                chart.text(plane.left + plane._along(index - 0.3), plane.top + 14, owner, size=12, color="soft")
            before = owner
        if few:
            short = SHORT.get(parts[-1], parts[-1])
            x = plane.left + plane._along(index) + 4
            chart.text(x, plane.top + plane.height + 48, short.rjust(8), size=10.5, color="soft", turned=True)


SHORT = {
    "input_layernorm": "norm 1",
    "post_attention_layernorm": "norm 2",
    "embedding": "embed",
    "final_norm": "norm",
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o",
    "q_norm": "q norm", "k_norm": "k norm",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
}  # fmt: skip


def _range_in_words(states: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    sentences = []
    for state, lengths in states.items():
        values = {name: lengths[name] for name in names}
        if not any(values.values()):
            sentences.append(f"{state}: {f'all {len(values)} are' if len(values) > 1 else 'it is'} 0.")
            continue
        if len(values) == 1:
            [(name, value)] = values.items()
            sentences.append(f"{state}: {_short(value)} ({name}).")
            continue
        least, most = min(values, key=values.get), max(values, key=values.get)
        sentences.append(
            f"{state}: from {_short(values[least])} ({least}) to {_short(values[most])} ({most}), "
            f"{len(values)} parameters."
        )
    return " ".join(sentences)


def draw_projection(x: Sequence[float], g: Sequence[float], back: Sequence[float]) -> tuple[Chart, str]:
    """(chart, words): in a plane, a norm's input, the gradient that arrives, and the gradient that goes back.

    Args:
        x: the input, two numbers.
        g: the gradient of x / rms, times 1 / rms: it would go back if rms were a constant.
        back: the gradient that does go back.
    """
    x, g, back = (np.asarray(each, dtype=float) for each in (x, g, back))
    reach = 1.15 * max(np.abs(x).max(), np.abs(g).max(), 1.0)
    chart = Chart(720, 392)
    plane = chart.plane(46, 30, 330, 330, x=(-reach, reach), y=(-reach, reach))
    along = x / np.linalg.norm(x)
    across = np.array([-along[1], along[0]])
    far = 3 * reach
    plane.line([-far * along[0], far * along[0]], [-far * along[1], far * along[1]], "soft", style=":", width=1)
    plane.line([-far * across[0], far * across[0]], [-far * across[1], far * across[1]], "soft", style="--", width=1)
    plane.line([g[0], back[0]], [g[1], back[1]], "soft", style=":", width=1.6)
    for vector, color, style, marker, name in (
        (x, "ink", "-", "s", "x"),
        (g, BLUE, "--", "o", "arrives (over r)"),
        (back, ORANGE, "-", "D", "goes back to x"),
    ):
        plane.line([0, vector[0]], [0, vector[1]], color, style=style, width=2.6)
        plane.dots([vector[0]], [vector[1]], color, marker=marker, size=10, label=name)
    lost, kept = float(g @ along), float(np.linalg.norm(back))
    for row, (words, color) in enumerate(
        (
            (f"x = ({x[0]:.2f}, {x[1]:.2f})", "ink"),
            (f"arrives, over r: ({g[0]:.2f}, {g[1]:.2f}), length {np.linalg.norm(g):.2f}", BLUE),
            (f"  of it along x: {lost:.2f}, taken out", "soft"),
            (f"goes back: ({back[0]:.2f}, {back[1]:.2f}), length {kept:.2f}", ORANGE),
            (f"  of it along x: {float(back @ along):.2f}", "soft"),
        )
    ):
        words = words.replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
        chart.text(400, 130 + 27 * row, words, size=14, color=color)
    return chart, (
        f"x is ({x[0]:.2f}, {x[1]:.2f}). What arrives, divided by r, has length {np.linalg.norm(g):.2f}, "
        f"of which {lost:.2f} lies along x and is taken out. The gradient of x has length {kept:.2f} and is at a "
        "right angle to x."
    )


def draw_curves(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    *,
    title: str,
    xlabel: str,
    log: bool = False,
) -> tuple[Chart, str]:
    """(chart, words): curves over the same x; with logarithmic axes the smallest point of each curve is marked.

    Args:
        xs: the positions of the points.
        curves: values by name, as many as `xs`.
        title, xlabel: the texts above and below.
        log: True makes both axes logarithmic.
    """
    every = [value for values in curves.values() for value in values if not log or value > 0]
    low, high = (min(every) / 2, max(every) * 30) if log else (0.0, max(every) * 1.3)
    chart = Chart(820, 340)
    plane = chart.plane(
        66,
        34,
        736,
        252,
        x=(min(xs), max(xs)),
        y=(low, high),
        log_x=log,
        log_y=log,
        title=title.replace("-", "\N{MINUS SIGN}"),
        xlabel=xlabel,
    )
    words = []
    for (name, values), (color, marker), style in zip(curves.items(), LOOKS, LINE_STYLES, strict=False):
        plane.line(
            xs, values, color, style=style, width=2.2, label=name, marker=marker if log or len(xs) <= FEW else ""
        )
        best = int(np.argmin(values))
        if log:
            plane.dots([xs[best]], [values[best]], color, marker=marker, size=11, cut=False)
            words.append(f"{name}: smallest, {values[best]:.0e}, at {xs[best]:.0e}; {values[0]:.0e} at {xs[0]:.0e}.")
        else:
            if len(xs) <= FEW:
                plane.dots(xs, values, color, marker=marker, size=6, cut=False)
            words.append(f"{name}: from {three_digits(min(values))} to {three_digits(max(values))}.")
    plane.legend("upper right")
    return chart, f"{title}. {' '.join(words)}"


def draw_costs(costs: Mapping[str, tuple[float, float]]) -> tuple[Chart, str]:
    """(chart, words): two bars for each way to compute a gradient: milliseconds, and megabytes at the peak."""
    chart = Chart(900, 62 + 34 * len(costs))
    most = [max(pair[column] for pair in costs.values()) or 1.0 for column in range(2)]
    for column, (left, title) in enumerate(((230, "milliseconds"), (575, "megabytes at the peak"))):
        chart.text(left, 28, title, size=14)
        for row, pair in enumerate(costs.values()):
            width = 225 * pair[column] / most[column]
            chart.bar(left, 44 + 34 * row, max(width, 1), 22, COLORS[0] if column == 0 else COLORS[1])
            chart.text(left + width + 8, 60 + 34 * row, _short(pair[column]), size=13)
    for row, name in enumerate(costs):
        chart.text(216, 60 + 34 * row, name, size=13, anchor="end")
    return chart, "; ".join(
        f"{name}: {_short(milliseconds)} milliseconds, {_short(megabytes)} megabytes"
        for name, (milliseconds, megabytes) in costs.items()
    )


def _short(value: float) -> str:
    """Two significant digits, without an exponent where it is readable: "0.034", "12", "3.1e-07"."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e5:
        return f"{value:.0e}"
    digits = max(0, 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
