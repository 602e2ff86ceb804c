"""The picture of a computation as a graph, without Graphviz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from mlx_grpo_kit.viz.graphs.layout import Layout, lay_out
from mlx_grpo_kit.viz.graphs.nodes import Node, collapse, read_graph, short
from mlx_grpo_kit.viz.picture import SvgPicture

MAX_NODES = 150
MAX_NODES_TOLD = 40  # the most nodes that a description lists
LAYER_GAP, GAP, MARGIN = 46.0, 16.0, 14.0
LINE, PADDING, CHARACTER = 16.0, 9.0, 7.3  # pixels: height of a line of text, space around it, width of a letter
MIN_WIDTH = 64.0
WIDEST_SCALED = 1400  # a wider picture keeps its size and scrolls

# Attributes have the colours of the light theme, in case a page removes style sheets; the style sheet is for both.
STYLE = """<style>
.kit-graph {--ink: var(--jp-ui-font-color1, #24292f); --page: var(--jp-layout-color0, #fff); --leaf: #e7f0fe;
  --made: #f6f8fa; --edge: #8b949e; --frame: #7d8590; --slope: #b42318; --data: #1f5fc4; --now: #d97b00}
[data-jp-theme-light="false"] .kit-graph {--leaf: #1d3050; --made: #2b2f36; --frame: #747d88; --slope: #ff9d8a;
  --data: #8dbbff}
.kit-graph text {fill: var(--ink)} .kit-graph .page {fill: var(--page)} .kit-graph .halo {stroke: var(--page)}
.kit-graph .data {fill: var(--data)} .kit-graph .slope {fill: var(--slope)} .kit-graph .dim {opacity: .38}
.kit-graph .box {fill: var(--made); stroke: var(--frame)} .kit-graph .leaf {fill: var(--leaf)}
.kit-graph .root {stroke: var(--ink)} .kit-graph .line {stroke: var(--edge)} .kit-graph .head {fill: var(--edge)}
.kit-graph .box.now, .kit-graph .line.now {stroke: var(--now)} .kit-graph .head.now {fill: var(--now)}
.kit-graph .node:hover .box {stroke: var(--now); stroke-width: 2.5}
</style>"""


@dataclass
class Marks:
    """The changes to a graph's picture at one moment of a walk through the graph. Nodes are given by their positions.

    Attributes:
        data, grad: texts that replace those of the nodes; a node that is missing in a mapping has an empty place. With
            None, nodes keep their own texts.
        current: the node that the walk is at.
        edges: (parent, child) -> the text on that line; these lines are highlighted.
    """

    data: Mapping[int, str] | None = None
    grad: Mapping[int, str] | None = None
    current: int | None = None
    edges: Mapping[tuple[int, int], str] = field(default_factory=dict)


def draw_graph(node: Any, *, max_nodes: int = MAX_NODES) -> SvgPicture:
    """Draw the graph that computed `node`, from the leaves on the left to `node` on the right.

    `node` is a Value, a Tensor of this kit or of torch, or the text that `mx.export_to_dot` writes. Each box shows the
    operation, the label, the number (the shape of an array) and the gradient; point at it to see more. In a graph of
    more than `max_nodes` nodes, nodes of the same operation and layer are drawn as one box with their count.

    Raises:
        TypeError: `node` is something else.
        ValueError: max_nodes is below 2.
    """
    if max_nodes < 2:
        raise ValueError(f"max_nodes is {max_nodes}; expected at least 2: the result and everything before it.")
    everything = read_graph(node)
    nodes = collapse(everything, max_nodes)
    return SvgPicture(draw_nodes(nodes, arrange(nodes), describe(everything)), describe(everything))


def arrange(nodes: Sequence[Node]) -> Layout:
    """Find places for the boxes of `nodes`."""
    return lay_out([node.parents for node in nodes], [_size(node) for node in nodes], layer_gap=LAYER_GAP, gap=GAP)


def describe(nodes: Sequence[Node]) -> str:
    """Describe the graph in words: a line for each node, or the number of nodes of each kind if there are many."""
    leaves = sum(not node.op for node in nodes)
    head = f"Graph of {len(nodes):,} nodes, {leaves:,} of them leaves"
    if len(nodes) > MAX_NODES_TOLD:
        kinds = Counter(node.op or "leaf" for node in nodes)
        return f"{head}: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()) + "."
    names = node_names(nodes)
    return "\n".join(
        [
            head + ".",
            *(f"{names[index]}{show_formula(node, names)}{_numbers(node)}" for index, node in enumerate(nodes)),
        ]
    )


def draw_nodes(nodes: Sequence[Node], layout: Layout, alt: str, marks: Marks | None = None) -> str:
    """Draw `nodes` as SVG at the places of `layout`, with the changes of `marks`."""
    marks = marks or Marks()
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    fit = "max-width:100%;height:auto;" if width <= WIDEST_SCALED else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="kit-graph" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}" '
        f'style="{fit}font:13px ui-sans-serif,system-ui,sans-serif">',
        STYLE,
        f"<title>{escape(alt)}</title>",
        f'<rect class="page" x="{-MARGIN:g}" y="{-MARGIN:g}" width="{width:.0f}" height="{height:.0f}" rx="6" '
        'fill="#fff"/>',
    ]
    labels = []
    for (parent, child), points in layout.routes.items():
        now = " now" if (parent, child) in marks.edges else ""
        lines = nodes[child].parents.count(parent)
        for index in range(min(lines, 3)):  # a + a has two lines from a
            parts.append(_line(points, (index - (min(lines, 3) - 1) / 2) * 12, now))
        if now:
            labels.append(_line_label(points, marks.edges[parent, child]))
    names = node_names(nodes)
    for index, node in enumerate(nodes):
        parts.append(_box(node, index, layout.centers[index], names, marks, is_root=index == len(nodes) - 1))
    return "".join([*parts, *labels, "</svg>"])


def _rows(node: Node, data: str, grad: str) -> list[tuple[str, str]]:
    """List (class, text) for each line of a box."""
    head = " ".join(filter(None, (node.symbol, node.title)))
    rows = [("head-line", head)] if head else []
    if node.data:
        rows.append(("data", data))
    if node.grad:
        rows.append(("slope", f"grad {grad}" if grad else ""))
    return rows or [("head-line", "")]


def _size(node: Node) -> tuple[float, float]:
    rows = _rows(node, node.data, node.grad)
    return max(MIN_WIDTH, max(len(text) for _, text in rows) * CHARACTER + 2 * PADDING), len(rows) * LINE + 2 * 6


def _box(node: Node, index: int, center: tuple[float, float], names: Sequence[str], marks: Marks, is_root: bool) -> str:
    (width, height), (x, y) = _size(node), center
    data = node.data if marks.data is None else marks.data.get(index, "")
    grad = node.grad if marks.grad is None else marks.grad.get(index, "")
    rows = _rows(node, data, grad)
    kind = (
        "box" + ("" if node.op else " leaf") + (" root" if is_root else "") + (" now" if index == marks.current else "")
    )
    fill, stroke = "#f6f8fa" if node.op else "#e7f0fe", "#24292f" if is_root else "#7d8590"
    thick = 3 if index == marks.current else 1.8 if is_root else 1
    dim = " dim" if marks.data is not None and not data else ""
    hover = f"{names[index]}{show_formula(node, names)}{_numbers(node)}" + "".join(
        f"\nd {names[index]} / d {names[parent]} = {short(slope)}"
        for parent, slope in zip(node.parents, node.derivatives, strict=False)
    )
    parts = [f'<g class="node{dim}"><title>{escape(hover)}</title>']
    for shift in (4, 0) if node.count > 1 else (0,):  # several nodes in one look like a stack of boxes
        parts.append(
            f'<rect class="{kind}" x="{x - width / 2 + shift:.1f}" y="{y - height / 2 + shift:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}" rx="7" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{thick}"/>'
        )
    top = y - height / 2 + 6 + LINE * 0.77
    for row, (look, text) in enumerate(rows):
        place = f'x="{x:.1f}" y="{top + row * LINE:.1f}" text-anchor="middle"'
        if look == "head-line":
            parts.append(
                f'<text {place} fill="#24292f"><tspan font-weight="700">{escape(node.symbol)}</tspan>'
                f'{" " if node.symbol and node.title else ""}<tspan font-style="italic">{escape(node.title)}'
                "</tspan></text>"
            )
        else:
            color = "#1f5fc4" if look == "data" else "#b42318"
            parts.append(f'<text class="{look}" {place} fill="{color}">{escape(text)}</text>')
    return "".join([*parts, "</g>"])


def _line(points: Sequence[tuple[float, float]], bow: float, now: str) -> str:
    """Draw a smooth line that begins and ends horizontally, with an arrow head."""
    (x, y), *rest = points
    last_x, last_y = rest[-1]
    rest[-1] = (last_x - 6, last_y)
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        middle = (x + to_x) / 2
        path += f"C{middle:.1f} {y + bow * 1.3:.1f} {middle:.1f} {to_y + bow * 1.3:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    thick = 2.4 if now else 1.3
    return (
        f'<path class="line{now}" d="{path}" fill="none" stroke="#8b949e" stroke-width="{thick}"/>'
        f'<path class="head{now}" d="M{last_x:.1f} {last_y:.1f}l-7 -3.6v7.2z" fill="#8b949e"/>'
    )


def _line_label(points: Sequence[tuple[float, float]], text: str) -> str:
    (x, y), (last_x, last_y) = points[-2], points[-1]
    place = f'x="{(x + last_x) / 2:.1f}" y="{(y + last_y) / 2 - 4:.1f}" text-anchor="middle" font-size="12"'
    return (
        f'<text class="halo" {place} stroke="#fff" stroke-width="4" stroke-linejoin="round" fill="none">'
        f'{escape(text)}</text><text class="slope" {place} fill="#b42318">{escape(text)}</text>'
    )


def node_names(nodes: Sequence[Node]) -> list[str]:
    """Return a name for each node: its title, a constant's number, or v1, v2 ... in the order of computation."""
    names, taken = [], {node.title for node in nodes}
    for node in nodes:
        name = node.title or (node.data if node.is_number and not node.op else "")
        number = len(names)
        while not name or (name in taken and not node.title):
            number += 1
            name = f"v{number}" if f"v{number}" not in taken else ""
        names.append(name)
        taken.add(name)
    return names


def show_formula(node: Node, names: Sequence[str]) -> str:
    """Write a node's formula: " = a + b" for a sum, "" for a leaf. `names` are the names of all nodes."""
    arguments = [names[parent] for parent in node.parents]
    if not node.op:
        return ""
    if node.op.startswith("**") and len(arguments) == 1:
        return f" = {arguments[0]} ** {node.op[2:]}"
    if not node.symbol.isidentifier() and len(arguments) == 2:
        return f" = {arguments[0]} {node.symbol} {arguments[1]}"
    if node.op == "neg":
        return f" = {node.symbol}{arguments[0]}"
    return f" = {node.op}({', '.join(arguments)})" if len(arguments) < 8 else f" = {node.op} of {len(arguments)} values"


def _numbers(node: Node) -> str:
    return (f": {node.data}" if node.data else "") + (f", gradient {node.grad}" if node.grad else "")
