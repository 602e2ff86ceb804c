"""The part of a notebook that one of its widgets needs: the statements on which the last line of its cell depends."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


def widget_of(cells: Sequence[Mapping[str, Any]], id: str, names: dict[str, Any], expression: str = "") -> Any:
    """Run what the cell `id` needs of the notebook, and return the value of the expression at its end.

    Args:
        names: the notebook's names; a statement runs once for all widgets that share them.
        expression: what to return instead, such as "dashboard"; the rest of the cell is run if it needs it.

    Raises:
        LookupError: there is no such cell, or no expression at its end.
    """
    place = next((place for place, cell in enumerate(cells) if cell.get("id") == id), None)
    if place is None:
        raise LookupError(f"The notebook has no cell {id!r}.")
    statements = [statement for cell in cells[: place + 1] for statement in _statements(cell)]
    *before, last = [*statements, *ast.parse(expression).body]
    if not isinstance(last, ast.Expr):
        raise LookupError(f"Cell {id!r} ends with {ast.unparse(last)!r}; expected an expression, such as a panel.")
    done = names.setdefault("__done__", set())
    for number in _needed(before, last):
        if number not in done:
            done.add(number)
            exec(compile(ast.Module([before[number]], []), f"<{id}>", "exec"), names)
    return eval(compile(ast.Expression(last.value), f"<{id}>", "eval"), names)


def _statements(cell: Mapping[str, Any]) -> list[ast.stmt]:
    """The statements of a code cell without its checks; none of a cell that only Jupyter can read (`!pip`)."""
    try:
        return _WithoutAsserts().visit(ast.parse(cell["source"])).body if cell["cell_type"] == "code" else []
    except SyntaxError:
        return []


class _WithoutAsserts(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)


def _needed(before: Sequence[ast.stmt], last: ast.stmt) -> list[int]:
    """The places of the statements on which `last` depends, in order.

    A name that a statement reads comes from the newest assignment before it, and from what changed it since then. The
    body of a function reads later, so what changes the name after the function counts too.
    """
    uses = [_Uses.of(statement) for statement in (*before, last)]
    kept, todo = set(), [len(before)]
    while todo:
        place = todo.pop()
        for name in uses[place].read | uses[place].read_later:
            latest = len(before) if name in uses[place].read_later else place
            for other in reversed(range(latest)):
                if name in uses[other].changed and other not in kept:
                    kept.add(other)
                    todo.append(other)
                if name in uses[other].assigned and other < place:
                    break
    return sorted(kept - {len(before)})


class _Uses(NamedTuple):
    """The names of the notebook that a statement sets without a condition, changes, and reads."""

    assigned: set[str]
    changed: set[str]
    read: set[str]
    read_later: set[str]

    @classmethod
    def of(cls, statement: ast.stmt) -> _Uses:
        table = symtable.symtable(ast.unparse(statement), "cell", "exec")
        own, in_place = table.get_symbols(), {*_changed_in_place(statement)}
        changed = {each.get_name() for each in own if each.is_assigned() or each.is_imported()}
        read = _read_by_loop(statement) if isinstance(statement, ast.For) else _names(table)
        simple = isinstance(statement, ast.Assign | ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)
        later = {*_of_functions(table)}
        return cls(changed if simple else set(), changed | in_place, read | in_place, later)


def _names(table: symtable.SymbolTable) -> set[str]:
    return {each.get_name() for each in table.get_symbols() if each.is_referenced()}


def _read_by_loop(loop: ast.For) -> set[str]:
    """The names that a loop reads, but for those that it has set before."""
    read = {node.id for node in ast.walk(loop.iter) if isinstance(node, ast.Name)}
    known = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for uses in map(_Uses.of, (*loop.body, *loop.orelse)):
        read |= uses.read - known
        known |= uses.assigned
    return read


def _of_functions(table: symtable.SymbolTable) -> Iterator[str]:
    """The names that functions and classes in a table take from the notebook."""
    for child in table.get_children():
        yield from (each.get_name() for each in child.get_symbols() if each.is_global())
        yield from _of_functions(child)


def _changed_in_place(statement: ast.stmt) -> Iterator[str]:
    """The names whose objects a statement changes.

    That is `name.x = 1`, `name[0] = 1`, `name.append(1)` on its own, and every name in `for _ in run(name): pass`.
    """
    for node in ast.walk(statement):
        if isinstance(node, ast.For) and isinstance(node.body[0], ast.Pass):
            yield from (each.id for each in ast.walk(node.iter) if isinstance(each, ast.Name))
        target = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else node
        is_change = target is not node or isinstance(getattr(node, "ctx", None), ast.Store)
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
            if is_change and isinstance(target, ast.Name):
                yield target.id
