"""A graph of Values computed and differentiated before your eyes, one node at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any

from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.viz.graphs.graph import Marks, arrange, draw_nodes, node_names, show_formula
from mlx_grpo_kit.viz.graphs.nodes import TIMES, Node, read_graph, short
from mlx_grpo_kit.viz.panel import NOTE, Panel
from mlx_grpo_kit.viz.picture import SvgPicture, show_live

MAX_NODES = 60
MILLISECONDS_PER_STEP = 1500


@dataclass(frozen=True)
class Moment:
    """One step of the walk: a heading, sentences, and the changes to the picture."""

    heading: str
    sentences: tuple[str, ...]
    marks: Marks

    @property
    def words(self) -> str:
        return " ".join(sentence.rstrip(".") + "." for sentence in (self.heading, *self.sentences))


class Stepper:
    """A walk forward, then backward, through the graph of `root`, a Value, with a slider and buttons.

    Going forward, a node computes its number from its parents. Going backward, it passes its gradient on: each parent's
    gradient grows by (derivative with respect to the parent) times (the node's own gradient). The graph does not
    change: the gradients shown are computed separately, starting at 0.

    `moments` lists the steps; `at(step)` returns the picture of one; `panel` contains the widgets.

    Raises:
        TypeError: the graph does not keep its derivatives.
        ValueError: it is too large to follow by eye.
    """

    def __init__(self, root: Any):
        nodes = read_graph(root)
        if len(nodes) > MAX_NODES:
            raise ValueError(
                f"the graph has {len(nodes):,} nodes; expected at most {MAX_NODES}, so that each can be "
                "followed. draw_graph(value) draws large graphs too."
            )
        if any(len(node.derivatives) != len(node.parents) or node.number is None for node in nodes):
            raise TypeError(
                f"{type(root).__name__} does not keep the derivative of a node with respect to each "
                "parent; expected a Value. draw_graph draws other graphs."
            )
        names = node_names(nodes)
        self._nodes = [
            replace(node, title=name if node.op else node.title, grad=short(grad))
            for node, name, grad in zip(nodes, names, _gradients(nodes), strict=True)
        ]
        self._layout = arrange(self._nodes)
        self.moments = _moments(self._nodes, names)
        self.panel = self._build()

    def at(self, step: int) -> SvgPicture:
        """Return the picture of moment `step`, with its words above."""
        moment = self.moments[step]
        svg = draw_nodes(self._nodes, self._layout, moment.words, moment.marks)
        return _Captioned(svg, moment.words, moment)

    def _build(self) -> Panel:
        with packages_for("Stepper"):
            import ipywidgets as widgets

        last = len(self.moments) - 1
        slider = widgets.IntSlider(0, 0, last, description="step", layout=widgets.Layout(width="320px"))
        play = widgets.Play(value=0, min=0, max=last, interval=MILLISECONDS_PER_STEP)
        widgets.jslink((play, "value"), (slider, "value"))
        previous = widgets.Button(description="Previous", icon="step-backward", layout=widgets.Layout(width="110px"))
        following = widgets.Button(description="Next", icon="step-forward", layout=widgets.Layout(width="110px"))
        previous.on_click(lambda _: setattr(slider, "value", max(slider.value - 1, 0)))
        following.on_click(lambda _: setattr(slider, "value", min(slider.value + 1, last)))
        return Panel(self.at, step=slider, extra=[previous, following, play])

    @property
    def stored(self) -> int:
        """The moment that a page without a kernel shows: in the backward pass, not the first one or the last."""
        last = len(self.moments) - 1
        return last - last // 5

    def _ipython_display_(self) -> None:
        show_live(self.panel.widget, self.at(self.stored), NOTE)

    def __repr__(self) -> str:
        return f"<Stepper of {len(self._nodes)} nodes and {len(self.moments)} moments>"


@dataclass
class _Captioned(SvgPicture):
    moment: Moment

    @property
    def caption(self) -> str:
        sentences = "".join(f"<div>{escape(sentence)}</div>" for sentence in self.moment.sentences)
        return (
            f'<div role="status" style="min-height:5.4em;line-height:1.5;font-size:14px">'
            f"<b>{escape(self.moment.heading)}</b>{sentences}</div>"
        )

    @property
    def html(self) -> str:
        return self.caption + super().html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        data = super()._repr_mimebundle_(include, exclude)
        return data | {"text/html": self.caption + data["text/html"]}


def _gradients(nodes: list[Node]) -> list[float]:
    grads = [0.0] * (len(nodes) - 1) + [1.0]
    for index in range(len(nodes) - 1, -1, -1):
        for parent, derivative in zip(nodes[index].parents, nodes[index].derivatives, strict=True):
            grads[parent] += derivative * grads[index]
    return grads


def _moments(nodes: list[Node], names: list[str]) -> list[Moment]:
    made = [index for index, node in enumerate(nodes) if node.op]
    data = {index: node.data for index, node in enumerate(nodes) if not node.op}
    moments = [
        Moment("Before the first step", ("Only the leaves have a number. Press Next, or Play.",), Marks(dict(data), {}))
    ]
    for count, index in enumerate(made, 1):
        node = nodes[index]
        data[index] = node.data
        numbers = show_formula(node, [nodes[parent].data for parent in range(len(nodes))])
        words = f"{names[index]}{show_formula(node, names)}{numbers} = {node.data}"
        marks = Marks(dict(data), {}, index, dict.fromkeys(((parent, index) for parent in node.parents), ""))
        moments.append(Moment(f"Forward, {count} of {len(made)}", (words,), marks))

    root = len(nodes) - 1
    grads = [0.0] * root + [1.0]
    shown = {index: short(grad) for index, grad in enumerate(grads)}
    moments.append(
        Moment(
            "Backward begins",
            (f"The gradient of {names[root]} with respect to itself is 1. All others start at 0.",),
            Marks(data, dict(shown), root),
        )
    )
    for count, index in enumerate(reversed(made), 1):
        node, sentences, edges = nodes[index], [], {}
        for parent, derivative in zip(node.parents, node.derivatives, strict=True):
            before, gift = grads[parent], derivative * grads[index]
            grads[parent] += gift
            shown[parent] = short(grads[parent])
            edges[parent, index] = f"{TIMES} {short(derivative)}"
            sentences.append(
                f"{names[parent]}: the local derivative d{names[index]}/d{names[parent]} is "
                f"{short(derivative)}, so its gradient grows by {_factor(derivative)} {TIMES} "
                f"{_factor(grads[index])}: {short(before)} + {_factor(gift)} = {shown[parent]}"
            )
        heading = f"Backward, {count} of {len(made)}: {names[index]} passes its gradient {short(grads[index])} on"
        moments.append(Moment(heading, tuple(sentences), Marks(data, dict(shown), index, edges)))
    return moments


def _factor(number: float) -> str:
    return short(number) if number >= 0 else f"({short(number)})"
