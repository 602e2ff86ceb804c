"""The order in which a graph of values can be walked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_grpo_kit.scalar.value import Value


def topological_order(root: Value) -> list[Value]:
    """Every value that `root` was computed from, once, each after its parents; `root` comes last.

    A depth-first search that writes a value down once it has been through all of its parents. What is still to visit
    stands in a list and not on Python's call stack, which overflows at a chain of a thousand values.
    """
    order, seen, to_visit = [], set(), [root]
    while to_visit:
        node = to_visit.pop()
        if node is None:  # everything above the next one has been visited
            order.append(to_visit.pop())
        elif node not in seen:
            seen.add(node)
            to_visit += node, None
            to_visit += [parent for parent in node.parents if parent not in seen]
    return order
