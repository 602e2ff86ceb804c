"""The nodes of a graph, read from a Value, a Tensor, or the text of `mx.export_to_dot`.

This file imports none of these classes. An object with `parents` and `op` is read like a Value, one with `grad_fn` like
a tensor of torch or of this kit, and a text as Graphviz's language.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

MINUS, TIMES, OVER = "\u2212", "\u00d7", "\u00f7"
SYMBOLS = {
    "Add": "+",
    **dict.fromkeys(("-", "neg", "Sub", "Subtract", "Neg", "Negative"), MINUS),
    **dict.fromkeys(("*", "Mul", "Multiply"), TIMES),
    **dict.fromkeys(("/", "Div", "Divide"), OVER),
    "**": "^",
}


@dataclass(frozen=True)
class Node:
    """One box. Nodes are listed parents first; `parents` are positions in that list, one for each argument.

    Attributes:
        title: the user's name for it, or "".
        op: the engine's name of the operation; "" for a leaf.
        data, grad: short texts, or "".
        derivatives: d(node) / d(parent) as numbers, one for each parent, if the engine keeps them.
        number: the data, if it is a number.
        count: the number of nodes in the graph that this box represents.
    """

    title: str = ""
    op: str = ""
    data: str = ""
    grad: str = ""
    parents: tuple[int, ...] = ()
    derivatives: tuple[float, ...] = ()
    number: float | None = None
    count: int = field(default=1, compare=False)

    @property
    def is_number(self) -> bool:
        """True if `data` is a number, and not the shape of an array."""
        return bool(self.data) and not (TIMES in self.data or "," in self.data)

    @property
    def symbol(self) -> str:
        """The operation as written in a formula."""
        if self.op.startswith("**"):
            return "^" + self.op[2:]
        return SYMBOLS.get(self.op, self.op)


def short(number: float) -> str:
    """Write a number with at most four significant digits, and a minus sign as wide as a plus."""
    return f"{number:.4g}".replace("-", MINUS)


def read_graph(root: Any) -> list[Node]:
    """List the nodes of a graph, parents first, `root` last. Raises TypeError if `root` is not part of a graph."""
    if isinstance(root, str):
        return _read(_dot_things(root), lambda thing: thing.parents, _dot_node)
    if hasattr(root, "parents") and hasattr(root, "op"):
        return _read([root], lambda node: node.parents, _value_node)
    if hasattr(root, "grad_fn"):
        return _read([root], _tensor_parents, _tensor_node)
    raise TypeError(
        f"draw_graph got {type(root).__name__}; expected a Value, a Tensor, or the text that "
        "mx.export_to_dot writes: buffer = io.StringIO(); mx.export_to_dot(buffer, y); "
        "draw_graph(buffer.getvalue())."
    )


def _read(roots: Iterable[Any], parents_of: Callable[[Any], Sequence[Any]], make: Callable[[Any], Node]) -> list[Node]:
    position, nodes, kept = {}, [], []
    to_visit = list(roots)[::-1]
    while to_visit:
        thing = to_visit[-1]
        parents = parents_of(thing)
        waiting = [parent for parent in reversed(parents) if _identity(parent) not in position]
        if waiting:  # the left argument is visited first, so pictures keep the order of the formula
            to_visit += waiting
            continue
        to_visit.pop()
        if _identity(thing) not in position:
            position[_identity(thing)] = len(nodes)
            kept.append(thing)  # an id is only valid while its object exists
            nodes.append(replace(make(thing), parents=tuple(position[_identity(parent)] for parent in parents)))
    return nodes


def _identity(thing: Any) -> int:
    """Return an id, the same for all nodes of a leaf that is used several times, because they are one box."""
    return id(getattr(thing, "variable", thing))


def _value_node(value: Any) -> Node:
    return Node(
        title=value.label or "",
        op=value.op,
        data=short(value.data),
        grad=short(value.grad),
        number=value.data,
        derivatives=tuple(getattr(value, "derivatives", ())),
    )


def _tensor_parents(thing: Any) -> list[Any]:
    """Return the inputs of a tensor's grad_fn: tensors if they are known, or in torch the functions that made them."""
    function = thing if _is_function(thing) else thing.grad_fn
    if function is None or hasattr(function, "variable"):
        return []
    if hasattr(function, "inputs"):
        return function.inputs
    return [parent for parent, _ in function.next_functions if parent is not None]


def _is_function(thing: Any) -> bool:
    return hasattr(thing, "next_functions")


def _tensor_node(thing: Any) -> Node:
    if hasattr(thing, "variable"):  # torch's AccumulateGrad, which represents a leaf
        thing = thing.variable
    if _is_function(thing):
        return Node(op=_operation(thing), data=_shape_text(getattr(thing, "shape", ())))
    function = thing.grad_fn
    grad = thing.grad if function is None or getattr(thing, "retains_grad", True) else None
    return Node(
        title=getattr(thing, "label", ""),
        op=_operation(function) if function is not None else "",
        data=_array_text(thing.data),
        grad=_array_text(grad) if grad is not None else "",
    )


