"""The process in which `grade` tries one answer: `python -m mlx_grpo_kit.course.teaching.child`.

It reads a request in JSON from standard input, and writes one line of JSON per result (see `data`) to standard output.
Before it loads the answer, it forgets the exercise's solution and confines itself. It judges nothing: the process that
started it compares the results with its own.
"""

from __future__ import annotations

import gc
import inspect
import json
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.answers import Kept
from mlx_grpo_kit.course.catalogue import find, folders
from mlx_grpo_kit.course.exercise import Exercise, is_stub
from mlx_grpo_kit.course.teaching.confine import confine, limit
from mlx_grpo_kit.course.teaching.data import encode
from mlx_grpo_kit.course.trial import written_over


def main() -> None:
    """Try the answer of the request, and end the process."""
    request = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def tell(**words: Any) -> None:
        results.write(json.dumps(words) + "\n")
        results.flush()

    id, folder = request["id"], Path(request["folder"])
    exercise = find(id, request["seed"])
    forget_solution(exercise)
    disable_compiling()
    tell(missing=confine(folder, secret_files()))
    limit(request["seconds"], request["memory"])
    try:
        answer = Kept(request["name"], request["source"], "").load(id)
    except BaseException as error:
        tell(failed=encode(error))
        os._exit(0)
    if not callable(exercise.solution) or not callable(answer):
        tell(value=encode(answer))
        os._exit(0)
    if is_stub(answer):
        tell(stub=True)
        os._exit(0)
    tried = []
    for case in exercise.cases:
        calls: list[tuple] = []
        result = exercise.try_out(answer, case, calls)
        tried.append((result, encode(result), calls))
        tell(result=tried[-1][1])
    tell(overwritten=[written_over(calls) or encode(result) != first for result, first, calls in tried])
    os._exit(0)


def secret_files() -> list[Path]:
    """The files with the solutions."""
    names = "chapter_*/exercises.py", "chapter_*/__pycache__/exercises.*"
    return [file for folder in folders() for name in names for file in folder.glob(name)]


def forget_solution(exercise: Exercise) -> None:
    """Remove the solution of an exercise, its hints and its wrong and right answers from this process.

    The work that the solution takes is counted before, if the exercise limits it.
    """
    if exercise.work is not None:
        for case in exercise.cases:
            exercise.work_on(case)
    for each in (exercise, find(exercise.id)):
        own = each.solution
        if callable(own):
            module = sys.modules[inspect.unwrap(own).__module__]
            needed = _names_reached(each.run, vars(module))
            for name in [name for name, value in vars(module).items() if value is own]:
                setattr(module, name, _guarded(own, vars(module)) if name in needed else _forgotten)
            object.__setattr__(each, "solution", _forgotten)
        else:
            object.__setattr__(each, "solution", None)
        for name, empty in (("mistakes", ()), ("hints", ()), ("also_right", ""), ("also_wrong", ""), ("explain", "")):
            object.__setattr__(each, name, empty)
        each._known.clear()
    linecache.clearcache()
    gc.collect()


def _names_reached(function: Callable[..., Any], space: dict[str, Any]) -> set[str]:
    """The names that a function uses, and those that the functions of the same module use that it names."""
    found: set[str] = set()
    codes = [getattr(inspect.unwrap(function), "__code__", None)]
    while codes:
        code = codes.pop()
        if inspect.iscode(code):
            new = {*code.co_names} - found
            found |= new
            codes += [*code.co_consts, *(getattr(space.get(name), "__code__", None) for name in new)]
            codes += [getattr(member, "__code__", None) for name in new if inspect.isclass(space.get(name))
                      for member in vars(space[name]).values()]  # fmt: skip
    return found


def _guarded(solution: Callable[..., Any], space: dict[str, Any]) -> Callable[..., Any]:
    """`solution`, for calls from its own module: that of an exercise whose `run` compares with it."""

    def call(*arguments: Any, **named: Any) -> Any:
        return (solution if sys._getframe(1).f_globals is space else _forgotten)(*arguments, **named)

    return call


def _forgotten(*_: Any, **__: Any) -> None:
    raise LookupError("the solution is not in this process")


def disable_compiling() -> None:
    """Let MLX run functions uncompiled: its compiler is another program, which a confined process cannot start."""
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].disable_compile()


if __name__ == "__main__":
    main()
