"""The topological order of a graph of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_grpo_kit.scalar.value import Value


def topological_order(root: Value) -> list[Value]:
    """Every value that `root` was computed from, once, each after its parents; `root` comes last.

    This is a depth-first search that lists a value once all of its parents are listed. Values to visit are in a list
    and not on Python's call stack, which overflows at a chain of a thousand values.
    """
    order, seen, to_visit = [], set(), [root]
    while to_visit:
        node = to_visit.pop()
        if node is None:  # all parents of the next one have been visited
            order.append(to_visit.pop())
        elif node not in seen:
            seen.add(node)
            to_visit += node, None
            to_visit += [parent for parent in node.parents if parent not in seen]
    return order
