"""A tree of texts: possible next tokens, what may follow them, and the probability of each path."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_grpo_kit.viz.chart import Chart, text
from mlx_grpo_kit.viz.style import COLORS, POSITIVE, percent

GRAY = COLORS[5]  # for probabilities outside the tree
BARS = 8  # the number of likeliest tokens that have one
BAR, ROW, STEP, WIDE = 24, 44, 92, 56  # pixels: height of a bar and of a branch, distance of tokens, width of their box


def draw_tree(prompt: str, nodes: Sequence[Mapping[str, Any]], paths: Sequence[Sequence[int]]) -> tuple[Chart, str]:
    """Draw bars of the token after the prompt, and the tree of `paths`, with probabilities; return (chart, words).

    The arguments are the data of `GenerationTree`; every beginning of a path is a path, too.
    """
    shares = {tuple(node["path"]): _shares(node) for node in nodes}
    names = {id_: name for node in nodes for id_, name in zip(node["ids"], node["names"], strict=True)}
    known = {tuple(path) for path in paths}
    ordered = sorted(known, key=lambda path: [-shares[path[:step]].get(id_, 0.0) for step, id_ in enumerate(path)])
    leaves = [path for path in ordered if not any(path == other[:-1] for other in known if other)]
    depth = max(map(len, known))
    chart = Chart(max(380 + 120 + STEP * depth + 90, 700), 60 + max(BAR * BARS, ROW * len(leaves)) + 10)
    chart.text(14, 22, "what comes next?", size=13, color="soft")
    chart.digits(146, 22, [(prompt, "ink")], size=14)
    for row, (id_, share) in enumerate(list(shares[()].items())[:BARS]):
        y = 40 + BAR * row
        chart.digits(14, y + 16, [(names[id_], "ink")], size=14)
        chart.bar(74, y + 4, max(0.8, 190 * share), BAR - 9, GRAY)
        chart.text(80 + 190 * share, y + 16, percent(share), size=12)

    heights: dict[tuple[int, ...], float] = {}

    def place(path: tuple[int, ...]) -> float:
        below = [place(other) for other in ordered if other and other[:-1] == path]
        heights[path] = sum(below) / len(below) if below else 50 + ROW * leaves.index(path)
        return heights[path]

    place(())
    probability = {(): 1.0}
    branches = []
    for path in sorted(ordered, key=len):
        x = 380 + STEP * len(path) + (64 if path else 0)
        y = heights[path]
        label = names[path[-1]] if path else (prompt if len(prompt) < 12 else f"…{prompt[-11:]}")
        if path:
            share = shares[path[:-1]].get(path[-1], 0.0)
            probability[path] = probability[path[:-1]] * share
            start = 380 + (120 if len(path) == 1 else STEP * (len(path) - 1) + 64 + WIDE)
            above = heights[path[:-1]]
            branches.append(
                f'<path d="M{start} {above:.1f}C{start + 18} {above:.1f} {x - 18} {y:.1f} {x} {y:.1f}" fill="none" '
                f'stroke="{POSITIVE}" stroke-width="{1 + 5 * share:.1f}"/>'
            )
        wide = WIDE if path else 120
        branches.append(
            f'<rect class="page soft" x="{x}" y="{y - 18:.1f}" width="{wide}" height="36" rx="5" fill="#fff" '
            'stroke="#59636e"/>'
        )
        branches.append(text(x + wide / 2, y - (2 if path else -5), label, size=14, anchor="middle"))
        if path:
            branches.append(text(x + wide / 2, y + 13, percent(share), size=11, anchor="middle", color="soft"))
        if path in leaves:
            branches.append(text(x + wide + 8, y + 5, percent(probability[path]), size=13, bold=True))
    chart.draw(branches)
    first = ", ".join(f"{names[id_]} {percent(share)}" for id_, share in list(shares[()].items())[:BARS])
    told = "; ".join(
        " times ".join(f"{names[id_]} {percent(shares[path[:step]].get(id_, 0.0))}" for step, id_ in enumerate(path))
        + f" is {percent(probability[path])}"
        for path in leaves
        if path
    )
    return chart, f"After {prompt!r}: {first}." + (f" Paths: {told}." if told else "")


def _shares(node: Mapping[str, Any]) -> dict[int, float]:
    """Return the policy's probabilities of the likeliest tokens, by id."""
    import numpy as np

    logits = np.frombuffer(base64.b64decode(node["logits"]), "<f4").astype(np.float64)
    powers = np.exp(logits - logits[0])
    return dict(zip(node["ids"], (powers / powers.sum()).tolist(), strict=False))
