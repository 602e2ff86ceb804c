"""The last cell of a notebook with answers: assert that no answer differs from the kit's solution.

Both have the same source. They can differ only in the values of global names.
"""

import inspect
import textwrap
import types

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.record import passed_here


def functions(value):
    """The function itself, or the methods of a class, by name."""
    members = vars(value) if isinstance(value, type) else {value.__name__: value}
    return {name: each for name, each in members.items() if isinstance(each, types.FunctionType)}


def names(code):
    """Every name in a function's code that is not a local variable."""
    return set(code.co_names).union(*(names(each) for each in code.co_consts if isinstance(each, types.CodeType)))


def words(function):
    return textwrap.dedent(inspect.getsource(function)).strip()


def differences(answer, solution, where, seen=()):
    """Paths of global names that have different values."""
    answer, solution = inspect.unwrap(answer), inspect.unwrap(solution)  # `use` converts what an answer returns
    if answer is solution or answer in seen:
        return []
    if not isinstance(solution, types.FunctionType | type) or not functions(solution):
        return [where]
    ours, theirs = functions(solution), functions(answer)
    found = [] if list(map(words, ours.values())) == list(map(words, theirs.values())) else [where]
    for method in ours.keys() & theirs.keys():
        here, there = theirs[method].__globals__, ours[method].__globals__
        for name in names(ours[method].__code__) & here.keys() & there.keys():
            if not name.startswith("__"):
                found += differences(here[name], there[name], f"{where} > {name}", (*seen, answer))
    return found


solutions = {id: solution for id in passed_here if callable(solution := find(id).solution)}
found = [difference for id, solution in solutions.items() for difference in differences(passed_here[id], solution, id)]
assert not found, found
