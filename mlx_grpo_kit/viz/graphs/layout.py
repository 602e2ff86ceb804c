"""The places of a graph's boxes: layer by layer, parents before children, few crossings, short lines.

The method of Sugiyama, Tagawa and Toda (Methods for Visual Understanding of Hierarchical System Structures, 1981):
layers by longest path, order within a layer by barycentres, then places that keep the order. Everything is done in a
fixed order, so a graph always gets the same picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SWEEPS = 8
Point = tuple[float, float]


@dataclass
class Layout:
    """Places of the boxes in pixels, the picture growing to the right.

    Attributes:
        centers: (x, y) of the middle of each box.
        routes: (parent, child) -> the points that its line passes, from the parent's right side to the child's left
            side.
        width, height: the size of the whole picture, without a margin.
    """

    centers: list[Point]
    routes: dict[tuple[int, int], list[Point]]
    width: float
    height: float


def lay_out(parents: Sequence[Sequence[int]], sizes: Sequence[Point], *, layer_gap: float, gap: float) -> Layout:
    """Place the nodes. Node i has size sizes[i] = (width, height) and is to the right of its parents, parents[i].

    Every parent must have a smaller number than its child. `layer_gap` is the free space between two columns, `gap`
    the free space between two boxes of a column.
    """
    if not parents:
        return Layout([], {}, 0.0, 0.0)
    layer_of = _layers(parents)
    count = len(parents)
    edges = sorted({(parent, child) for child, own in enumerate(parents) for parent in own})

    # A line over several layers gets its own place in each layer between them, so that it avoids the boxes there.
    chains, heights, before = {}, [height for _, height in sizes], [[] for _ in range(count)]
    for parent, child in edges:
        chain = [parent]
        for layer in range(layer_of[parent] + 1, layer_of[child]):
            layer_of.append(layer)
            heights.append(0.0)
            before.append([chain[-1]])
            chain.append(len(layer_of) - 1)
        before[child].append(chain[-1])
        chains[parent, child] = [*chain, child]
    after = [[] for _ in layer_of]
    for node, own in enumerate(before):
        for neighbour in own:
            after[neighbour].append(node)

    layers = [[] for _ in range(max(layer_of) + 1)]
    for node, layer in enumerate(layer_of):
        layers[layer].append(node)
    _untangle(layers, before, after)
    y = _heights_on_page(layers, before, after, heights, gap)

    widths = [max((sizes[node][0] for node in layer if node < count), default=0.0) for layer in layers]
    x, left = [], 0.0
    for width in widths:
        x.append(left + width / 2)
        left += width + layer_gap
    routes = {}
    for (parent, child), chain in chains.items():
        points = [(x[layer_of[parent]] + sizes[parent][0] / 2, y[parent])]
        for node in chain[1:-1]:
            half = widths[layer_of[node]] / 2
            points += [(x[layer_of[node]] - half, y[node]), (x[layer_of[node]] + half, y[node])]
        routes[parent, child] = [*points, (x[layer_of[child]] - sizes[child][0] / 2, y[child])]
    height = max(y[node] + heights[node] / 2 for node in range(len(y)))
    return Layout([(x[layer_of[node]], y[node]) for node in range(count)], routes, left - layer_gap, height)


def _layers(parents: Sequence[Sequence[int]]) -> list[int]:
    """Put each node one layer after its last parent, and a node without parents right before its first use."""
    layer = []
    for own in parents:
        layer.append(1 + max((layer[parent] for parent in own), default=-1))
    first_use = {}
    for child, own in enumerate(parents):
        for parent in own:
            first_use[parent] = min(first_use.get(parent, layer[child]), layer[child])
    return [first_use[node] - 1 if not own and node in first_use else layer[node] for node, own in enumerate(parents)]


def _untangle(layers: list[list[int]], before: list[list[int]], after: list[list[int]]) -> None:
    """Sort each layer by the mean place of its neighbours in the layer before, then after, and so on."""
    place = {node: index for layer in layers for index, node in enumerate(layer)}
    best, fewest = [list(layer) for layer in layers], _crossings(layers, before, place)
    for sweep in range(SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wish = {node: _mean([place[n] for n in neighbours[node]], place[node]) for node in layer}
            layer.sort(key=lambda node, wish=wish: (wish[node], place[node]))
            place.update((node, index) for index, node in enumerate(layer))
        crossings = _crossings(layers, before, place)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: list[list[int]], before: list[list[int]], place: dict[int, int]) -> int:
    """Count the crossings of lines between neighbouring layers."""
    total = 0
    for layer in layers:
        ends = [place[parent] for node in layer for parent in sorted(before[node], key=place.__getitem__)]
        total += sum(a > b for index, b in enumerate(ends) for a in ends[:index])
    return total


def _heights_on_page(
    layers: list[list[int]], before: list[list[int]], after: list[list[int]], heights: list[float], gap: float
) -> list[float]:
    """Compute the y of each node: near the mean of its neighbours, in the order of its layer, without overlap."""
    y = [0.0] * len(heights)
    for layer in layers:
        _spread(layer, {node: 0.0 for node in layer}, y, heights, gap)
    for sweep in range(SWEEPS):
        sides = [before, after, [b + a for b, a in zip(before, after, strict=True)]][min(sweep % 4, 2)]
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _spread(layer, {node: _mean([y[n] for n in sides[node]], y[node]) for node in layer}, y, heights, gap)
    top = min(y[node] - heights[node] / 2 for node in range(len(y)))
    return [place - top for place in y]


def _spread(layer: list[int], wish: dict[int, float], y: list[float], heights: list[float], gap: float) -> None:
    """Move the nodes of a layer to the places nearest to their wishes (least squares) that keep order and distance.

    With the distances subtracted this is isotonic regression, solved by pooling neighbours that would overlap.
    """
    offset, offsets = 0.0, []
    for index, node in enumerate(layer):
        if index:
            offset += (heights[layer[index - 1]] + heights[node]) / 2 + gap
        offsets.append(offset)
    blocks = []  # (mean wish, number of nodes)
    for node, offset in zip(layer, offsets, strict=True):
        mean, size = wish[node] - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, others = blocks.pop()
            mean, size = (other * others + mean * size) / (others + size), others + size
        blocks.append((mean, size))
    places = [mean for mean, size in blocks for _ in range(size)]
    for node, place, offset in zip(layer, places, offsets, strict=True):
        y[node] = place + offset


def _mean(numbers: list[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