def _operation(function: Any) -> str:
    return re.sub(r"Backward\d*$", "", function.name().split("::")[-1])


def _array_text(array: Any) -> str:
    """Write a number as a number, and an array as its shape."""
    return _shape_text(array.shape) if array.shape else short(float(array))


def _shape_text(shape: Sequence[int]) -> str:
    """Write a shape as 4×3, or as (4,) with one axis, because a lone 4 would look like a number."""  # noqa: RUF002
    return f"({shape[0]},)" if len(shape) == 1 else TIMES.join(map(str, shape))


def _dot_things(text: str) -> list[Any]:
    """Read MLX's graph. It has nodes for arrays and for operations; here an operation and its only result are one."""
    if "digraph" not in text:
        raise TypeError(
            "draw_graph got a text that is not a graph; expected the text that mx.export_to_dot writes, "
            "which starts with 'digraph'."
        )
    operations = {
        number: SimpleNamespace(**_dot_operation(name), parents=[])
        for number, name in re.findall(r'\{ (\d+) \[label ="([^"]*)"', text)
    }
    names = dict.fromkeys(re.findall(r'\{ (?:rank=\w+; )?"([^"]*)"; \}', text))
    results = {}
    for number, name in re.findall(r'^(\d+) -> "([^"]*)"', text, flags=re.M):
        results.setdefault(number, []).append(name)

    arrays = {name: SimpleNamespace(title=name, op="", parents=[]) for name in names}
    for number, own in results.items():
        for name in own:
            title = "" if re.fullmatch("[A-Z]+", name) else name  # MLX's names for arrays without a name
            if len(own) == 1:
                arrays[name] = operations[number]
                arrays[name].title = title
            else:
                arrays[name] = SimpleNamespace(title=title, op="result", parents=[operations[number]])
    for name, number in re.findall(r'^"([^"]*)" -> (\d+)', text, flags=re.M):
        operations[number].parents.append(arrays[name])
    return list(arrays.values())


def _dot_node(thing: Any) -> Node:
    return Node(title=thing.title, op=thing.op, data=getattr(thing, "data", ""))


def _dot_operation(name: str) -> dict[str, str]:
    """Read an operation's name. `mx.compile` fuses operations into one and joins all their names."""
    inner = re.findall("[A-Z][a-z0-9]*", name)[1:] if name.startswith("Compiled") else []
    return {"title": "", "op": "Compiled" if inner else name, "data": f"{len(inner)} in one" if inner else ""}


def collapse(nodes: list[Node], limit: int) -> list[Node]:
    """Merge nodes into at most `limit` boxes; return them unchanged if there are no more than that.

    Nodes with the same operation and height (the longest path from a leaf) become one box, as does a chain of heights
    that contain only this operation, such as a long sum. If there are still too many boxes, those nearest to the leaves
    become one. A box of several nodes shows their count instead of numbers.
    """
    if len(nodes) <= limit:
        return nodes
    height = []
    for node in nodes:
        height.append(1 + max((height[parent] for parent in node.parents), default=-1))
    ops = [set() for _ in range(max(height) + 1)]
    for level, node in zip(height, nodes, strict=True):
        ops[level].add(node.op)
    band = [0]  # the band of each height; lines lead only to higher bands, so the boxes form no cycle
    for below, own in itertools.pairwise(ops):
        band.append(band[-1] + (below != own or len(own) > 1))

    sizes = Counter(bands for bands, _ in {(band[level], node.op) for level, node in zip(height, nodes, strict=True)})
    lowest, kept = band[-1], sizes[band[-1]]
    while lowest and kept + sizes[lowest - 1] <= limit - (lowest > 1):
        lowest -= 1
        kept += sizes[lowest]
    members = {}
    for index, node in enumerate(nodes):
        level = band[height[index]]
        members.setdefault((level, node.op) if level >= lowest else (-1, "earlier"), []).append(index)
    order = sorted(members, key=lambda group: (group[0], members[group][0]))
    box_of = {index: place for place, group in enumerate(order) for index in members[group]}
    return [_box_of_many(nodes, members[group], box_of, group[1]) for group in order]


def _box_of_many(nodes: list[Node], members: list[int], box_of: dict[int, int], op: str) -> Node:
    own = box_of[members[0]]
    parents = tuple(sorted({box_of[parent] for index in members for parent in nodes[index].parents} - {own}))
    if len(members) == 1:
        return replace(nodes[members[0]], parents=parents, derivatives=())
    if op == "earlier":
        return Node(title=f"{len(members):,} nodes before", op="\u2026", parents=parents, count=len(members))
    what = "of these" if op else "leaves"
    return Node(title=f"{len(members):,} {what}", op=op, parents=parents, count=len(members))
